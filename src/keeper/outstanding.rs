//! Counts what has still to be finished, and tells when nothing is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Clone, Debug, Default)]
pub(crate) struct Outstanding(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    count: AtomicUsize,
    none_left: Notify,
}

/// Something that has to be finished; finished when this is dropped.
#[derive(Debug)]
pub(crate) struct Unfinished(Arc<Inner>);

impl Outstanding {
    pub(crate) fn begin(&self) -> Unfinished {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        Unfinished(Arc::clone(&self.0))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.count.load(Ordering::Acquire)
    }

    /// Cancel safe.
    pub(crate) async fn none_left(&self) {
        loop {
            let left = self.0.none_left.notified();
            if self.count() == 0 {
                return;
            }
            left.await;
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none_left.notify_waiters();
        }
    }
}
