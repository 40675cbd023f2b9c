//! Section E of the field reports: connections that lie, die, or never come up.

use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::eventually::{eventually, ms, secs};
use crate::support::http::Refusal;
use crate::support::log_lines::Level;
use crate::support::orders_process::{Orders, key_of, ship_path};
use crate::support::overlap::check_exclusive;
use crate::support::proxy::Proxy;
use crate::support::raw_http::RawRequest;
use crate::support::redis_server::{RedisServer, free_port};
use crate::support::running::{Load, Running, ends};
use crate::support::settled::{check_no_orphans, check_settled};

// B37
#[tokio::test]
async fn late_replies_are_never_taken_for_those_of_other_requests() {
    const ORDERS: u64 = 5;
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    // A command may take 100 ms here, and its reply comes just before or just after that.
    let orders = Orders::at(&proxy.url()).ttl("300ms").max_wait("500ms").start().await;
    let load = Load::start(&orders.http, 20, |_client, _round| {
        ship_path(&format!("o{}", fastrand::u64(..ORDERS)), 5)
    });
    let addr = orders.addr;
    let leaving = Running::start(async move {
        for _ in 0..100 {
            let path = ship_path(&format!("o{}", fastrand::u64(..ORDERS)), 5);
            let request = RawRequest::send(addr, "POST", &path).await;
            tokio::time::sleep(ms(fastrand::u64(..40))).await;
            request.reset();
        }
    });
    for round in 0..60 {
        proxy.delay_replies(ms([0, 0, 95, 99, 101, 105][round % 6]));
        tokio::time::sleep(ms(80)).await;
    }
    proxy.delay_replies(ms(0));
    leaving.end().await;
    let answers = load.stop().await;

    let shipped = |answer: &Result<_, String>| {
        let answer: &crate::support::http::Answer = answer.as_ref().expect("an answer");
        (answer.status == StatusCode::OK).then(|| answer.shipped())
    };
    let holdings: Vec<_> = answers.iter().filter_map(shipped).collect();
    assert!(holdings.len() > 10, "only {} of {} were served", holdings.len(), answers.len());
    check_exclusive(&holdings);
    let protocol = [("kind", "protocol")];
    assert_eq!(orders.metrics().await.sum("tower_lock_store_errors_total", &protocol), 0.0);
    check_settled(&orders, None).await;
    check_no_orphans(&redis, ms(300)).await;
}

// B38
#[tokio::test]
async fn crowds_that_vanish_do_not_use_up_the_connections() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("60s").start().await;
    for round in 0..10 {
        let mut crowd = Vec::new();
        for n in 0..100 {
            // Half of them want the same order, so they wait; the others are inside.
            let order = if n % 2 == 0 { "hot".to_owned() } else { format!("o{round}-{n}") };
            crowd.push(RawRequest::send(orders.addr, "POST", &ship_path(&order, 60_000)).await);
        }
        crowd.into_iter().for_each(RawRequest::reset);
        orders.ship(&format!("after-{round}"), 0).await.shipped();
    }
    check_settled(&orders, None).await;
    orders.ship("hot", 0).await.shipped();
    check_no_orphans(&redis, secs(30)).await;
    let clients: String = redis.command(&["CLIENT", "LIST", "TYPE", "NORMAL"]).await;
    assert!(clients.lines().count() < 20, "{clients}");
}

// B39
#[tokio::test]
async fn connections_that_are_killed_are_replaced() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).start().await;
    let load = Load::start(&orders.http, 8, |client, _round| ship_path(&format!("o{client}"), 5));
    for _ in 0..15 {
        let _killed: u64 = redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        tokio::time::sleep(ms(100)).await;
    }
    let during = load.stop().await.len() as u64;
    // Each connection that was killed last may cost one request.
    for n in 0..3 {
        orders.ship(&format!("last-{n}"), 0).await;
    }
    for n in 0..50 {
        orders.ship(&format!("after-{n}"), 0).await.shipped();
    }
    check_settled(&orders, Some(during + 53)).await;
    check_no_orphans(&redis, secs(30)).await;
}

/// Starts `orders` with a URL that cannot work, and gives what it says about that: it ends at the
/// start, or refuses each request.
async fn complaints(url: &str, requests: usize) -> Vec<String> {
    match Orders::at(url).max_wait("300ms").try_start().await {
        Ok(orders) => {
            for _ in 0..requests {
                orders.ship("42", 0).await.refused(Refusal::StoreUnavailable);
            }
            orders.log().all()
        }
        Err((status, stderr)) => {
            assert!(!status.success(), "{status}");
            stderr.all()
        }
    }
}

fn check_complaints(lines: &[String], words: &[&str]) {
    let named = lines.iter().any(|line| {
        let line = line.to_lowercase();
        words.iter().any(|word| line.contains(word))
    });
    assert!(named, "none of {words:?} in {lines:#?}");
    let errors = lines.iter().filter(|line| line.contains("ERROR")).count();
    assert!(errors <= 3, "once in a while, not for each request: {lines:#?}");
}

// B40
#[tokio::test]
async fn a_wrong_password_is_named_as_the_cause_and_never_shown() {
    let redis = RedisServer::start().await;
    let rules = ["ACL", "SETUSER", "app", "on", ">right", "~*", "+@all"];
    let () = redis.command(&rules).await;
    let url = format!("redis://app:wrong-hunter2@{}/", redis.addr());
    let lines = complaints(&url, 20).await;
    check_complaints(&lines, &["auth", "password", "wrongpass"]);
    assert!(!lines.iter().any(|line| line.contains("hunter2")), "{lines:#?}");
}

// B40
#[tokio::test]
async fn a_closed_port_is_named_as_the_cause() {
    let url = format!("redis://:hunter2@127.0.0.1:{}/", free_port());
    let lines = complaints(&url, 20).await;
    check_complaints(&lines, &["refused", "connect"]);
    assert!(!lines.iter().any(|line| line.contains("hunter2")), "{lines:#?}");
}

// B40
#[tokio::test]
async fn a_host_name_that_does_not_resolve_is_named_as_the_cause() {
    let lines = complaints("redis://no-such-host.invalid:6379/", 3).await;
    check_complaints(&lines, &["resolve", "lookup", "name or service", "dns", "no answer"]);
}

// B40
#[tokio::test]
async fn a_server_that_wants_tls_is_named_as_the_cause() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let _tls_server = Running::start(async move {
        // A fatal alert, then the end: what a TLS server says to plain text.
        while let Ok((mut client, _from)) = listener.accept().await {
            let mut some = [0; 16];
            let _read = client.read(&mut some).await;
            let _told = client.write_all(b"\x15\x03\x03\x00\x02\x02\x28").await;
        }
    });
    let lines = complaints(&url, 20).await;
    check_complaints(&lines, &["tls", "protocol", "parse", "closed", "connect", "unexpected"]);
}

// B40
#[tokio::test]
async fn a_missing_permission_is_named_as_the_cause() {
    let redis = RedisServer::start().await;
    let rules = ["ACL", "SETUSER", "app", "on", ">hunter2", "~*", "+@all", "-evalsha", "-eval"];
    let () = redis.command(&rules).await;
    let url = format!("redis://app:hunter2@{}/", redis.addr());
    let lines = complaints(&url, 0).await;
    check_complaints(&lines, &["noperm", "permission"]);
    assert!(!lines.iter().any(|line| line.contains("hunter2")), "{lines:#?}");
}

// B41
#[tokio::test]
async fn the_first_request_after_an_idle_time_or_a_restart_is_served() {
    let mut redis = RedisServer::start().await;
    let orders = Orders::on(&redis).start().await;
    orders.ship("42", 0).await.shipped();
    // Redis closes connections that were idle for a second, and says nothing.
    redis.config_set("timeout", "1").await;
    eventually("Redis to have closed all idle connections", secs(20), async || {
        let clients: String = redis.command(&["CLIENT", "LIST", "TYPE", "NORMAL"]).await;
        clients.lines().count() == 1
    })
    .await;
    orders.ship("42", 0).await.shipped();
    redis.config_set("timeout", "0").await;
    for _ in 0..3 {
        redis.restart().await;
        orders.ship("42", 0).await.shipped();
    }
    assert_eq!(orders.log().at_least(Level::Error), [""; 0]);
    check_settled(&orders, Some(5)).await;
    check_no_orphans(&redis, secs(30)).await;
}

#[tokio::test]
async fn a_service_follows_its_address_to_another_server() {
    let (old, new) = tokio::join!(RedisServer::start(), RedisServer::start());
    let proxy = Proxy::to(old.addr()).await;
    let orders = Orders::at(&proxy.url()).start().await;
    orders.ship("42", 0).await.shipped();
    // The old one becomes a replica of the new one, as after a failover.
    let port = new.addr().port().to_string();
    let () = old.command(&["REPLICAOF", "127.0.0.1", &port]).await;
    proxy.repoint(new.addr());
    let kept = old.try_command::<()>(&["SET", "k", "v"]).await;
    assert!(kept.unwrap_err().to_string().contains("read only"), "the old one is read-only");
    eventually("requests to be served by the new one", secs(10), async || {
        let answer = orders.ship("42", 0).await;
        assert_ne!(answer.status, StatusCode::CONFLICT, "an outage, not contention: {answer:?}");
        answer.status == StatusCode::OK
    })
    .await;
    let shipping = orders.start_to_ship("42", 500);
    new.until_key(&key_of("42")).await;
    shipping.end().await.shipped();
    // No connection that leads to the old one is handed out again.
    let all: Vec<_> = (0..20).map(|n| orders.start_to_ship(&format!("o{n}"), 0)).collect();
    for answer in ends(all).await {
        answer.shipped();
    }
    check_settled(&orders, None).await;
    check_no_orphans(&new, secs(30)).await;
}
