//! The layer in axum: as `route_layer`, as `layer`, in a `ServiceBuilder`, in nested routers.

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::{Method, Request, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use http_body_util::BodyExt;
use tower::{ServiceBuilder, ServiceExt};
use tower_redis_lock::telemetry::names::BYPASSED;
use tower_redis_lock::{HeldLock, LockLayer, PathTemplate};

use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Op, ScriptedStore};
use crate::doubles::{key, locker, quick};

fn per_order(routes: &[&str]) -> PathTemplate {
    routes.iter().fold(PathTemplate::new("order:{id}").unwrap(), |key, route| key.route(route).unwrap())
}

fn layer(store: &ScriptedStore, routes: &[&str]) -> LockLayer<PathTemplate> {
    LockLayer::new(locker(store.clone(), quick()), per_order(routes))
}

async fn ship(Path(id): Path<String>, Extension(held): Extension<HeldLock>) -> String {
    format!("{id} under {}", held.key())
}

async fn send(app: &Router, method: Method, path: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn as_route_layer_it_locks_the_routes_above_it_only() {
    let store = ScriptedStore::new();
    let app = Router::new()
        .route("/orders/{id}/ship", post(ship))
        .route_layer(layer(&store, &["/orders/{id}/ship"]))
        .route("/orders/{id}", get(|| async { "shown" }));
    let answer = send(&app, Method::POST, "/orders/42/ship").await;
    assert_eq!(answer, (StatusCode::OK, "42 under order:42".to_owned()));
    assert_eq!(store.count(Op::Acquire), 1);
    assert_eq!(send(&app, Method::GET, "/orders/42").await.1, "shown");
    assert_eq!(store.count(Op::Acquire), 1);
    store.rival_takes(&key("order:42"));
    assert_eq!(send(&app, Method::POST, "/orders/42/ship").await.0, StatusCode::CONFLICT);
    assert_eq!(send(&app, Method::POST, "/orders/43/ship").await.0, StatusCode::OK);
}

// B55
#[tokio::test(start_paused = true)]
async fn spellings_that_reach_the_same_handler_share_the_key() {
    let store = ScriptedStore::new();
    let app = Router::new().route("/orders/{id}", post(ship)).route_layer(layer(&store, &["/orders/{id}"]));
    store.rival_takes(&key("order:42"));
    for same in ["/orders/42", "/orders/%34%32", "/orders/42?x=1", "/orders/4%32?"] {
        assert_eq!(send(&app, Method::POST, same).await.0, StatusCode::CONFLICT, "{same}");
    }
    let asked = store.commands();
    for other in
        ["/orders/./42", "/orders/%2e/42", "/orders/x/../42", "/orders//42", "/orders/42/", "/ORDERS/42"]
    {
        assert_eq!(send(&app, Method::POST, other).await.0, StatusCode::NOT_FOUND, "{other}");
    }
    assert_eq!(store.commands(), asked, "what is not matched is not locked");
    let answer = send(&app, Method::POST, "/orders/42;v=1").await;
    assert_eq!(answer, (StatusCode::OK, "42;v=1 under order:42;v=1".to_owned()));
    assert_eq!(send(&app, Method::POST, "/orders/%ff").await.0, StatusCode::BAD_REQUEST);
}

// B64
#[tokio::test(start_paused = true)]
async fn what_is_not_found_or_not_allowed_stays_so_without_a_command() {
    let (store, recorded) = (ScriptedStore::new(), Recorded::start());
    let locks = layer(&store, &["/orders/{id}"]);
    let only_post = locks.clone().methods([Method::POST]);
    let plain = Router::new().route("/orders/{id}", post(ship));
    let apps = [
        plain.clone().layer(only_post.clone()),
        plain.clone().route_layer(only_post),
        Router::new().route("/orders/{id}", post(ship).route_layer(locks)),
    ];
    send(&apps[0], Method::POST, "/orders/1").await;
    let (commands, series) = (store.commands(), recorded.metrics().series());
    for app in &apps {
        for number in 0..100 {
            let path = format!("/nope/{number}");
            assert_eq!(send(app, Method::POST, &path).await, send(&plain, Method::POST, &path).await);
        }
        for method in [Method::DELETE, Method::GET, Method::from_bytes(b"ABC123").unwrap()] {
            let answer = send(app, method.clone(), "/orders/1").await;
            assert_eq!(answer, send(&plain, method, "/orders/1").await);
            assert_eq!(answer.0, StatusCode::METHOD_NOT_ALLOWED);
        }
    }
    assert_eq!(store.commands(), commands);
    assert_eq!(recorded.metrics().series(), series);
    assert!(recorded.sum(BYPASSED, &[]) > 0.0, "the outer layers saw them and let them pass");
}

#[tokio::test(start_paused = true)]
async fn in_nested_routers_the_key_comes_from_the_path_that_the_client_sent() {
    let store = ScriptedStore::new();
    let locks = layer(&store, &["/api/v1/orders/{id}"]);
    let orders = Router::new().route("/{id}", post(ship)).route_layer(locks);
    let v1 = Router::new().nest("/orders", orders);
    let app = Router::new().nest("/api", Router::new().nest("/v1", v1));
    let answer = send(&app, Method::POST, "/api/v1/orders/42").await;
    assert_eq!(answer, (StatusCode::OK, "42 under order:42".to_owned()));
    assert_eq!(store.count(Op::Acquire), 1);
}

// B62
#[tokio::test(start_paused = true)]
async fn an_authentication_outside_of_the_lock_answers_without_a_command() {
    async fn authenticate(request: Request<Body>, next: Next) -> Response {
        if request.headers().contains_key("authorization") {
            next.run(request).await
        } else {
            StatusCode::UNAUTHORIZED.into_response()
        }
    }
    let store = ScriptedStore::new();
    let locks = layer(&store, &["/orders/{id}"]);
    let routes = Router::new().route("/orders/{id}", post(ship));
    // The layer that is added last is the outermost; in a ServiceBuilder it is the first.
    let one_by_one = routes.clone().route_layer(locks.clone()).route_layer(from_fn(authenticate));
    let built = routes.route_layer(ServiceBuilder::new().layer(from_fn(authenticate)).layer(locks));
    for app in [one_by_one, built] {
        let before = store.commands();
        assert_eq!(send(&app, Method::POST, "/orders/42").await.0, StatusCode::UNAUTHORIZED);
        assert_eq!(store.commands(), before);
        let request = Request::post("/orders/42").header("authorization", "yes").body(Body::empty()).unwrap();
        assert_eq!(app.oneshot(request).await.unwrap().status(), StatusCode::OK);
        assert_eq!(store.commands(), before + 2);
    }
}

// B63
#[tokio::test(start_paused = true)]
async fn a_layer_outside_of_the_lock_sees_its_answers_and_preflights_never_lock() {
    async fn allow_origin(request: Request<Body>, next: Next) -> Response {
        let mut response = next.run(request).await;
        response.headers_mut().insert("access-control-allow-origin", "*".parse().unwrap());
        response
    }
    let store = ScriptedStore::new();
    let app = Router::new()
        .route("/orders/{id}", post(ship).options(|| async { "preflight" }))
        .route_layer(layer(&store, &["/orders/{id}"]))
        .layer(from_fn(allow_origin));
    store.rival_takes(&key("order:42"));
    let commands = store.commands();
    assert_eq!(send(&app, Method::OPTIONS, "/orders/42").await.1, "preflight");
    assert_eq!(store.commands(), commands);
    let response = app.oneshot(Request::post("/orders/42").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert_eq!(response.headers()["access-control-allow-origin"], "*");
}

#[tokio::test(start_paused = true)]
async fn the_request_body_reaches_the_handler_byte_for_byte() {
    let store = ScriptedStore::new();
    let echo = |body: Bytes| async move { body };
    let app = Router::new().route("/orders/{id}", post(echo)).route_layer(layer(&store, &["/orders/{id}"]));
    let sent: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let request = Request::post("/orders/42").header("x-kept", "1").body(Body::from(sent.clone())).unwrap();
    let response = app.oneshot(request).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), sent);
}
