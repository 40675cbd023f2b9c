//! The one place that reads a clock.
//!
//! Lock deadlines count on a monotonic clock that goes on while the machine sleeps (`CLOCK_BOOTTIME` on
//! Linux): a laptop lid or a paused virtual machine must not make a lock look younger than it is. Tests
//! with paused time ask for [`Clock::tokio`] instead.

#![allow(clippy::disallowed_methods, reason = "this is the place")]

use std::ops::Add;
use std::time::Duration;

/// Which clock lock deadlines are read from.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System(#[cfg(not(target_os = "linux"))] std::time::Instant),
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// The system's monotonic clock, the default. On Linux it counts through suspension
    /// (`CLOCK_BOOTTIME`); elsewhere it is what [`std::time::Instant`] reads, which may not.
    pub fn system() -> Self {
        Self(Source::System(
            #[cfg(not(target_os = "linux"))]
            std::time::Instant::now(),
        ))
    }

    /// Tokio's clock, for tests that pause and advance time. It stands still while the machine sleeps,
    /// so it is not for production.
    pub fn tokio() -> Self {
        Self(Source::Tokio(tokio::time::Instant::now()))
    }

    pub(crate) fn now(&self) -> Moment {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Source::System() => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
                Moment(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            #[cfg(not(target_os = "linux"))]
            Source::System(origin) => Moment(0) + origin.elapsed(),
            Source::Tokio(origin) => Moment(0) + origin.elapsed(),
        }
    }
}

/// Microseconds since 1970 by the wall clock, which may jump. For numbers that should grow from one run of
/// the process to the next; never for deadlines.
pub(crate) fn unix_micros() -> u64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
}

/// A point on a [`Clock`], in nanoseconds from an origin that only that clock knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_moves_forward_only() {
        let clock = Clock::system();
        let first = clock.now();
        let second = clock.now();
        assert!(second >= first);
        assert_eq!(first.since(second + Duration::from_secs(1)), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn tokio_time_can_be_advanced() {
        let clock = Clock::tokio();
        let start = clock.now();
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(clock.now().since(start), Duration::from_secs(3));
    }
}
