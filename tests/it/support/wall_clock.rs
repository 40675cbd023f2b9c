//! A process whose wall clock jumps while its monotonic clock goes on, through libfaketime.

use std::path::PathBuf;

use super::orders_process::Orders;

/// The wall clock of one process.
#[derive(Debug)]
pub(crate) struct WallClock {
    /// Holds the offset, read by the process each time it looks at its clock.
    offset: PathBuf,
}

impl WallClock {
    /// A clock that is right.
    pub(crate) fn new() -> Self {
        let offset = std::env::temp_dir().join(format!("tower-redis-lock-clock-{}", uuid::Uuid::new_v4()));
        let clock = Self { offset };
        clock.jump("+0s");
        clock
    }

    /// Puts a process that is to be started under this clock.
    pub(crate) fn of(&self, orders: Orders) -> Orders {
        let path = |path: PathBuf| path.into_os_string().into_string().expect("a path of text");
        orders
            .env("LD_PRELOAD", &path(library()))
            .env("FAKETIME_TIMESTAMP_FILE", &path(self.offset.clone()))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// Moves it to this offset from the true time, for example `+1h`.
    pub(crate) fn jump(&self, offset: &str) {
        // In one step, for the process may read at any moment.
        let next = self.offset.with_extension("next");
        std::fs::write(&next, format!("{offset}\n")).expect("a writable temporary folder");
        std::fs::rename(next, &self.offset).expect("a writable temporary folder");
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        let _left_to_the_system = std::fs::remove_file(&self.offset);
    }
}

fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut paths = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    paths.find(|path| path.exists()).expect("install libfaketime (apt-get install faketime)")
}
