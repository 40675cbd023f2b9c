//! What the README promises, seen from outside: real processes, one real Redis.

use http::StatusCode;

use crate::support::eventually::{eventually, ms, secs};
use crate::support::http::{HttpClient, Refusal, Version};
use crate::support::metrics_text::Metrics;
use crate::support::orders_process::{Orders, RunningOrders, key_of, ship_path};
use crate::support::overlap::check_exclusive;
use crate::support::raw_http::RawRequest;
use crate::support::redis_monitor::PttlSamples;
use crate::support::redis_server::{RIVAL, RedisServer};
use crate::support::running::{Running, count, ends};
use crate::support::settled::{check_lost, check_no_orphans, check_settled};

#[tokio::test]
async fn one_of_ten_simultaneous_requests_ships_and_nine_are_told_to_come_again() {
    let orders = Orders::in_memory().max_wait("0s").start().await;
    let all = (0..10).map(|_| orders.start_to_ship("42", 1000)).collect();
    let answers = ends(all).await;

    assert_eq!(count(&answers, StatusCode::OK), 1, "{answers:?}");
    for refused in answers.iter().filter(|answer| answer.status != StatusCode::OK) {
        refused.refused(Refusal::Contended);
        let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!(seconds <= 30, "never above the ttl: {refused:?}");
        assert!(!refused.text().contains("42"), "the key is nobody's business: {refused:?}");
    }
    orders.ship("42", 0).await.shipped();
    check_settled(&orders, Some(11)).await;
}

#[tokio::test]
async fn two_instances_never_ship_one_order_together_and_fencing_tokens_grow() {
    let redis = RedisServer::start().await;
    check_two_instances(&redis, &redis.url()).await;
}

#[tokio::test]
async fn two_instances_take_turns_where_no_key_can_be_watched() {
    let redis = RedisServer::start().await;
    let url = redis.url_without_tracking().await;
    check_two_instances(&redis, &url).await;
}

async fn check_two_instances(redis: &RedisServer, url: &str) {
    let names = ["a", "b", "c", "d", "e"];
    let mut samples = Vec::new();
    for name in names {
        samples.push(PttlSamples::of(redis, &key_of(name), ms(5)).await);
    }
    let monitor = redis.monitor().await;
    let instances =
        [Orders::at(url).max_wait("10s").start().await, Orders::at(url).max_wait("10s").start().await];
    let request = |n: usize| instances[n % 2].start_to_ship(names[n / 2 % 5], 20);
    let answers = ends((0..200).map(request).collect()).await;

    let holdings: Vec<_> = answers.iter().map(|answer| answer.shipped()).collect();
    check_exclusive(&holdings);
    let seen: Vec<i64> = samples.iter().flat_map(PttlSamples::take).collect();
    assert!(seen.iter().any(|left| *left > 0), "the keys were seen while they lived");
    assert!(!seen.contains(&-1), "a key without expiry was seen");
    monitor.catch_up(redis).await;
    for set in names.iter().flat_map(|name| monitor.commands_on("SET", &key_of(name))) {
        let words: Vec<_> = set.words.iter().map(|word| word.to_ascii_uppercase()).collect();
        assert!(words.contains(&"PX".to_owned()), "set without an expiry: {set:?}");
    }
    for orders in &instances {
        check_settled(orders, Some(100)).await;
    }
    assert_eq!(redis.order_locks().await, [], "everything was given back");
}

#[tokio::test]
async fn http2_requests_are_locked_like_others() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("10s").start().await;
    let http = HttpClient::new(orders.addr, Version::H2);
    let request = |n: u64| {
        let http = http.clone();
        Running::start(async move { http.post(&ship_path(&format!("o{}", n % 3), 10)).await })
    };
    let answers = ends((0..30).map(request).collect()).await;

    let holdings: Vec<_> = answers.iter().map(|answer| answer.shipped()).collect();
    check_exclusive(&holdings);
    check_settled(&orders, Some(30)).await;
    check_no_orphans(&redis, secs(30)).await;
}

#[tokio::test]
async fn a_lock_is_kept_for_as_long_as_the_work_takes() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1s").start().await;
    let shipping = orders.start_to_ship("42", 4000);
    redis.until_inside("42").await;
    let samples = PttlSamples::of(&redis, &key_of("42"), ms(20)).await;
    tokio::time::sleep(ms(3200)).await;
    assert!(!shipping.has_ended());
    let seen = samples.take();
    assert!(seen.iter().all(|left| (1..=1000).contains(left)), "{seen:?}");

    shipping.end().await.shipped();
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, secs(1)).await;
}

// B01, B10
#[tokio::test]
async fn a_handler_whose_lock_was_taken_over_is_stopped_and_the_rival_left_alone() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1s").start().await;
    let key = key_of("42");
    let shipping = orders.start_to_ship("42", 60_000);
    redis.until_inside("42").await;
    let () = redis.command(&["DEL", &key]).await;
    redis.rival_takes(&key).await;

    shipping.end().await.refused(Refusal::LockLost);
    assert_eq!(redis.get(&key).await.as_deref(), Some(RIVAL));
    assert!(redis.pttl(&key).await > 10_000, "its expiry is the rival's own");
    check_lost(&orders, &["taken_over"]).await;
    assert_eq!(orders.metric("tower_lock_handlers_aborted_total", &[]).await, 1.0);
    check_settled(&orders, Some(1)).await;
}

#[tokio::test]
async fn the_lock_of_a_killed_process_is_free_after_its_ttl() {
    let redis = RedisServer::start().await;
    let mut killed = Orders::on(&redis).ttl("2s").start().await;
    let other = Orders::on(&redis).ttl("2s").max_wait("20s").start().await;
    let http = killed.http.clone();
    let shipping =
        Running::start(async move { http.send(http::Method::POST, &ship_path("42", 60_000)).await });
    redis.until_inside("42").await;
    killed.kill();

    assert!(shipping.end().await.is_err(), "a killed process does not answer");
    let left = redis.pttl(&key_of("42")).await;
    assert!((-2..=2000).contains(&left) && left != -1, "{left}");
    other.ship("42", 0).await.shipped();
    check_settled(&other, Some(1)).await;
    check_no_orphans(&redis, secs(2)).await;
}

#[tokio::test]
async fn a_stopped_redis_gives_503_and_a_started_one_200_without_a_restart_of_the_service() {
    let mut redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("300ms").start().await;
    orders.ship("42", 0).await.shipped();
    redis.kill();
    orders.ship("42", 0).await.refused(Refusal::StoreUnavailable);
    redis.restart().await;
    orders.ship("42", 0).await.shipped();

    assert_eq!(orders.acquisitions("error").await, 1.0);
    check_settled(&orders, Some(3)).await;
    check_no_orphans(&redis, secs(30)).await;
}

// B43
#[tokio::test]
async fn an_uncontended_request_costs_two_commands() {
    const REQUESTS: u64 = 500;
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).start().await;
    let export = |order: String| format!("/orders/{order}/export?chunks=1&chunk_ms=0");
    // The first release brings its script along.
    orders.http.get(&export("warm-up".to_owned())).await;

    let before = redis.calls().await;
    for n in 0..REQUESTS {
        let answer = orders.http.get(&export(format!("o{n}"))).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    }
    let after = redis.calls().await;
    let grown = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
    assert_eq!(grown("set"), REQUESTS);
    assert_eq!(grown("evalsha") + grown("eval"), REQUESTS);
    assert_eq!(grown("ping"), 0);
    // The script reads and deletes; nothing else comes beside it.
    assert!(grown("get") <= REQUESTS, "{after:?}");
    check_settled(&orders, Some(REQUESTS + 1)).await;
    check_no_orphans(&redis, secs(30)).await;
}

#[tokio::test]
async fn reading_an_order_takes_no_lock() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).start().await;
    let monitor = redis.monitor().await;
    let shipping = orders.start_to_ship("42", 500);
    redis.until_inside("42").await;
    let answer = orders.http.get("/orders/42").await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let health = orders.http.get("/healthz").await;
    assert_eq!(health.status, StatusCode::OK, "{health:?}");

    shipping.end().await.shipped();
    monitor.catch_up(&redis).await;
    assert_eq!(monitor.commands_on("SET", &key_of("42")).len(), 1);
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, secs(30)).await;
}

#[tokio::test]
async fn a_streamed_answer_holds_the_lock_until_its_end() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1s").max_wait("0s").start().await;
    let mut export = RawRequest::send(orders.addr, "GET", "/orders/42/export?chunks=4&chunk_ms=500").await;
    export.read_until("200 OK").await;
    orders.ship("42", 0).await.refused(Refusal::Contended);
    export.read_until("\r\n0\r\n").await;
    redis.until_no_key(&key_of("42"), secs(10)).await;
    orders.ship("42", 0).await.shipped();

    assert_eq!(orders.acquisitions("acquired").await, 2.0);
    check_settled(&orders, Some(3)).await;
    check_no_orphans(&redis, secs(1)).await;
}

#[tokio::test]
async fn hanging_up_in_the_middle_of_a_streamed_answer_gives_the_lock_back() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).start().await;
    let mut export = RawRequest::send(orders.addr, "GET", "/orders/42/export?chunks=1000&chunk_ms=100").await;
    export.read_until("200 OK").await;
    redis.until_key(&key_of("42")).await;
    export.hang_up();

    redis.until_no_key(&key_of("42"), secs(5)).await;
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, secs(30)).await;
}

// B71
#[tokio::test]
async fn only_who_chose_it_works_unguarded_while_redis_is_down() {
    let mut redis = RedisServer::start().await;
    let orders = Orders::on(&redis).option("--on-store-error", "proceed").max_wait("0s");
    let orders = orders.start().await;
    let shipping = orders.start_to_ship("42", 500);
    redis.until_inside("42").await;
    orders.ship("42", 0).await.refused(Refusal::Contended);
    shipping.end().await.shipped();
    redis.kill();
    let unguarded = orders.ship("42", 0).await;
    assert_eq!(unguarded.status, StatusCode::OK, "{unguarded:?}");
    assert!(unguarded.json()["fencing_token"].is_null(), "no lock, no token: {unguarded:?}");

    let bypassed = orders.metric("tower_lock_bypassed_total", &[("reason", "fail_open")]).await;
    assert_eq!(bypassed, 1.0);
    check_settled(&orders, Some(3)).await;
}

// B75
#[tokio::test]
async fn the_number_of_series_does_not_grow_with_the_keys() {
    let orders = Orders::in_memory().max_wait("0s").start().await;
    let series = async |orders: &RunningOrders| Metrics::series(&orders.metrics().await);
    orders.ship("warm-up", 0).await.shipped();
    eventually("all series to be there", secs(5), async || series(&orders).await > 0).await;
    let before = series(&orders).await;
    for n in 0..300 {
        orders.ship(&format!("o{n}"), 0).await.shipped();
        orders.http.get(&format!("/nowhere/{n}")).await;
    }
    assert_eq!(series(&orders).await, before);
    check_settled(&orders, Some(301)).await;
}

#[tokio::test]
async fn a_bad_option_ends_the_start_with_a_message_that_names_it() {
    let bad = [
        ("--ttl", "0s"),
        ("--ttl", "9ms"),
        ("--ttl", "banana"),
        ("--max-wait", "soon"),
        ("--release", "never"),
        ("--on-lost", "shrug"),
        ("--on-store-error", "hope"),
        ("--max-hold", "0s"),
        ("--redis-url", "not a url"),
        ("--listen", "nowhere"),
    ];
    for (name, value) in bad {
        let mut process = Orders::in_memory().option(name, value).spawn();
        let status = process.wait_exit(secs(20)).await;
        assert_eq!(status.code(), Some(2), "{name} {value}: {:?}", process.stderr.all());
        eventually(&format!("{name} to be named"), secs(5), async || process.stderr.find(name).is_some())
            .await;
    }
}

// B06
#[tokio::test]
async fn a_ttl_reaches_redis_in_its_unit_at_acquisition_and_at_renewal() {
    let redis = RedisServer::start().await;
    for (number, (ttl, expected)) in [("500ms", 500), ("1500ms", 1500), ("1h", 3_600_000)].iter().enumerate()
    {
        let orders = Orders::on(&redis).env("LOCK_TTL", ttl).start().await;
        let order = number.to_string();
        let monitor = redis.monitor().await;
        orders.ship(&order, if *expected < 2000 { expected / 2 } else { 0 }).await.shipped();
        monitor.catch_up(&redis).await;
        let set = monitor.commands_on("SET", &key_of(&order)).remove(0);
        assert!(set.words.contains(&expected.to_string()), "{set:?}");
        for renewal in monitor.commands_on("PEXPIRE", &key_of(&order)) {
            assert_eq!(renewal.words[2], expected.to_string(), "{renewal:?}");
        }
        if *expected < 2000 {
            assert!(!monitor.commands_on("PEXPIRE", &key_of(&order)).is_empty(), "renewed");
        }
        check_settled(&orders, Some(1)).await;
    }
    check_no_orphans(&redis, secs(3600)).await;
}
