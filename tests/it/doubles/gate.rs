//! A place where work stops until the test lets it go on.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::support::eventually::{secs, within};

/// Clones share the gate.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<Sides>);

#[derive(Debug)]
struct Sides {
    arrived: Semaphore,
    open: Semaphore,
}

impl Gate {
    /// A closed gate.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Sides { arrived: Semaphore::new(0), open: Semaphore::new(0) }))
    }

    /// Says "I am inside", and waits for "go on".
    pub(crate) async fn pass(&self) {
        self.0.arrived.add_permits(1);
        self.0.open.acquire().await.unwrap().forget();
    }

    /// Waits until so many more have arrived.
    pub(crate) async fn until_inside(&self, number: u32) {
        let arrived = within("somebody to arrive at the gate", secs(60), self.0.arrived.acquire_many(number));
        arrived.await.unwrap().forget();
    }

    /// Lets so many go on.
    pub(crate) fn open_for(&self, number: usize) {
        self.0.open.add_permits(number);
    }

    /// How many have arrived that nobody has waited for.
    pub(crate) fn arrived(&self) -> usize {
        self.0.arrived.available_permits()
    }
}
