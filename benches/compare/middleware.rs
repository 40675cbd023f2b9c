//! The layer with everything on, against a middleware of one's own with the same two commands.

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tower::ServiceExt;
use tower_redis_lock::telemetry::prometheus::{metrics_exporter_prometheus::PrometheusBuilder, *};
use tower_redis_lock::{LockLayer, PathTemplate};

use crate::peers::{Handwritten, Ours};
use crate::plan::Plan;
use crate::processes;
use crate::report::{Goal, Report, table};
use crate::rounds::{Lane, interleave, warm_up};
use crate::server::{Server, own_cpu};

const TASKS: usize = 64;
const ROUTE: &str = "/orders/{id}/ship";

async fn ship(Path(id): Path<String>) -> String {
    format!("order {id} shipped")
}

pub(crate) async fn ours(url: &str) -> Router {
    let locker = Ours::at(url).await.0;
    let per_order = PathTemplate::new("order:{id}").and_then(|key| key.route(ROUTE)).expect("valid");
    Router::new().route(ROUTE, post(ship)).route_layer(LockLayer::new(locker, per_order))
}

async fn handwritten(server: &Server) -> Router {
    let locks = Handwritten::new(server).await;
    Router::new().route(ROUTE, post(ship)).route_layer(from_fn_with_state(locks, lock_by_hand))
}

async fn lock_by_hand(
    State(locks): State<Handwritten>,
    Path(id): Path<String>,
    request: Request,
    next: Next,
) -> Response {
    let key = format!("handwritten:order:{id}");
    let Some(token) = locks.try_take(&key).await else {
        return StatusCode::CONFLICT.into_response();
    };
    let response = next.run(request).await;
    locks.release(&key, &token).await;
    response
}

pub(crate) fn install_recorder() {
    let recorder = with_buckets(PrometheusBuilder::new()).expect("buckets").build_recorder();
    tokio::spawn(upkeep(recorder.handle()));
    metrics::set_global_recorder(recorder).expect("no other recorder");
}

#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    /// Microseconds of processor time per request.
    pub(crate) own_cpu: f64,
}

pub(crate) async fn run(app: &Router, span: Duration) -> Sample {
    let cpu = own_cpu();
    let start = Instant::now();
    let workers: Vec<_> = (0..TASKS)
        .map(|task| {
            let app = app.clone();
            tokio::spawn(async move {
                let uri = format!("/orders/{task}/ship");
                let mut requests = 0_u32;
                while start.elapsed() < span {
                    let request = Request::post(&uri).body(Body::empty()).expect("a request");
                    let response = app.clone().oneshot(request).await.expect("never fails");
                    assert_eq!(response.status(), StatusCode::OK);
                    let body = to_bytes(response.into_body(), 1024).await.expect("a short body");
                    assert!(body.ends_with(b"shipped"));
                    requests += 1;
                }
                requests
            })
        })
        .collect();
    let mut requests = 0;
    for worker in workers {
        requests += worker.await.expect("a task ends");
    }
    Sample {
        per_second: f64::from(requests) / start.elapsed().as_secs_f64(),
        own_cpu: (own_cpu() - cpu).as_secs_f64() * 1e6 / f64::from(requests),
    }
}

pub(crate) async fn measure(server: &Server, plan: &Plan, report: &mut Report) {
    processes::measure_metrics(server, plan, report).await;

    install_recorder();
    let ours = &ours(&server.url()).await;
    let handwritten = &handwritten(server).await;
    let span = plan.span(Duration::from_millis(400));
    let mut lanes =
        [Lane::new("ours", || run(ours, span)), Lane::new("handwritten", || run(handwritten, span))];
    warm_up(&lanes).await;
    interleave(&mut lanes, plan.rounds(15)).await;
    table(
        "axum in process, 64 tasks, 64 orders, recorder installed",
        &lanes,
        &[("requests per second", &|sample| sample.per_second), ("own us", &|sample| sample.own_cpu)],
    );
    let [ours, handwritten] = lanes.map(|lane| lane.median(|sample| sample.per_second));
    report.ratio("middleware_vs_handwritten", ours, handwritten, Goal::AtLeast(0.95));
}
