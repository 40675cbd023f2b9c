//! Section A of the field reports: whose lock is it, and for how long?

use std::collections::BTreeSet;

use crate::support::eventually::{ms, secs};
use crate::support::http::HttpClient;
use crate::support::http::Version;
use crate::support::log_lines::Level;
use crate::support::orders_process::{Orders, key_of, ship_path};
use crate::support::proxy::Proxy;
use crate::support::redis_monitor::PttlSamples;
use crate::support::redis_server::{RIVAL, RedisServer};
use crate::support::running::{Running, ends};
use crate::support::settled::{check_lost, check_no_orphans, check_settled};
use crate::support::wall_clock::WallClock;

// B01
#[tokio::test]
async fn a_holder_that_only_wants_to_be_told_finishes_without_touching_the_rivals_lock() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1s").notify_on_lost().start().await;
    let key = key_of("42");
    let shipping = orders.start_to_ship("42", 2000);
    redis.until_inside("42").await;
    let () = redis.command(&["DEL", &key]).await;
    redis.rival_takes(&key).await;

    shipping.end().await.shipped();
    assert_eq!(redis.get(&key).await.as_deref(), Some(RIVAL));
    check_lost(&orders, &["taken_over"]).await;
    assert_eq!(orders.releases("released").await, 0.0);
    assert_eq!(orders.log().at_least(Level::Warn).len(), 1, "{:#?}", orders.log().all());
    check_settled(&orders, Some(1)).await;
}

// B01
#[tokio::test]
async fn a_release_that_arrives_after_the_rivals_set_deletes_nothing() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let orders = Orders::at(&proxy.url()).start().await;
    let key = key_of("42");
    let http = orders.http.clone();
    // An export asks for no fencing token, so its release is the only command after the SET.
    let export = Running::start(async move { http.get("/orders/42/export?chunks=1&chunk_ms=150").await });
    redis.until_key(&key).await;
    proxy.delay_commands(ms(300));
    let () = redis.command(&["DEL", &key]).await;
    redis.rival_takes(&key).await;

    assert_eq!(export.end().await.status, http::StatusCode::OK);
    check_settled(&orders, Some(1)).await;
    assert_eq!(
        orders.releases("not_owned").await,
        1.0,
        "{:?}",
        orders.metrics().await.non_zero("tower_lock_releases_total")
    );
    assert_eq!(redis.get(&key).await.as_deref(), Some(RIVAL));
}

/// The first holder's lock is deleted; it goes on, and a second one comes.
async fn check_that_a_deleted_lock_stays_deleted(redis: &RedisServer, url: &str) {
    let orders = Orders::at(url).ttl("1s").max_wait("0s").notify_on_lost().start().await;
    let key = key_of("42");
    let first = orders.start_to_ship("42", 3000);
    redis.until_inside("42").await;
    tokio::time::sleep(ms(200)).await;
    let () = redis.command(&["DEL", &key]).await;
    let samples = PttlSamples::of(redis, &key, ms(20)).await;
    check_lost(&orders, &["deleted"]).await;
    tokio::time::sleep(ms(700)).await;
    let seen = samples.take();
    assert!(seen.iter().all(|left| *left == -2), "the key came back: {seen:?}");
    let second = orders.ship("42", 0).await.shipped();

    let first = first.end().await.shipped();
    assert!(second.start_us < first.end_us, "the second did not wait for the first");
    assert!(second.fencing_token > first.fencing_token, "{first:?} {second:?}");
    check_lost(&orders, &["deleted"]).await;
    check_settled(&orders, Some(2)).await;
    check_no_orphans(redis, secs(1)).await;
}

// B02
#[tokio::test]
async fn a_deleted_lock_is_not_brought_back_to_life() {
    let redis = RedisServer::start().await;
    check_that_a_deleted_lock_stays_deleted(&redis, &redis.url()).await;
}

// B02
#[tokio::test]
async fn a_deleted_lock_that_nobody_watched_is_not_brought_back_to_life_by_its_renewal() {
    let redis = RedisServer::start().await;
    let url = redis.url_without_tracking().await;
    check_that_a_deleted_lock_stays_deleted(&redis, &url).await;
}

// B03
#[tokio::test]
async fn a_wall_clock_that_jumps_changes_nothing() {
    const HOUR_US: i64 = 3_600_000_000;
    for (jump, expected_us) in [("+1h", HOUR_US), ("-1h", -HOUR_US)] {
        let redis = RedisServer::start().await;
        let clock = WallClock::new();
        let orders = clock.of(Orders::on(&redis).ttl("1s")).start().await;
        let shipping = orders.start_to_ship("42", 2500);
        redis.until_inside("42").await;
        let samples = PttlSamples::of(&redis, &key_of("42"), ms(20)).await;
        clock.jump(jump);
        tokio::time::sleep(ms(1800)).await;
        let seen = samples.take();
        assert!(seen.iter().all(|left| (1..=1000).contains(left)), "{seen:?}");

        let shipped = shipping.end().await.shipped();
        let by_its_clock = shipped.end_us as i64 - shipped.start_us as i64;
        assert!((by_its_clock - expected_us).abs() < HOUR_US / 2, "the clock did not jump: {shipped:?}");
        let metrics = orders.metrics().await;
        check_lost(&orders, &[]).await;
        let held_s = metrics.sum("tower_lock_hold_duration_seconds_sum", &[]);
        assert!((0.0..60.0).contains(&held_s), "{held_s}");
        check_settled(&orders, Some(1)).await;
        check_no_orphans(&redis, secs(1)).await;
    }
}

// B04
#[tokio::test]
async fn a_release_is_recognised_in_both_protocols() {
    let redis = RedisServer::start().await;
    for protocol in ["resp2", "resp3"] {
        let url = format!("{}?protocol={protocol}", redis.url());
        let orders = Orders::at(&url).max_wait("0s").start().await;
        for round in 0..500 {
            orders.ship("42", 0).await.shipped();
            if round % 50 == 0 {
                assert_eq!(redis.pttl(&key_of("42")).await, -2, "{protocol}, round {round}");
            }
        }
        assert_eq!(orders.releases("released").await, 500.0, "{protocol}");
        check_settled(&orders, Some(500)).await;
    }
    check_no_orphans(&redis, secs(30)).await;
}

// B05
#[tokio::test]
async fn processes_started_together_make_tokens_of_their_own() {
    const OF_EACH: usize = 1000;
    let redis = RedisServer::start().await;
    let (a, b) = tokio::join!(Orders::on(&redis).start(), Orders::on(&redis).start());
    let monitor = redis.monitor().await;
    let ships = |orders: &crate::support::orders_process::RunningOrders, name: &'static str| {
        let http = HttpClient::new(orders.addr, Version::H2);
        Running::start(async move {
            for n in 0..OF_EACH / 10 {
                let ten = (0..10).map(|m| {
                    let (http, path) = (http.clone(), ship_path(&format!("{name}{n}-{m}"), 0));
                    Running::start(async move { http.post(&path).await })
                });
                ends(ten.collect()).await;
            }
        })
    };
    ends(vec![ships(&a, "a"), ships(&b, "b")]).await;

    monitor.catch_up(&redis).await;
    let sets = monitor.commands("SET");
    // Each request has an order of its own; an attempt that is sent again keeps its token.
    let keys: BTreeSet<_> = sets.iter().map(|set| &set.words[1]).collect();
    let tokens: BTreeSet<_> = sets.iter().map(|set| &set.words[2]).collect();
    assert_eq!(keys.len(), 2 * OF_EACH);
    assert_eq!(tokens.len(), keys.len(), "a token was used twice");
    for token in tokens {
        let digits = token.chars().filter(char::is_ascii_hexdigit).count();
        assert!(digits >= 32, "less than 128 bits: {token}");
    }
    check_settled(&a, Some(OF_EACH as u64)).await;
    check_settled(&b, Some(OF_EACH as u64)).await;
    check_no_orphans(&redis, secs(30)).await;
}
