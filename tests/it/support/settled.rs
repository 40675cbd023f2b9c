//! What has to be true at the end of every test, whatever went wrong in it.

use std::time::Duration;

use super::eventually::{eventually, secs};
use super::orders_process::RunningOrders;
use super::redis_server::RedisServer;

/// Asserts that a process has nothing left over: no lock held, nobody waiting, and each request
/// that came as far as the lock counted once. `requests` is `None` where a test cannot know how
/// many came so far.
pub(crate) async fn check_settled(orders: &RunningOrders, requests: Option<u64>) {
    let gauges = ["tower_lock_held", "tower_lock_waiting"];
    for gauge in gauges {
        eventually(&format!("{gauge} to be 0"), secs(10), async || orders.metric(gauge, &[]).await == 0.0)
            .await;
    }
    if let Some(requests) = requests {
        let metrics = orders.metrics().await;
        let name = "tower_lock_acquisitions_total";
        let counted = metrics.sum(name, &[("lock", "orders")]);
        assert_eq!(counted, requests as f64, "requests counted: {:?}", metrics.non_zero(name));
    }
    let acquired = orders.acquisitions("acquired").await;
    let ends = async || orders.metrics().await.sum("tower_lock_releases_total", &[]);
    eventually(&format!("{acquired} grants to end once each"), secs(10), async || ends().await == acquired)
        .await;
}

/// Asserts for which reasons locks were lost, one reason for each lock, in the order of the alphabet.
pub(crate) async fn check_lost(orders: &RunningOrders, reasons: &[&str]) {
    // A loss may be counted a moment after its request was answered.
    eventually(&format!("the losses {reasons:?}"), secs(10), async || {
        orders.losses().await.len() >= reasons.len()
    })
    .await;
    assert_eq!(orders.losses().await, reasons);
}

/// Asserts that no lock key outlives its ttl: all that are left have an expiry of at most `ttl`
/// and go by themselves. Call it when no request is under way any more.
pub(crate) async fn check_no_orphans(redis: &RedisServer, ttl: Duration) {
    for (key, pttl) in redis.order_locks().await {
        assert_ne!(pttl, -1, "{key} has no expiry");
        assert!(pttl <= ttl.as_millis() as i64, "{key} lives {pttl} ms longer");
    }
    eventually("the last lock key to expire", ttl + secs(1), async || redis.order_locks().await.is_empty())
        .await;
}
