//! A Prometheus scrape, taken apart.

use std::collections::{BTreeMap, BTreeSet};

/// One line of a scrape: a name, its labels, its value.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// All samples of one scrape.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Vec<Sample>);

impl Metrics {
    /// Takes the text format apart.
    ///
    /// # Panics
    ///
    /// On a line that is not of the format.
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim);
        let samples = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(samples.map(parse_sample).collect())
    }

    /// The value of the one series with this name and exactly these labels beside others.
    ///
    /// # Panics
    ///
    /// When none or several fit.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fitting: Vec<_> = self.fitting(name, labels).collect();
        match fitting[..] {
            [only] => only.value,
            _ => panic!("one series {name}{labels:?} expected, seen: {fitting:?}"),
        }
    }

    /// The sum over all series with this name and these labels beside others; 0 without any.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.fitting(name, labels).map(|sample| sample.value).sum()
    }

    /// The series of this name that are not 0, as `label=value` lists, for messages.
    pub(crate) fn non_zero(&self, name: &str) -> Vec<String> {
        let moved = self.fitting(name, &[]).filter(|sample| sample.value != 0.0);
        moved.map(|sample| format!("{:?} {}", sample.labels, sample.value)).collect()
    }

    /// How many series the scrape has.
    pub(crate) fn series(&self) -> usize {
        let distinct: BTreeSet<_> = self.0.iter().map(|s| (&s.name, &s.labels)).collect();
        distinct.len()
    }

    fn fitting(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |sample| {
            sample.name == name
                && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|has| has == value))
        })
    }
}

fn parse_sample(line: &str) -> Sample {
    let bad = || -> ! { panic!("not a line of a Prometheus scrape: {line:?}") };
    let name_end = line.find(['{', ' ']).unwrap_or_else(|| bad());
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").unwrap_or_else(|| bad());
            let (value, after) = quoted(after).unwrap_or_else(|| bad());
            labels.insert(label.trim().to_owned(), value);
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let number = rest.split_whitespace().next().unwrap_or_else(|| bad());
    let value = number.parse().unwrap_or_else(|_| bad());
    Sample { name: name.to_owned(), labels, value }
}

/// A label value up to its closing quote, and what follows that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    const TEXT: &str = r#"
# HELP a_total Counts.
# TYPE a_total counter
a_total{lock="orders",outcome="acquired"} 3
a_total{lock="orders",outcome="error"} 1 1700000000000
a_total{lock="odd \"}\\\n",outcome="error"} 0.5
plain 7
big_bucket{le="+Inf"} +Inf
"#;

    #[test]
    fn values_are_found_by_name_and_labels() {
        let metrics = Metrics::parse(TEXT);
        assert_eq!(metrics.value("plain", &[]), 7.0);
        assert_eq!(metrics.value("a_total", &[("outcome", "acquired")]), 3.0);
        assert_eq!(metrics.value("a_total", &[("lock", "odd \"}\\\n")]), 0.5);
        assert_eq!(metrics.value("big_bucket", &[("le", "+Inf")]), f64::INFINITY);
        assert_eq!(metrics.sum("a_total", &[("outcome", "error")]), 1.5);
        assert_eq!(metrics.sum("absent", &[]), 0.0);
        assert_eq!(metrics.series(), 5);
        assert_eq!(metrics.non_zero("plain"), ["{} 7"]);
    }

    #[test]
    #[should_panic(expected = "one series")]
    fn a_series_that_is_not_there_is_not_taken_for_zero() {
        Metrics::parse(TEXT).value("a_total", &[("outcome", "contended")]);
    }

    #[test]
    #[should_panic(expected = "not a line")]
    fn a_broken_line_is_refused() {
        Metrics::parse("a_total{lock=\"open");
    }
}
