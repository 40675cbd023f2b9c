//! Handles of series that every lock counts in, kept from event to event.
//!
//! Looking a series up costs more than counting in it: a list of labels, a hash, a lock. A kept handle is
//! looked up anew when another recorder is installed, and when it was not used for a while: a recorder that
//! drops idle series would never show again what is counted in the handle of a dropped one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

use super::registration::current_recorder;
use crate::clock::Moment;

/// Far below any sensible idle time-out of a recorder; where events are further apart, a look-up each is no
/// load.
const FRESH: Duration = Duration::from_millis(20);
/// How exactly the last use is remembered; writing it down every time would cost more than it saves.
const GRAIN: Duration = Duration::from_millis(5);

pub(super) struct Kept<H>(RwLock<Option<Found<H>>>);

struct Found<H> {
    handle: H,
    recorder: usize,
    used: AtomicU64,
}

impl<H> Kept<H> {
    /// Counts with the kept handle, or with the one that `look_up` gets from the recorder.
    pub(super) fn with<T>(&self, now: Moment, look_up: impl FnOnce() -> H, count: impl FnOnce(&H) -> T) -> T {
        let recorder = current_recorder();
        if let Some(Found { handle, used, .. }) =
            self.0.read().as_ref().filter(|found| found.recorder == recorder)
        {
            let unused = now.since(Moment(used.load(Ordering::Relaxed)));
            if unused < FRESH {
                if unused >= GRAIN {
                    used.store(now.0, Ordering::Relaxed);
                }
                return count(handle);
            }
        }
        let handle = look_up();
        let result = count(&handle);
        *self.0.write() = Some(Found { handle, recorder, used: AtomicU64::new(now.0) });
        result
    }
}

impl<H> Default for Kept<H> {
    fn default() -> Self {
        Self(RwLock::new(None))
    }
}

impl<H> fmt::Debug for Kept<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use metrics::{Counter, NoopRecorder, counter, with_local_recorder};
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;

    fn count(kept: &Kept<Counter>, now: Moment) {
        kept.with(now, || counter!("events"), |counter| counter.increment(1));
    }

    fn counted(recorder: &DebuggingRecorder) -> u64 {
        let series = recorder.snapshotter().snapshot().into_vec();
        series.iter().map(|(.., value)| if let DebugValue::Counter(count) = value { *count } else { 0 }).sum()
    }

    #[test]
    fn a_recorder_that_is_installed_later_or_in_place_of_another_gets_the_events_that_come_after() {
        let kept = Kept::default();
        count(&kept, Moment(0));
        with_local_recorder(&NoopRecorder, || count(&kept, Moment(0)));
        let recorders = [DebuggingRecorder::new(), DebuggingRecorder::new()];
        for recorder in &recorders {
            with_local_recorder(recorder, || (0..3).for_each(|_| count(&kept, Moment(0))));
        }
        assert_eq!(recorders.each_ref().map(counted), [3, 3]);
    }

    #[test]
    fn a_handle_is_looked_up_once_while_it_is_used_and_again_after_a_pause() {
        let kept = Kept::default();
        let looked_up = Cell::new(0);
        let mut now = Moment(0);
        let mut use_after = |pause| {
            now = now + pause;
            kept.with(now, || looked_up.set(looked_up.get() + 1), |()| ());
            looked_up.get()
        };
        for _ in 0..10 {
            assert_eq!(use_after(FRESH / 2), 1);
        }
        assert_eq!(use_after(FRESH), 2);
    }
}
