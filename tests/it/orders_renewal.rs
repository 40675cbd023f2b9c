//! Section B of the field reports: renewal, and what a holder learns when it fails.

use crate::support::eventually::{eventually, eventually_some, ms, secs};
use crate::support::http::Refusal;
use crate::support::log_lines::{Level, logged_at_us};
use crate::support::orders_process::{Orders, RunningOrders, key_of};
use crate::support::proxy::Proxy;
use crate::support::redis_monitor::PttlSamples;
use crate::support::redis_server::{RIVAL, RedisServer};
use crate::support::running::{Running, ends};
use crate::support::settled::{check_lost, check_no_orphans, check_settled};

/// A handler of 5 s under a ttl of 3 s, during which Redis is of no use for about a second.
async fn survives(trouble: impl AsyncFnOnce(&RedisServer)) {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("3s").start().await;
    let shipping = orders.start_to_ship("42", 5000);
    redis.until_inside("42").await;
    // Just before the first renewal.
    tokio::time::sleep(ms(800)).await;
    trouble(&redis).await;

    shipping.end().await.shipped();
    check_lost(&orders, &[]).await;
    assert!(orders.metric("tower_lock_renewals_total", &[("outcome", "renewed")]).await >= 1.0);
    assert_eq!(orders.releases("released").await, 1.0);
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, secs(3)).await;
}

// B09
#[tokio::test]
async fn a_redis_that_is_busy_with_a_script_costs_no_lock() {
    survives(async |redis| {
        redis.config_set("busy-reply-threshold", "100").await;
        let script = redis.start_command(&["EVAL", "while true do end", "0"]);
        tokio::time::sleep(ms(1200)).await;
        let () = redis.command(&["SCRIPT", "KILL"]).await;
        script.end().await.expect_err("the script was killed");
    })
    .await;
}

// B09
#[tokio::test]
async fn a_paused_redis_costs_no_lock() {
    survives(async |redis| {
        let () = redis.command(&["CLIENT", "PAUSE", "1200", "ALL"]).await;
    })
    .await;
}

// B10
#[tokio::test]
async fn each_way_to_lose_a_lock_has_its_own_reason() {
    let redis = RedisServer::start().await;
    check_reasons(&redis, &redis.url()).await;
}

// B10
#[tokio::test]
async fn a_renewal_tells_the_reasons_apart_where_no_key_can_be_watched() {
    let redis = RedisServer::start().await;
    let url = redis.url_without_tracking().await;
    check_reasons(&redis, &url).await;
}

async fn check_reasons(redis: &RedisServer, url: &str) {
    let orders = Orders::at(url).ttl("1s").start().await;
    let taken_over = key_of("c");
    let blows = [
        ("a", vec!["DEL", "orders:order:a"], "deleted"),
        ("b", vec!["FLUSHALL"], "deleted"),
        ("c", vec!["SET", &taken_over, RIVAL, "PX", "30000"], "taken_over"),
    ];
    for (number, (order, blow, reason)) in blows.into_iter().enumerate() {
        let shipping = orders.start_to_ship(order, 60_000);
        redis.until_inside(order).await;
        let () = redis.command(&blow).await;
        shipping.end().await.refused(Refusal::LockLost);
        eventually(&format!("{reason} in a warning after {blow:?}"), secs(10), async || {
            let warned = orders.log().at_least(Level::Warn);
            let losses: Vec<_> = warned.iter().filter(|line| line.contains("lost")).collect();
            losses.len() == number + 1 && losses[number].contains(reason)
        })
        .await;
    }
    check_lost(&orders, &["deleted", "deleted", "taken_over"]).await;
    check_settled(&orders, Some(3)).await;
}

// B11
#[tokio::test]
async fn a_holder_that_is_cut_off_knows_before_the_next_one_gets_in() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let cut_off = Orders::at(&proxy.url()).ttl("3s").notify_on_lost().start().await;
    let other = Orders::on(&redis).ttl("3s").max_wait("30s").start().await;
    let first = cut_off.start_to_ship("42", 6500);
    redis.until_inside("42").await;
    proxy.freeze();
    let second = other.start_to_ship("42", 3000);

    let told =
        eventually_some("the loss to be logged", secs(20), async || orders_warning(&cut_off, "unconfirmed"))
            .await;
    check_lost(&cut_off, &["unconfirmed"]).await;
    eventually("the second to be in", secs(20), async || other.metric("tower_lock_held", &[]).await == 1.0)
        .await;
    let token = redis.get(&key_of("42")).await;
    // What the first sent while it was cut off arrives now.
    proxy.unfreeze();
    let (first, second) = (first.end().await.shipped(), second.end().await.shipped());
    assert!(token.is_some());
    assert!(logged_at_us(&told) <= second.start_us, "told too late: {told}, {second:?}");
    assert!(second.fencing_token > first.fencing_token);
    assert_eq!(other.releases("released").await, 1.0, "nobody else touched the second's key");
    check_lost(&other, &[]).await;
    check_settled(&cut_off, Some(1)).await;
    check_settled(&other, Some(1)).await;
    check_no_orphans(&redis, secs(3)).await;
}

fn orders_warning(orders: &RunningOrders, word: &str) -> Option<String> {
    orders.log().at_least(Level::Warn).into_iter().find(|line| line.contains(word))
}

// B13
#[tokio::test]
async fn a_process_that_slept_through_its_ttl_leaves_the_rival_alone() {
    let redis = RedisServer::start().await;
    let mut orders = Orders::on(&redis).ttl("1s").start().await;
    let key = key_of("42");
    let shipping = orders.start_to_ship("42", 60_000);
    redis.until_inside("42").await;
    orders.pause().await;
    redis.until_no_key(&key, secs(10)).await;
    redis.rival_takes(&key).await;
    let monitor = redis.monitor().await;
    orders.resume();

    shipping.end().await.refused(Refusal::LockLost);
    assert_eq!(redis.get(&key).await.as_deref(), Some(RIVAL));
    eventually("the loss to be counted", secs(10), async || orders.losses().await.len() == 1).await;
    check_settled(&orders, Some(1)).await;
    monitor.catch_up(&redis).await;
    for command in ["SET", "DEL", "PEXPIRE"] {
        assert_eq!(monitor.commands_on(command, &key), [], "written to the rival's key");
    }
}

// B13
#[tokio::test]
async fn a_handler_that_slept_through_its_ttl_and_has_finished_since_is_not_believed() {
    let redis = RedisServer::start().await;
    let mut orders = Orders::on(&redis).ttl("1s").start().await;
    let shipping = orders.start_to_ship("42", 500);
    redis.until_inside("42").await;
    orders.pause().await;
    redis.until_no_key(&key_of("42"), secs(10)).await;
    orders.resume();

    // Its work is due on wake-up, and so is its deadline: the deadline must win.
    shipping.end().await.refused(Refusal::LockLost);
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, secs(1)).await;
}

// B14
#[tokio::test]
async fn the_age_of_a_lock_does_not_count_the_wait_for_it() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1s").max_wait("10s").start().await;
    let () = redis.command(&["SET", &key_of("42"), RIVAL, "PX", "1500"]).await;
    orders.ship("42", 2500).await.shipped();

    check_lost(&orders, &[]).await;
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, secs(1)).await;
}

// B14
#[tokio::test]
async fn slow_replies_shorten_the_lease_and_lose_no_lock() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let orders = Orders::at(&proxy.url()).ttl("1500ms").start().await;
    proxy.delay_replies(ms(120));
    let shipping = orders.start_to_ship("42", 3000);
    redis.until_inside("42").await;
    let samples = PttlSamples::of(&redis, &key_of("42"), ms(20)).await;
    tokio::time::sleep(ms(2500)).await;
    let seen = samples.take();
    assert!(seen.iter().all(|left| *left > 0), "{seen:?}");

    shipping.end().await.shipped();
    check_lost(&orders, &[]).await;
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, ms(1500)).await;
}

// B14
#[tokio::test]
async fn a_grant_whose_reply_comes_too_late_is_no_grant_and_leaves_no_key() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let orders = Orders::at(&proxy.url()).max_wait("0s").start().await;
    proxy.delay_replies(ms(900));
    orders.ship("42", 0).await.refused(Refusal::StoreUnavailable);
    redis.until_no_key(&key_of("42"), secs(10)).await;
    proxy.delay_replies(ms(0));
    eventually("a request to be served again", secs(10), async || {
        orders.ship("42", 0).await.status == http::StatusCode::OK
    })
    .await;

    check_settled(&orders, None).await;
    check_no_orphans(&redis, secs(30)).await;
}

// B15
#[tokio::test]
async fn a_stuck_handler_is_not_renewed_for_ever() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1s").option("--max-hold", "1500ms").start().await;
    orders.ship("42", 60_000).await.refused(Refusal::LockLost);

    redis.until_no_key(&key_of("42"), secs(5)).await;
    check_lost(&orders, &["max_hold"]).await;
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, secs(1)).await;
}

// B16
#[tokio::test]
async fn many_locks_are_renewed_in_time_and_not_all_at_once() {
    const LOCKS: usize = 400;
    const NEWCOMERS: usize = 100;
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("3s").start().await;
    let monitor = redis.monitor().await;
    let held = (0..LOCKS).map(|n| orders.start_to_ship(&format!("o{n}"), 6000)).collect();
    eventually("all locks to be taken", secs(30), async || {
        orders.metrics().await.sum("tower_lock_held", &[]) == LOCKS as f64
    })
    .await;
    for n in 0..NEWCOMERS {
        orders.ship(&format!("new-{n}"), 0).await.shipped();
    }
    for answer in ends(held).await {
        answer.shipped();
    }
    monitor.catch_up(&redis).await;
    let renewals = monitor.all("PEXPIRE");
    assert!(renewals.len() > 3 * LOCKS, "only {} renewals", renewals.len());
    let mut in_50_ms = std::collections::BTreeMap::new();
    for renewal in &renewals {
        *in_50_ms.entry(renewal.at_us / 50_000).or_insert(0) += 1;
    }
    let most = in_50_ms.values().max().copied().unwrap_or_default();
    assert!(most < LOCKS * 2 / 3, "{most} of {LOCKS} locks renewed within 50 ms");

    check_lost(&orders, &[]).await;
    check_settled(&orders, Some((LOCKS + NEWCOMERS) as u64)).await;
    check_no_orphans(&redis, secs(3)).await;
}

#[tokio::test]
async fn a_handler_that_blocks_its_thread_keeps_its_lock() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1s").start().await;
    // Enough to block every worker of the runtime. Each has its fencing token before it does.
    let all = (0..4).map(|n| {
        let path = format!("/orders/o{n}/ship?work_ms=700&block_ms=3000");
        let http = orders.http.clone();
        Running::start(async move { http.post(&path).await })
    });
    for answer in ends(all.collect()).await {
        answer.shipped();
    }
    check_lost(&orders, &[]).await;
    check_settled(&orders, Some(4)).await;
    check_no_orphans(&redis, secs(1)).await;
}
