//! Prometheus: the right buckets, and a `/metrics` service.
//!
//! The application installs the recorder; this module only prepares it.
//!
//! ```
//! use metrics_exporter_prometheus::PrometheusBuilder;
//! use tower_redis_lock::telemetry::prometheus::{MetricsService, with_buckets};
//!
//! let recorder = with_buckets(PrometheusBuilder::new())?.build_recorder();
//! let endpoint = MetricsService::new(recorder.handle());
//! metrics::set_global_recorder(recorder)?;
//! // axum: Router::new().route_service("/metrics", endpoint)
//! # drop(endpoint);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::Full;
pub use metrics_exporter_prometheus;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use super::names::BUCKETS;

/// Pause between upkeeps: bounds the memory of samples that nobody has scraped yet.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Sets the bucket edges of this crate's histograms; without them the exporter would make summaries, and
/// quantiles of several instances could not be combined. Other histograms are left alone.
///
/// # Errors
///
/// None that can occur: the edges are not empty.
pub fn with_buckets(mut builder: PrometheusBuilder) -> Result<PrometheusBuilder, BuildError> {
    for (name, edges) in BUCKETS {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), edges)?;
    }
    Ok(builder)
}

/// Runs the exporter's upkeep every five seconds, for ever. Spawn it beside a recorder that was made with
/// `build_recorder` or `install_recorder`: without upkeep, samples pile up until the next scrape.
///
/// # Cancel safety
///
/// Drop it at any time.
pub async fn upkeep(handle: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP_EVERY).await;
        handle.run_upkeep();
    }
}

/// Answers every request with the metrics, in the text format 0.0.4.
#[derive(Clone)]
pub struct MetricsService(PrometheusHandle);

impl MetricsService {
    /// Renders the recorder behind `handle`.
    pub fn new(handle: PrometheusHandle) -> Self {
        Self(handle)
    }
}

impl<B> tower_service::Service<Request<B>> for MetricsService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        let mut response = Response::new(Full::new(Bytes::from(self.0.render())));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
        );
        ready(Ok(response))
    }
}

impl fmt::Debug for MetricsService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsService").finish_non_exhaustive()
    }
}
