//! Section D of the field reports: every way out gives the lock back.

use std::time::Instant;

use http::{Method, StatusCode};

use crate::support::eventually::{eventually, ms, secs};
use crate::support::http::{HttpClient, Version};
use crate::support::log_lines::Level;
use crate::support::orders_process::{Orders, RunningOrders, key_of, ship_path};
use crate::support::proxy::Proxy;
use crate::support::raw_http::RawRequest;
use crate::support::redis_server::RedisServer;
use crate::support::running::{Load, Running, ends};
use crate::support::settled::{check_no_orphans, check_settled};

/// A client leaves while its order is being shipped for a minute, under a ttl of 30 s.
async fn leaving_frees_the_key(leave: impl AsyncFnOnce(&RunningOrders, &RedisServer)) {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).start().await;
    leave(&orders, &redis).await;
    redis.until_no_key(&key_of("42"), secs(5)).await;
    orders.ship("42", 0).await.shipped();

    assert_eq!(orders.log().at_least(Level::Warn), [""; 0], "leaving is no trouble");
    check_settled(&orders, Some(2)).await;
    check_no_orphans(&redis, secs(30)).await;
}

// B26
#[tokio::test]
async fn hanging_up_frees_the_key() {
    leaving_frees_the_key(async |orders, redis| {
        let request = RawRequest::send(orders.addr, "POST", &ship_path("42", 60_000)).await;
        redis.until_inside("42").await;
        request.hang_up();
    })
    .await;
}

// B26
#[tokio::test]
async fn a_connection_reset_frees_the_key() {
    leaving_frees_the_key(async |orders, redis| {
        let request = RawRequest::send(orders.addr, "POST", &ship_path("42", 60_000)).await;
        redis.until_inside("42").await;
        request.reset();
    })
    .await;
}

// B26
#[tokio::test]
async fn a_cancelled_http2_stream_frees_the_key() {
    leaving_frees_the_key(async |orders, redis| {
        let http = HttpClient::new(orders.addr, Version::H2);
        let another = http.clone();
        let request = Running::start(async move { another.post(&ship_path("42", 60_000)).await });
        redis.until_inside("42").await;
        drop(request);
        let alive = http.get("/healthz").await;
        assert_eq!(alive.status, StatusCode::OK, "the connection goes on: {alive:?}");
    })
    .await;
}

// B28
#[tokio::test]
async fn a_client_that_closes_its_sending_side_is_gone_without_an_error() {
    leaving_frees_the_key(async |orders, redis| {
        let request = RawRequest::send(orders.addr, "POST", &ship_path("42", 60_000)).await;
        redis.until_inside("42").await;
        assert_eq!(request.close_sending_side().await, "");
    })
    .await;
}

// B30
#[tokio::test]
async fn a_termination_signal_lets_requests_finish_and_gives_every_lock_back() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let mut orders = Orders::at(&proxy.url()).ttl("60s").start().await;
    proxy.delay_commands(ms(50));
    let all: Vec<_> = (0..20).map(|n| orders.start_to_ship(&format!("o{n}"), 1000)).collect();
    eventually("all to be inside", secs(20), async || redis.order_locks().await.len() == 20).await;
    orders.terminate();

    for answer in ends(all).await {
        answer.shipped();
    }
    assert_eq!(orders.wait_exit(secs(30)).await.code(), Some(0), "{:#?}", orders.log().all());
    assert_eq!(redis.order_locks().await, [], "given back, not left to expire");
}

// B30
#[tokio::test]
async fn a_termination_signal_ends_an_idle_process_at_once() {
    let redis = RedisServer::start().await;
    let mut orders = Orders::on(&redis).start().await;
    orders.ship("42", 0).await.shipped();
    orders.terminate();
    assert_eq!(orders.wait_exit(secs(20)).await.code(), Some(0), "{:#?}", orders.log().all());
    check_no_orphans(&redis, secs(30)).await;
}

// B31
#[tokio::test]
async fn kills_at_any_moment_leave_no_lock_for_ever() {
    const KILLS: usize = 10;
    let redis = RedisServer::start().await;
    let monitor = redis.monitor().await;
    for _ in 0..KILLS {
        let mut orders = Orders::on(&redis).ttl("1s").max_wait("200ms").start().await;
        let load = Load::start(&orders.http, 8, |client, round| {
            ship_path(&format!("o{}", client % 5), round as u64 % 4 * 10)
        });
        tokio::time::sleep(ms(fastrand::u64(50..400))).await;
        orders.kill();
        for (key, left) in redis.order_locks().await {
            assert!((0..=1000).contains(&left), "{key} lives {left} ms");
        }
        // Its clients ask a closed port until they are stopped.
        load.stop().await;
    }
    check_no_orphans(&redis, secs(1)).await;
    monitor.catch_up(&redis).await;
    for set in monitor.commands("SET") {
        let words: Vec<_> = set.words.iter().map(|word| word.to_ascii_uppercase()).collect();
        let takes_with_an_expiry = words.contains(&"NX".to_owned()) && words.contains(&"PX".to_owned());
        assert!(takes_with_an_expiry, "{set:?}");
    }
}

// B32
#[tokio::test]
async fn a_release_that_failed_blocks_its_own_process_no_longer_than_others() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let orders = Orders::at(&proxy.url()).ttl("2s").max_wait("20s").start().await;
    let shipping = orders.start_to_ship("42", 400);
    redis.until_inside("42").await;
    proxy.refuse();
    proxy.close_all();
    shipping.end().await.shipped();
    proxy.accept_again();

    orders.ship("42", 0).await.shipped();
    check_settled(&orders, Some(2)).await;
    check_no_orphans(&redis, secs(2)).await;
}

// B33
#[tokio::test]
async fn a_release_that_fails_does_not_replace_the_handlers_answer() {
    for mode in ["before-response", "background"] {
        let mut redis = RedisServer::start().await;
        let orders = Orders::on(&redis).option("--release", mode).start().await;
        let shipping = orders.start_to_ship("42", 400);
        redis.until_inside("42").await;
        redis.kill();

        shipping.end().await.shipped();
        eventually("the failed release to be counted", secs(10), async || {
            orders.releases("error").await == 1.0
        })
        .await;
        assert!(!orders.log().at_least(Level::Warn).is_empty(), "{:#?}", orders.log().all());
        assert_eq!(orders.acquisitions("contended").await, 0.0);
        check_settled(&orders, Some(1)).await;
    }
}

// B34
#[tokio::test]
async fn a_lock_that_is_gone_already_is_not_released_again_and_again() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).notify_on_lost().start().await;
    let shipping = orders.start_to_ship("42", 500);
    redis.until_inside("42").await;
    let monitor = redis.monitor().await;
    let () = redis.command(&["DEL", &key_of("42")]).await;
    shipping.end().await.shipped();

    check_settled(&orders, Some(1)).await;
    monitor.catch_up(&redis).await;
    let scripts = monitor.naming(&key_of("42")).len();
    // The test's DEL, a fencing token, a look at the key, a release: not a series of tries.
    assert!(scripts <= 5, "{:#?}", monitor.naming(&key_of("42")));
}

// B34
#[tokio::test]
async fn a_redis_that_stands_still_at_the_release_delays_the_answer_by_little() {
    for mode in ["before-response", "background"] {
        let mut redis = RedisServer::start().await;
        let orders = Orders::on(&redis).option("--release", mode).start().await;
        let shipping = orders.start_to_ship("42", 500);
        redis.until_inside("42").await;
        redis.pause().await;
        let start = Instant::now();
        shipping.end().await.shipped();
        // 500 ms of work, 500 ms for the command, and generous room for a busy machine.
        assert!(start.elapsed() < secs(6), "{mode}: {:?}", start.elapsed());
        redis.resume();
        check_settled(&orders, Some(1)).await;
        check_no_orphans(&redis, secs(30)).await;
    }
}

// B74
#[tokio::test]
async fn gauges_return_to_zero_after_a_crowd_has_left() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("60s").start().await;
    let mut crowd = Vec::new();
    for n in 0..90 {
        // Ten inside, the others wait for them; a third of all leave while they are sent a body.
        let (method, path) = match n % 3 {
            0 => ("GET", format!("/orders/e{}/export?chunks=1000&chunk_ms=50", n % 5)),
            _ => ("POST", ship_path(&format!("s{}", n % 5), 60_000)),
        };
        crowd.push(RawRequest::send(orders.addr, method, &path).await);
    }
    eventually("all to be waiting or inside", secs(20), async || {
        let metrics = orders.metrics().await;
        metrics.sum("tower_lock_held", &[]) + metrics.sum("tower_lock_waiting", &[]) == 90.0
    })
    .await;
    for (n, request) in crowd.into_iter().enumerate() {
        if n % 2 == 0 { request.hang_up() } else { request.reset() }
    }
    check_settled(&orders, Some(90)).await;
    check_no_orphans(&redis, secs(30)).await;
    orders.ship("42", 0).await.shipped();
}

#[tokio::test]
async fn requests_that_come_during_shutdown_are_not_left_hanging() {
    let redis = RedisServer::start().await;
    let mut orders = Orders::on(&redis).max_wait("60s").start().await;
    let holder = orders.start_to_ship("42", 1500);
    redis.until_inside("42").await;
    let (http, path) = (orders.http.clone(), ship_path("42", 0));
    let waiter = Running::start(async move { http.send(Method::POST, &path).await });
    eventually("the second to wait", secs(10), async || {
        orders.metrics().await.sum("tower_lock_waiting", &[]) == 1.0
    })
    .await;
    orders.terminate();

    holder.end().await.shipped();
    // Shipped after the holder, or told that the service goes down; never silence.
    let answer = waiter.end().await.expect("an answer");
    assert!([StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status), "{answer:?}");
    assert_eq!(orders.wait_exit(secs(30)).await.code(), Some(0), "{:#?}", orders.log().all());
    assert_eq!(redis.order_locks().await, []);
}
