//! The layer's own answers, as a client sees them.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;
use tower_redis_lock::store::{OwnerToken, StoreErrorKind};
use tower_redis_lock::{LockKey, LockLayer, LockSettingsBuilder, Rejection};

use super::{Answer, TestBody, by_path, done, post, send};
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::doubles::{key, locker, quick};
use crate::support::eventually::{ms, secs};

const PATH: &str = "/secret-orders/42";

/// The answer of a layer over a store in some state.
async fn answer_of(
    prepare: impl FnOnce(&ScriptedStore),
    settings: LockSettingsBuilder,
    request: Request<TestBody>,
) -> Answer {
    let store = ScriptedStore::new();
    prepare(&store);
    let layer = LockLayer::new(locker(store, settings), by_path);
    send(&layer.layer(service_fn(|_: Request<TestBody>| async { done() })), request).await
}

fn taken(store: &ScriptedStore) {
    store.rival_takes(&key(PATH));
}

fn down(store: &ScriptedStore) {
    store.always(Op::Acquire, Act::Fail(StoreErrorKind::Connect));
}

fn grpc(content_type: &'static str) -> Request<TestBody> {
    let mut request = post(PATH);
    request.headers_mut().insert(CONTENT_TYPE, content_type.parse().unwrap());
    request
}

#[tokio::test(start_paused = true)]
async fn refusals_are_problem_documents_that_no_cache_keeps_and_that_tell_no_secret() {
    for (prepare, status, slug) in
        [(taken as fn(&ScriptedStore), 409, "contended"), (down, 503, "store-unavailable")]
    {
        let answer = answer_of(prepare, quick(), post(PATH)).await;
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(answer.headers[CONTENT_TYPE], "application/problem+json");
        assert_eq!(answer.headers[CACHE_CONTROL], "no-store");
        assert!(answer.headers.contains_key(RETRY_AFTER));
        let problem: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(problem["type"], format!("urn:tower-redis-lock:{slug}"));
        assert_eq!(problem["status"], status);
        let all = format!("{} {:?}", answer.text, answer.headers);
        assert!(!all.contains("secret") && !all.contains("script"), "{all}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_what_the_holder_has_left_in_whole_seconds_within_one_and_the_ttl() {
    // The rival holds for 60 s.
    for (ttl_secs, passed, expected) in [
        (120, ms(0), "60"),
        (120, ms(1), "60"),
        (120, ms(1000), "59"),
        (3, ms(0), "3"),
        (3, ms(58_500), "2"),
        (3, ms(59_999), "1"),
    ] {
        let store = ScriptedStore::new();
        taken(&store);
        tokio::time::sleep(passed).await;
        let settings = quick().ttl(secs(ttl_secs));
        let layer = LockLayer::new(locker(store, settings), by_path);
        let service = layer.layer(service_fn(|_: Request<TestBody>| async { done() }));
        let answer = send(&service, post(PATH)).await;
        assert_eq!(answer.headers[RETRY_AFTER], expected, "ttl {ttl_secs} s, after {passed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_typed_reason_is_in_the_extensions_for_outer_layers() {
    let answer = answer_of(taken, quick(), post(PATH)).await;
    assert!(matches!(answer.rejection, Some(Rejection::Contended { retry_after }) if retry_after == secs(3)));
    let answer = answer_of(down, quick(), post(PATH)).await;
    assert!(matches!(answer.rejection, Some(Rejection::StoreUnavailable { kind: StoreErrorKind::Connect })));
    let answer = answer_of(|_| (), quick(), post(PATH)).await;
    assert!(answer.rejection.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_closure_makes_other_answers_and_the_typed_reason_stays() {
    let store = ScriptedStore::new();
    taken(&store);
    let layer = LockLayer::new(locker(store.clone(), quick()), by_path).on_rejection(|rejection| {
        let mut response = Response::new(Bytes::from(format!("busy: {}", rejection.slug())));
        *response.status_mut() = StatusCode::LOCKED;
        response.headers_mut().insert("x-mine", "1".parse().unwrap());
        response
    });
    let service = layer.layer(service_fn(|_: Request<TestBody>| async { done() }));
    for request in [post(PATH), grpc("application/grpc")] {
        let answer = send(&service, request).await;
        assert_eq!((answer.status, &*answer.text), (StatusCode::LOCKED, "busy: contended"));
        assert!(answer.headers.contains_key("x-mine"));
        assert!(matches!(answer.rejection, Some(Rejection::Contended { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn grpc_clients_get_a_status_of_their_protocol() {
    for content_type in ["application/grpc", "application/grpc+proto"] {
        for (prepare, code) in [(taken as fn(&ScriptedStore), "10"), (down, "14")] {
            let answer = answer_of(prepare, quick(), grpc(content_type)).await;
            assert_eq!(answer.status, StatusCode::OK);
            assert_eq!(answer.headers["grpc-status"], code);
            assert_eq!(answer.headers[CONTENT_TYPE], "application/grpc");
            assert!(answer.headers.contains_key("grpc-message"));
            assert_eq!(answer.text, "");
            assert!(answer.rejection.is_some());
        }
    }
    let json = answer_of(taken, quick(), grpc("application/json")).await;
    assert_eq!(json.status, StatusCode::CONFLICT);
}

// B58
#[tokio::test(start_paused = true)]
async fn odd_keys_reach_the_store_as_they_are_and_never_the_answer() {
    let store = ScriptedStore::new();
    let locker = locker(store.clone(), quick());
    let service =
        LockLayer::new(locker, |parts: &Parts| LockKey::from_parts([parts.headers["x-name"].as_bytes()]))
            .layer(service_fn(|_: Request<TestBody>| async { done() }));
    let long = "x".repeat(60 * 1024);
    for name in ["\u{1f512}\u{202e}", "a b", "{a}", long.as_str()] {
        let mut request = post(PATH);
        request.headers_mut().insert("x-name", http::HeaderValue::from_bytes(name.as_bytes()).unwrap());
        let locked = LockKey::from_parts([name]).unwrap();
        assert!(locked.as_bytes().len() <= 400, "bounded");
        let rival: OwnerToken = store.rival_takes(&locked);
        let answer = send(&service, request.clone()).await;
        assert_eq!(answer.status, StatusCode::CONFLICT);
        assert!(answer.headers.values().all(|value| value.as_bytes().is_ascii() && value.len() < 100));
        store.free_as(&locked, &rival);
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), StatusCode::OK);
    }
}
