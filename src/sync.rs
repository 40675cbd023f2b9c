//! The mutex of the queue: parking_lot's, or shuttle's where its interleavings are explored.

#[cfg(not(tower_lock_shuttle))]
pub(crate) use parking_lot::Mutex;

#[cfg(tower_lock_shuttle)]
pub(crate) use shuttled::Mutex;

#[cfg(tower_lock_shuttle)]
mod shuttled {
    use std::sync::PoisonError;

    use shuttle::sync::MutexGuard;

    /// Like parking_lot's: without poisoning.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
