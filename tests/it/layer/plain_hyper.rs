//! The layer around a service that hyper runs, without a framework.

use http::StatusCode;
use http::request::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tower::service_fn;
use tower_layer::Layer;
use tower_redis_lock::{HeldLock, LockLayer};

use super::{TestBody, by_path};
use crate::doubles::scripted_store::{Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::running::Running;

#[tokio::test(start_paused = true)]
async fn plain_hyper_serves_through_the_layer() {
    let store = ScriptedStore::new();
    let layer = LockLayer::new(locker(store.clone(), quick()), by_path);
    let service = layer.layer(service_fn(|request: Request<Incoming>| async move {
        assert!(request.extensions().get::<HeldLock>().is_some_and(HeldLock::is_held));
        let body = request.into_body().collect().await?.to_bytes();
        Ok::<_, hyper::Error>(http::Response::new(Full::new(body)))
    }));
    let (ours, theirs) = tokio::io::duplex(1024);
    let _server = Running::start(async move {
        let connection = hyper::server::conn::http1::Builder::new();
        connection.serve_connection(TokioIo::new(theirs), TowerToHyperService::new(service)).await
    });
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(ours)).await.unwrap();
    let _connection = Running::start(connection);

    for round in 1..=3 {
        let request: Request<TestBody> = Request::post("/k").body(Full::from("echo")).unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-length"], "4", "the size hint goes through");
        assert!(store.is_free(&key("/k")));
        assert_eq!(store.count(Op::Release), round);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "echo");
    }
    store.rival_takes(&key("/k"));
    let request: Request<TestBody> = Request::post("/k").body(Full::from("echo")).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert!(response.headers().contains_key("content-length"));
}
