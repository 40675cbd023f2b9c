//! The routes: shipping and exporting are locked by order, looking is not.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Path, Query};
use axum::http::Method;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use serde::{Deserialize, Serialize};
use tower_redis_lock::telemetry::prometheus::{
    MetricsService, metrics_exporter_prometheus::PrometheusHandle,
};
use tower_redis_lock::{
    FencingError, HeldLock, LockLayer, Locker, LostReason, PathTemplate, Rejection, TemplateError,
};

pub(crate) fn router(locker: Locker, metrics: PrometheusHandle) -> Result<Router, TemplateError> {
    let per_order =
        PathTemplate::new("order:{id}")?.route("/orders/{id}/ship")?.route("/orders/{id}/export")?;
    Ok(Router::new()
        .route("/orders/{id}/ship", post(ship))
        .route("/orders/{id}/export", get(export))
        // Other methods are answered with 405, and need no lock for that.
        .route_layer(LockLayer::new(locker, per_order).methods([Method::GET, Method::HEAD, Method::POST]))
        // Added after the layer: not locked.
        .route("/orders/{id}", get(show))
        .route("/healthz", get(|| async { "ok" }))
        .route_service("/metrics", MetricsService::new(metrics)))
}

#[derive(Deserialize)]
struct Work {
    #[serde(default)]
    work_ms: u64,
    #[serde(default)]
    block_ms: u64,
}

#[derive(Serialize)]
struct Shipment {
    order: String,
    /// Absent if the handler ran without the lock.
    fencing_token: Option<u64>,
    instance: u32,
    started_at_us: u64,
    finished_at_us: u64,
}

async fn ship(
    Path(order): Path<String>,
    Query(work): Query<Work>,
    held: Option<Extension<HeldLock>>,
) -> Result<Json<Shipment>, Response> {
    let started_at_us = now_us();
    let fencing_token = match held {
        Some(Extension(held)) => Some(held.fencing_token().await.map_err(|error| refusal(&held, &error))?),
        None => None,
    };
    tokio::time::sleep(Duration::from_millis(work.work_ms)).await;
    if work.block_ms > 0 {
        std::thread::sleep(Duration::from_millis(work.block_ms));
    }
    let instance = std::process::id();
    Ok(Json(Shipment { order, fencing_token, instance, started_at_us, finished_at_us: now_us() }))
}

/// Answers as the layer would have, had it known.
fn refusal(held: &HeldLock, error: &FencingError) -> Response {
    let rejection = match error {
        FencingError::Store(error) => Rejection::StoreUnavailable { kind: error.kind() },
        _ => Rejection::LockLost(held.lost_reason().unwrap_or(LostReason::TakenOver)),
    };
    rejection.to_response().map(Body::from)
}

#[derive(Deserialize)]
struct Export {
    #[serde(default = "six")]
    chunks: u32,
    #[serde(default = "half_a_second")]
    chunk_ms: u64,
}

fn six() -> u32 {
    6
}

fn half_a_second() -> u64 {
    500
}

async fn export(Path(order): Path<String>, Query(export): Query<Export>) -> Body {
    let pause = Duration::from_millis(export.chunk_ms);
    Body::new(StreamBody::new(futures_util::stream::unfold(0, move |line| {
        let text = format!("order {order} line {line}\n");
        async move {
            if line >= export.chunks {
                return None;
            }
            tokio::time::sleep(pause).await;
            Some((Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(text))), line + 1))
        }
    })))
}

async fn show(Path(order): Path<String>) -> String {
    format!("order {order}\n")
}

fn now_us() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}
