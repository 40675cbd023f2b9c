//! The metrics of one test: a recorder that only its thread sees.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tower_redis_lock::metrics::{self, LocalRecorderGuard};
use tower_redis_lock::telemetry::names::{ACQUISITIONS, HELD, RELEASES, WAITING};
use tower_redis_lock::telemetry::prometheus::with_buckets;

use crate::support::eventually::{eventually, secs};
use crate::support::metrics_text::Metrics;

/// Records everything on this thread until it is dropped. For lockers whose keeper is a task.
pub(crate) struct Recorded {
    handle: PrometheusHandle,
    _recording: LocalRecorderGuard<'static>,
}

impl Recorded {
    /// Starts to record.
    pub(crate) fn start() -> Self {
        let recorder = with_buckets(PrometheusBuilder::new()).unwrap().build_recorder();
        let handle = recorder.handle();
        // Left behind, so that no two recorders have one address.
        let recorder = Box::leak(Box::new(recorder));
        Self { handle, _recording: metrics::set_default_local_recorder(recorder) }
    }

    /// The scrape.
    pub(crate) fn text(&self) -> String {
        self.handle.render()
    }

    /// The scrape, taken apart.
    pub(crate) fn metrics(&self) -> Metrics {
        Metrics::parse(&self.text())
    }

    /// The sum of all series with this name and these labels beside others.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        // Tests ask often, and a scrape is long.
        let text = self.text();
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with(name)).collect();
        Metrics::parse(&lines.join("\n")).sum(name, labels)
    }

    /// How many acquisitions had an outcome.
    pub(crate) fn acquisitions(&self, outcome: &str) -> f64 {
        self.sum(ACQUISITIONS, &[("outcome", outcome)])
    }

    /// How many grants had an end.
    pub(crate) fn releases(&self, outcome: &str) -> f64 {
        self.sum(RELEASES, &[("outcome", outcome)])
    }

    /// Asserts that nothing is left over: nobody waits, nothing is held, each acquisition was counted once
    /// and each grant has ended once.
    pub(crate) async fn check_settled(&self, acquisitions: usize) {
        for gauge in [HELD, WAITING] {
            eventually(&format!("{gauge} to be 0"), secs(10), async || self.sum(gauge, &[]) == 0.0).await;
        }
        let metrics = self.metrics();
        for gauge in [HELD, WAITING] {
            assert!(metrics.non_zero(gauge).is_empty(), "{:?}", metrics.non_zero(gauge));
        }
        let counted = metrics.sum(ACQUISITIONS, &[]);
        assert_eq!(counted, acquisitions as f64, "{:?}", metrics.non_zero(ACQUISITIONS));
        let granted = metrics.sum(ACQUISITIONS, &[("outcome", "acquired")]);
        assert_eq!(metrics.sum(RELEASES, &[]), granted, "{:?}", metrics.non_zero(RELEASES));
    }
}
