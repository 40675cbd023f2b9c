//! How keys are shown, and how often the same thing is logged.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, Moment};
use crate::key::LockKey;

/// How lock keys appear in logs and spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyDisplay {
    /// As sixteen digits of a SHA-256 digest, the same for the same key. The default: a key is often the
    /// identifier of a person.
    #[default]
    Hashed,
    /// As it is, with odd bytes escaped.
    Plain,
}

impl KeyDisplay {
    /// The one way from a key to a log.
    pub(crate) fn show(self, key: &LockKey) -> ShownKey<'_> {
        ShownKey { display: self, key }
    }
}

/// A key as logs show it. The digest is made when somebody reads it: most spans are recorded nowhere.
#[derive(Debug)]
pub(crate) struct ShownKey<'a> {
    display: KeyDisplay,
    key: &'a LockKey,
}

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.display {
            KeyDisplay::Hashed => f.write_str(&self.key.fingerprint()),
            KeyDisplay::Plain => fmt::Display::fmt(self.key, f),
        }
    }
}

/// Lets a few events of one kind through in each period and counts the others.
#[derive(Debug)]
pub(crate) struct Throttle(Mutex<Window>);

#[derive(Debug)]
struct Window {
    ends: Moment,
    passed: u32,
    suppressed: u64,
}

const PERIOD: Duration = Duration::from_secs(10);

impl Throttle {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Window { ends: Moment(0), passed: 0, suppressed: 0 }))
    }

    /// `Some` if the event is to be logged, with the number of those that were not since the last one.
    pub(crate) fn admit(&self, burst: u32, clock: &Clock) -> Option<u64> {
        let now = clock.now();
        let mut window = self.0.lock();
        if now >= window.ends {
            window.ends = now + PERIOD;
            window.passed = 0;
        }
        if window.passed < burst {
            window.passed += 1;
            Some(std::mem::take(&mut window.suppressed))
        } else {
            window.suppressed += 1;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_a_handful_of_lines_and_says_how_many_it_left_out() {
        tokio::time::advance(Duration::from_secs(1)).await;
        let clock = Clock::tokio();
        let throttle = Throttle::new();
        let logged = (0..10_000).filter_map(|_| throttle.admit(3, &clock)).count();
        assert_eq!(logged, 3);
        tokio::time::advance(PERIOD).await;
        assert_eq!(throttle.admit(3, &clock), Some(9_997));
        assert_eq!(throttle.admit(3, &clock), Some(0));
    }
}
