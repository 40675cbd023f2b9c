//! Section C of the field reports: acquiring, waiting, unclear results.

use std::time::Instant;

use crate::support::eventually::{eventually, ms, secs};
use crate::support::http::{HttpClient, Refusal, Version};
use crate::support::log_lines::Level;
use crate::support::orders_process::{Orders, RunningOrders, key_of, ship_path};
use crate::support::overlap::check_exclusive;
use crate::support::proxy::Proxy;
use crate::support::raw_http::RawRequest;
use crate::support::redis_server::RedisServer;
use crate::support::running::{Running, ends};
use crate::support::settled::{check_no_orphans, check_settled};

async fn until_waiting(orders: &RunningOrders, requests: f64) {
    eventually(&format!("{requests} requests to wait"), secs(20), async || {
        orders.metrics().await.sum("tower_lock_waiting", &[]) == requests
    })
    .await;
}

/// A request meets a Redis that takes everything and answers nothing, then a healthy one.
async fn check_recovery(orders: &RunningOrders, hang: impl AsyncFnOnce(), heal: impl AsyncFnOnce()) {
    orders.ship("42", 0).await.shipped();
    hang().await;
    let start = Instant::now();
    orders.ship("42", 0).await.refused(Refusal::StoreUnavailable);
    // 300 ms to wait and 500 ms for a command, and generous room for a busy machine.
    assert!(start.elapsed() < secs(8), "{:?}", start.elapsed());
    heal().await;
    orders.ship("42", 0).await.shipped();
    check_settled(orders, Some(3)).await;
}

// B18
#[tokio::test]
async fn a_redis_that_stands_still_does_not_hang_the_request() {
    let redis = tokio::sync::Mutex::new(RedisServer::start().await);
    let orders = Orders::on(&*redis.lock().await).max_wait("300ms").start().await;
    let hang = async || redis.lock().await.pause().await;
    check_recovery(&orders, hang, async || redis.lock().await.resume()).await;
    check_no_orphans(&*redis.lock().await, secs(30)).await;
}

// B18
#[tokio::test]
async fn a_connection_that_is_half_open_does_not_hang_the_request() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let orders = Orders::at(&proxy.url()).max_wait("300ms").start().await;
    check_recovery(&orders, async || proxy.freeze(), async || proxy.unfreeze()).await;
    check_no_orphans(&redis, secs(30)).await;
}

// B18
#[tokio::test]
async fn a_listener_that_never_speaks_does_not_hang_the_request() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let orders = Orders::at(&proxy.url()).max_wait("300ms").start().await;
    let hang = async || {
        proxy.freeze();
        proxy.close_all();
    };
    check_recovery(&orders, hang, async || proxy.unfreeze()).await;
    check_no_orphans(&redis, secs(30)).await;
}

// B19
#[tokio::test]
async fn a_waiter_that_hangs_up_stops_asking() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("60s").start().await;
    redis.rival_takes(&key_of("42")).await;
    let waiter = RawRequest::send(orders.addr, "POST", &ship_path("42", 0)).await;
    until_waiting(&orders, 1.0).await;
    waiter.hang_up();
    eventually("the hang-up to be counted", secs(10), async || orders.acquisitions("cancelled").await == 1.0)
        .await;
    let monitor = redis.monitor().await;
    tokio::time::sleep(ms(1200)).await;
    assert_eq!(monitor.naming(&key_of("42")), [], "nobody waits any more");

    check_settled(&orders, Some(1)).await;
}

// B20
#[tokio::test]
async fn contention_outage_and_cancellation_are_told_apart() {
    let mut redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("1s").start().await;
    redis.rival_takes(&key_of("42")).await;
    orders.ship("42", 0).await.refused(Refusal::Contended);

    let waiter = RawRequest::send(orders.addr, "POST", &ship_path("42", 0)).await;
    until_waiting(&orders, 1.0).await;
    waiter.hang_up();
    eventually("the hang-up to be seen", secs(10), async || orders.acquisitions("cancelled").await == 1.0)
        .await;

    redis.kill();
    orders.ship("42", 0).await.refused(Refusal::StoreUnavailable);
    assert_eq!(orders.acquisitions("contended").await, 1.0);
    assert_eq!(orders.acquisitions("error").await, 1.0);
    check_settled(&orders, Some(3)).await;
}

// B20
#[tokio::test]
async fn a_redis_that_dies_while_others_hold_the_lock_is_an_outage_not_contention() {
    let mut redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("2s").start().await;
    redis.rival_takes(&key_of("42")).await;
    let waiting = orders.start_to_ship("42", 0);
    eventually("the first attempt to find the rival", secs(10), async || {
        orders.metrics().await.sum("tower_lock_contention_total", &[]) == 1.0
    })
    .await;
    redis.kill();

    waiting.end().await.refused(Refusal::StoreUnavailable);
    check_settled(&orders, Some(1)).await;
}

// B22
#[tokio::test]
async fn one_attempt_is_one_attempt() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("0s").start().await;
    redis.rival_takes(&key_of("42")).await;
    let monitor = redis.monitor().await;
    orders.ship("42", 0).await.refused(Refusal::Contended);

    monitor.catch_up(&redis).await;
    assert_eq!(monitor.commands_on("SET", &key_of("42")).len(), 1);
    assert_eq!(orders.metric("tower_lock_acquire_attempts_sum", &[]).await, 1.0);
    check_settled(&orders, Some(1)).await;
}

// B23
#[tokio::test]
async fn waiters_do_not_knock_in_step() {
    const WAITERS: usize = 200;
    let redis = RedisServer::start().await;
    let instances =
        [Orders::on(&redis).max_wait("30s").start().await, Orders::on(&redis).max_wait("30s").start().await];
    redis.rival_takes(&key_of("42")).await;
    let monitor = redis.monitor().await;
    let all = (0..WAITERS).map(|n| instances[n % 2].start_to_ship("42", 0)).collect();
    tokio::time::sleep(secs(3)).await;
    monitor.catch_up(&redis).await;
    let knocks = monitor.naming(&key_of("42"));
    let () = redis.command(&["DEL", &key_of("42")]).await;
    let holdings: Vec<_> = ends(all).await.iter().map(|answer| answer.shipped()).collect();
    check_exclusive(&holdings);

    let first = knocks.first().expect("somebody knocked").at_us;
    let mut in_10_ms = std::collections::BTreeMap::new();
    // They came together; what counts is whether they stay together.
    for knock in knocks.iter().filter(|knock| knock.at_us > first + 1_000_000) {
        *in_10_ms.entry(knock.at_us / 10_000).or_insert(0) += 1;
    }
    let most = in_10_ms.values().max().copied().unwrap_or_default();
    assert!(most < WAITERS / 4, "{most} of {WAITERS} knocked within 10 ms");
    for orders in &instances {
        check_settled(orders, Some(WAITERS as u64 / 2)).await;
    }
    check_no_orphans(&redis, secs(30)).await;
}

// B24, B84
#[tokio::test]
async fn every_living_waiter_gets_its_turn() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("20s").start().await;
    let holder = orders.start_to_ship("42", 1000);
    redis.until_key(&key_of("42")).await;
    let living: Vec<_> = (0..15).map(|_| orders.start_to_ship("42", 20)).collect();
    let mut dying = Vec::new();
    for _ in 0..5 {
        dying.push(RawRequest::send(orders.addr, "POST", &ship_path("42", 20)).await);
    }
    until_waiting(&orders, 20.0).await;
    dying.into_iter().for_each(RawRequest::reset);

    let mut holdings = vec![holder.end().await.shipped()];
    // Nobody waits for the ttl of 30 s: the budget is 20 s.
    holdings.extend(ends(living).await.iter().map(|answer| answer.shipped()));
    check_exclusive(&holdings);
    assert_eq!(orders.acquisitions("cancelled").await, 5.0);
    assert_eq!(orders.acquisitions("contended").await, 0.0);
    assert!(orders.metric("tower_lock_contention_total", &[]).await >= 1.0);
    check_settled(&orders, Some(21)).await;
    check_no_orphans(&redis, secs(30)).await;
}

// B25
#[tokio::test]
async fn each_waits_as_long_as_it_was_told_to() {
    let redis = RedisServer::start().await;
    let start = |wait: &'static str| Orders::on(&redis).max_wait(wait).start();
    let (none, short, long) = tokio::join!(start("0s"), start("200ms"), start("30s"));
    let holder = long.start_to_ship("42", 1500);
    redis.until_key(&key_of("42")).await;
    let begin = Instant::now();
    let (patient, brief) = (long.start_to_ship("42", 0), short.start_to_ship("42", 0));
    none.ship("42", 0).await.refused(Refusal::Contended);
    brief.end().await.refused(Refusal::Contended);
    assert!(begin.elapsed() >= ms(200), "gave up after {:?}", begin.elapsed());

    check_exclusive(&[holder.end().await.shipped(), patient.end().await.shipped()]);
    check_settled(&none, Some(1)).await;
    check_settled(&short, Some(1)).await;
    check_settled(&long, Some(2)).await;
    check_no_orphans(&redis, secs(30)).await;
}

#[tokio::test]
async fn an_acquisition_whose_reply_was_lost_recognises_its_own_lock() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let orders = Orders::at(&proxy.url()).max_wait("5s").start().await;
    proxy.swallow_replies_to("SET", 1);
    orders.ship("42", 0).await.shipped();

    assert!(proxy.has_swallowed_all());
    assert_eq!(orders.acquisitions("acquired").await, 1.0);
    assert_eq!(orders.releases("released").await, 1.0);
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, secs(30)).await;
}

#[tokio::test]
async fn an_acquisition_that_never_learns_its_result_is_an_outage_and_leaves_no_key() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let orders = Orders::at(&proxy.url()).max_wait("0s").start().await;
    proxy.swallow_replies_to("SET", 1);
    orders.ship("42", 0).await.refused(Refusal::StoreUnavailable);
    assert!(proxy.has_swallowed_all());
    // Long before its ttl of 30 s.
    redis.until_no_key(&key_of("42"), secs(5)).await;

    eventually("one line on the outage", secs(5), async || orders.log().at_least(Level::Error).len() == 1)
        .await;
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, secs(30)).await;
}

#[tokio::test]
async fn a_client_that_leaves_with_the_command_on_the_wire_leaves_no_key() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let orders = Orders::at(&proxy.url()).start().await;
    proxy.delay_commands(ms(150));
    proxy.delay_replies(ms(150));
    for (number, stay) in [0, 50, 100, 160, 220, 290, 310, 400].into_iter().enumerate() {
        let path = ship_path(&format!("o{number}"), 60_000);
        let request = RawRequest::send(orders.addr, "POST", &path).await;
        tokio::time::sleep(ms(stay)).await;
        if number % 2 == 0 {
            request.hang_up()
        } else {
            request.reset()
        }

        let http = HttpClient::new(orders.addr, Version::H2);
        let path = ship_path(&format!("stream{number}"), 60_000);
        let stream = Running::start(async move { http.post(&path).await });
        tokio::time::sleep(ms(stay)).await;
        drop(stream);
    }
    proxy.delay_commands(ms(0));
    proxy.delay_replies(ms(0));
    // Long before their ttl of 30 s.
    eventually("all keys to be gone", secs(8), async || {
        redis.order_locks().await.is_empty() && orders.metrics().await.sum("tower_lock_waiting", &[]) == 0.0
    })
    .await;
    check_settled(&orders, None).await;
    check_no_orphans(&redis, secs(30)).await;
}
