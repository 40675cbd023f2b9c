//! Section F of the field reports: states of a Redis server that are not simply up or down.

use crate::support::eventually::{eventually, ms, secs};
use crate::support::http::Refusal;
use crate::support::log_lines::Level;
use crate::support::orders_process::{Orders, RunningOrders, key_of, ship_path};
use crate::support::redis_server::RedisServer;
use crate::support::running::{Running, ends};
use crate::support::settled::{check_lost, check_no_orphans, check_settled};

async fn store_errors(orders: &RunningOrders, kind: &str) -> f64 {
    orders.metrics().await.sum("tower_lock_store_errors_total", &[("kind", kind)])
}

// B44
#[tokio::test]
async fn flushed_scripts_cost_no_renewal_and_no_release() {
    const REQUESTS: usize = 100;
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1500ms").start().await;
    let all = (0..REQUESTS).map(|n| orders.start_to_ship(&format!("o{n}"), 1800)).collect();
    let flushing = async {
        loop {
            let () = redis.command(&["SCRIPT", "FLUSH"]).await;
            tokio::time::sleep(ms(2)).await;
        }
    };
    let answers = tokio::select! {
        answers = ends(all) => answers,
        () = flushing => unreachable!("it flushes for ever"),
    };
    for answer in answers {
        answer.shipped();
    }
    assert_eq!(orders.metric("tower_lock_renewals_total", &[("outcome", "error")]).await, 0.0);
    assert!(orders.metric("tower_lock_renewals_total", &[("outcome", "renewed")]).await >= 200.0);
    assert_eq!(orders.releases("released").await, REQUESTS as f64);
    check_lost(&orders, &[]).await;
    check_settled(&orders, Some(REQUESTS as u64)).await;
    check_no_orphans(&redis, ms(1500)).await;
}

// B44
#[tokio::test]
async fn a_redis_that_comes_back_empty_has_lost_the_lock_and_the_holder_learns_it() {
    let mut redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1s").start().await;
    let shipping = orders.start_to_ship("42", 60_000);
    redis.until_inside("42").await;
    redis.restart().await;
    shipping.end().await.refused(Refusal::LockLost);
    check_lost(&orders, &["deleted"]).await;

    orders.ship("42", 0).await.shipped();
    check_settled(&orders, Some(2)).await;
    check_no_orphans(&redis, secs(1)).await;
}

// B45
#[tokio::test]
async fn writes_refused_for_a_moment_cost_no_lock() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("3s").start().await;
    let shipping = orders.start_to_ship("42", 4500);
    redis.until_inside("42").await;
    redis.config_set("min-replicas-to-write", "1").await;
    eventually("a renewal to be refused", secs(10), async || store_errors(&orders, "noreplicas").await > 0.0)
        .await;
    redis.config_set("min-replicas-to-write", "0").await;

    shipping.end().await.shipped();
    check_lost(&orders, &[]).await;
    check_settled(&orders, Some(1)).await;
    check_no_orphans(&redis, secs(3)).await;
}

// B45
#[tokio::test]
async fn writes_refused_for_long_cost_the_lock_at_its_deadline() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1s").start().await;
    let shipping = orders.start_to_ship("42", 60_000);
    redis.until_inside("42").await;
    redis.config_set("min-replicas-to-write", "1").await;
    shipping.end().await.refused(Refusal::LockLost);
    orders.ship("43", 0).await.refused(Refusal::StoreUnavailable);

    let metrics = orders.metrics().await;
    check_lost(&orders, &["unconfirmed"]).await;
    for operation in ["renew", "acquire"] {
        let labels = [("operation", operation), ("kind", "noreplicas")];
        assert!(metrics.sum("tower_lock_store_errors_total", &labels) >= 1.0, "{operation}");
    }
    check_settled(&orders, Some(2)).await;
    redis.config_set("min-replicas-to-write", "0").await;
    check_no_orphans(&redis, secs(1)).await;
    orders.ship("42", 0).await.shipped();
}

// B46
#[tokio::test]
async fn a_full_redis_takes_no_new_locks_but_keeps_and_frees_those_it_has() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).ttl("1s").start().await;
    let held: Vec<_> = (0..5).map(|n| orders.start_to_ship(&format!("o{n}"), 2500)).collect();
    eventually("all to have their fencing tokens", secs(10), async || redis.fencing_counters("o").await == 5)
        .await;
    redis.config_set("maxmemory", "1000").await;
    orders.ship("42", 0).await.refused(Refusal::StoreUnavailable);
    assert!(store_errors(&orders, "oom").await >= 1.0);

    for answer in ends(held).await {
        answer.shipped();
    }
    assert_eq!(orders.releases("released").await, 5.0);
    check_lost(&orders, &[]).await;
    check_settled(&orders, Some(6)).await;
    check_no_orphans(&redis, secs(1)).await;
}

// B48
#[tokio::test]
async fn an_evicted_lock_is_noticed() {
    for policy in ["volatile-ttl", "allkeys-lru"] {
        let redis = RedisServer::start_with(&["--maxmemory-policy", policy]).await;
        let orders = Orders::on(&redis).ttl("3s").start().await;
        let shipping = orders.start_to_ship("42", 60_000);
        redis.until_inside("42").await;
        redis.config_set("maxmemory", "3mb").await;
        let junk = "x".repeat(100_000);
        let mut number = 0;
        eventually("the lock to be evicted", secs(30), async || {
            for _ in 0..20 {
                number += 1;
                // Keys with an expiry can be evicted under both policies.
                let key = format!("junk:{number}");
                let _full = redis.try_command::<()>(&["SET", &key, &junk, "EX", "1000"]).await;
            }
            redis.pttl(&key_of("42")).await == -2
        })
        .await;
        shipping.end().await.refused(Refusal::LockLost);
        check_lost(&orders, &["deleted"]).await;
        check_settled(&orders, Some(1)).await;
        check_no_orphans(&redis, secs(3)).await;
    }
}

// B49
#[tokio::test]
async fn a_redis_that_is_loading_is_an_outage_that_ends_by_itself() {
    let mut redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("200ms").start().await;
    let () = redis.command(&["DEBUG", "POPULATE", "3000"]).await;
    let () = redis.command(&["SAVE"]).await;
    // 1 ms for each key.
    let slowly = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    redis.restart_with_data(&slowly).await;
    eventually("Redis to say that it is loading", secs(10), async || {
        orders.ship("42", 0).await.refused(Refusal::StoreUnavailable);
        store_errors(&orders, "loading").await > 0.0
    })
    .await;
    eventually("requests to be served again", secs(30), async || {
        let answer = orders.ship("42", 0).await;
        if answer.status != http::StatusCode::OK {
            answer.refused(Refusal::StoreUnavailable);
        }
        answer.status == http::StatusCode::OK
    })
    .await;
    assert_eq!(orders.acquisitions("contended").await, 0.0);
    check_settled(&orders, None).await;
    check_no_orphans(&redis, secs(30)).await;
}

async fn cluster_is_up(node: &RedisServer) {
    eventually("the cluster to be up", secs(30), async || {
        let info: String = node.command(&["CLUSTER", "INFO"]).await;
        info.contains("cluster_state:ok")
    })
    .await;
}

// B50
#[tokio::test]
async fn braces_in_ids_and_prefixes_do_not_leave_the_lock_and_its_counter_in_two_slots() {
    let redis = RedisServer::start_with(&["--cluster-enabled", "yes"]).await;
    let () = redis.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await;
    cluster_is_up(&redis).await;
    for prefix in ["orders:", "{shop}:", "a{b:", "a}b:", "{}:"] {
        let orders = Orders::on(&redis).option("--prefix", prefix).start().await;
        let ids = ["42", "a%7Bb%7Dc", "%7B%7D", "%7D%7B", "x%7B%7Dy", "%7B%7Bx%7D"];
        for id in ids {
            let first = orders.ship(id, 0).await.shipped();
            let second = orders.ship(id, 0).await.shipped();
            assert!(second.fencing_token > first.fencing_token, "{prefix} {id}");
        }
        check_settled(&orders, Some(2 * ids.len() as u64)).await;
    }
    check_no_orphans(&redis, secs(30)).await;
}

// B51
#[tokio::test]
async fn a_key_of_another_cluster_node_is_an_outage_with_a_plain_reason() {
    let node = |port: u16| async move {
        let bus = port.to_string();
        RedisServer::start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus]).await
    };
    let bus = crate::support::redis_server::free_port;
    let (first, second) = tokio::join!(node(bus()), node(bus()));
    let () = first.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]).await;
    let () = second.command(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]).await;
    let (host, port) = (second.addr().ip().to_string(), second.addr().port().to_string());
    let bus: String = second.command::<Vec<String>>(&["CONFIG", "GET", "cluster-port"]).await.remove(1);
    let () = first.command(&["CLUSTER", "MEET", &host, &port, &bus]).await;
    cluster_is_up(&first).await;
    cluster_is_up(&second).await;
    let mut ids = 0..;
    let (mut here, mut there) = (None, None);
    while here.is_none() || there.is_none() {
        let id = ids.next().unwrap_or(0).to_string();
        let slot: u16 = first.command(&["CLUSTER", "KEYSLOT", &key_of(&id)]).await;
        if slot < 8192 { here = Some(id) } else { there = Some(id) }
    }
    let orders = Orders::on(&first).max_wait("500ms").start().await;
    let monitor = first.monitor().await;
    orders.ship(&here.unwrap(), 0).await.shipped();
    let before = orders.log().at_least(Level::Error).len();
    let there = there.unwrap();
    orders.ship(&there, 0).await.refused(Refusal::StoreUnavailable);

    assert!(store_errors(&orders, "moved").await >= 1.0);
    eventually("a line with the reason", secs(5), async || {
        let said = orders.log().at_least(Level::Error);
        said[before..].iter().any(|line| line.to_lowercase().contains("moved"))
    })
    .await;
    monitor.catch_up(&first).await;
    assert!(monitor.naming(&key_of(&there)).len() < 20, "no hot loop");
    check_settled(&orders, Some(2)).await;
    check_no_orphans(&first, secs(30)).await;
}

// B60
#[tokio::test]
async fn a_key_that_holds_something_else_is_never_deleted() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("200ms").start().await;
    let () = redis.command(&["SET", &key_of("text"), "data"]).await;
    let () = redis.command(&["RPUSH", &key_of("list"), "data"]).await;
    orders.ship("text", 0).await.refused(Refusal::Contended);
    orders.ship("list", 0).await.refused(Refusal::StoreUnavailable);
    let left = redis.order_locks().await;
    assert_eq!(left.len(), 2, "{left:?}");

    let shipping = orders.start_to_ship("mine", 60_000);
    redis.until_inside("mine").await;
    let () = redis.command(&["DEL", &key_of("mine")]).await;
    let () = redis.command(&["HSET", &key_of("mine"), "field", "data"]).await;
    drop(shipping);
    check_settled(&orders, Some(3)).await;
    let kind: String = redis.command(&["TYPE", &key_of("mine")]).await;
    assert_eq!(kind, "hash");
}

#[tokio::test]
async fn a_process_under_client_kills_and_script_flushes_stays_exclusive() {
    let redis = RedisServer::start().await;
    let (a, b) =
        tokio::join!(Orders::on(&redis).max_wait("10s").start(), Orders::on(&redis).max_wait("10s").start());
    let request = |n: usize| {
        let http = [&a, &b][n % 2].http.clone();
        let path = ship_path(&format!("o{}", n / 2 % 3), 20);
        Running::start(async move { http.post(&path).await })
    };
    let all = (0..90).map(request).collect();
    let trouble = async {
        loop {
            let () = redis.command(&["SCRIPT", "FLUSH"]).await;
            let _killed: u64 = redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
            tokio::time::sleep(ms(100)).await;
        }
    };
    let answers = tokio::select! {
        answers = ends(all) => answers,
        () = trouble => unreachable!("it troubles for ever"),
    };
    let served = answers.iter().filter(|answer| answer.status == http::StatusCode::OK);
    let holdings: Vec<_> = served.map(|answer| answer.shipped()).collect();
    assert!(holdings.len() > 45, "only {} of 90 were served", holdings.len());
    crate::support::overlap::check_exclusive(&holdings);
    check_settled(&a, Some(45)).await;
    check_settled(&b, Some(45)).await;
    check_no_orphans(&redis, secs(30)).await;
}
