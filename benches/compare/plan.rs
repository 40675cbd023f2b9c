//! How long to measure, and what.

use std::time::Duration;

/// Read from the environment variable `COMPARE`: words, in any order.
#[derive(Debug)]
pub(crate) struct Plan {
    quick: bool,
    sections: Vec<String>,
}

impl Plan {
    pub(crate) fn from_environment() -> Self {
        let words = std::env::var("COMPARE").unwrap_or_default();
        let (quick, sections): (Vec<_>, Vec<_>) = words
            .split(|c: char| c.is_whitespace() || c == ',')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .partition(|word| word == "quick");
        Self { quick: !quick.is_empty(), sections }
    }

    pub(crate) fn includes(&self, section: &str) -> bool {
        self.sections.is_empty() || self.sections.iter().any(|chosen| chosen == section)
    }

    /// `full` rounds, or three in a quick run.
    pub(crate) fn rounds(&self, full: usize) -> usize {
        if self.quick { full.min(3) } else { full }
    }

    /// `full`, or a third of it in a quick run.
    pub(crate) fn span(&self, full: Duration) -> Duration {
        if self.quick { full / 3 } else { full }
    }

    /// `full` samples, or a quarter of them in a quick run.
    pub(crate) fn samples(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(4) } else { full }
    }
}
