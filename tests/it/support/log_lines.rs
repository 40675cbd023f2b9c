//! The lines that a child process writes, readable while it runs.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard};

/// Collects lines on a thread that ends when the other side closes its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogLines(Arc<Mutex<Vec<String>>>);

impl LogLines {
    /// Starts to read `source`.
    pub(crate) fn follow(source: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let writer = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(source).split(b'\n') {
                let Ok(line) = line else { break };
                writer.lock().push(plain(&String::from_utf8_lossy(&line)));
            }
        });
        lines
    }

    /// Everything so far.
    pub(crate) fn all(&self) -> Vec<String> {
        self.lock().clone()
    }

    /// The first line that contains `needle`.
    pub(crate) fn find(&self, needle: &str) -> Option<String> {
        self.lock().iter().find(|line| line.contains(needle)).cloned()
    }

    /// The lines of one `tracing` level or worse, by the level word of the usual text format.
    pub(crate) fn at_least(&self, level: Level) -> Vec<String> {
        let words = level.and_worse();
        let has_level = |line: &&String| line.split_whitespace().take(3).any(|word| words.contains(&word));
        self.lock().iter().filter(has_level).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().expect("no reader panics while it holds the lines")
    }
}

/// When a line was logged, µs since 1970, by the time that `tracing` writes first.
pub(crate) fn logged_at_us(line: &str) -> u64 {
    let time = line.split_whitespace().next().unwrap_or_default();
    let time = humantime::parse_rfc3339(time)
        .unwrap_or_else(|error| panic!("{error}: no time at the start of {line:?}"));
    let since = time.duration_since(std::time::UNIX_EPOCH).expect("a time after 1970");
    u64::try_from(since.as_micros()).expect("a time before the year 500000")
}

/// The levels that tests ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    /// `WARN` and `ERROR`.
    Warn,
    /// `ERROR` alone.
    Error,
}

impl Level {
    fn and_worse(self) -> &'static [&'static str] {
        match self {
            Self::Warn => &["WARN", "ERROR"],
            Self::Error => &["ERROR"],
        }
    }
}

/// The line without its terminal colours.
fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line.trim_end();
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        text.push_str(before);
        rest = after.split_once('m').map_or("", |(_colour, tail)| tail);
    }
    text.push_str(rest);
    text
}

#[test]
fn colours_are_taken_off_and_levels_are_found() {
    let text = "\u{1b}[2m2026\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m lost\nx DEBUG WARNING\nt ERROR down\n";
    let lines = LogLines::follow(std::io::Cursor::new(text));
    while lines.all().len() < 3 {
        std::thread::yield_now();
    }
    assert_eq!(lines.find("lost").as_deref(), Some("2026  WARN lost"));
    assert_eq!(lines.at_least(Level::Warn).len(), 2);
    assert_eq!(lines.at_least(Level::Error), ["t ERROR down"]);
}
