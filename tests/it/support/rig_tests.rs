//! The rig itself: a fault that does nothing would let every test above it pass.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};

use super::eventually::{eventually, ms, secs};
use super::proxy::Proxy;
use super::redis_monitor::PttlSamples;
use super::redis_server::RedisServer;

async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(secs(5)))
        .set_response_timeout(Some(ms(300)));
    let client = redis::Client::open(url)?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn set(connection: &mut MultiplexedConnection, key: &str) -> RedisResult<()> {
    redis::cmd("SET").arg(key).arg("v").query_async(connection).await
}

async fn behind_a_proxy() -> (RedisServer, Proxy, MultiplexedConnection) {
    let redis = RedisServer::start().await;
    let proxy = Proxy::to(redis.addr()).await;
    let connection = connect(&proxy.url()).await.expect("a way through the proxy");
    (redis, proxy, connection)
}

#[tokio::test]
async fn a_healthy_proxy_is_not_noticed() {
    let (redis, _proxy, mut connection) = behind_a_proxy().await;
    set(&mut connection, "k").await.unwrap();
    assert_eq!(redis.get("k").await.as_deref(), Some("v"));
}

#[tokio::test]
async fn a_frozen_proxy_moves_nothing_and_delivers_later() {
    let (redis, proxy, mut connection) = behind_a_proxy().await;
    proxy.freeze();
    assert!(set(&mut connection, "k").await.unwrap_err().is_timeout());
    assert_eq!(redis.get("k").await, None);
    proxy.unfreeze();
    redis.until_key("k").await;
    set(&mut connection, "k2").await.expect("the connection is as it was");
}

#[tokio::test]
async fn a_frozen_proxy_accepts_and_never_speaks() {
    let (_redis, proxy, _connection) = behind_a_proxy().await;
    proxy.freeze();
    assert!(tokio::net::TcpStream::connect(proxy.addr()).await.is_ok());
    assert!(tokio::time::timeout(ms(300), connect(&proxy.url())).await.is_err());
}

#[tokio::test]
async fn delays_are_of_one_direction() {
    let (redis, proxy, mut connection) = behind_a_proxy().await;
    proxy.delay_replies(ms(600));
    assert!(set(&mut connection, "slow-reply").await.unwrap_err().is_timeout());
    assert_ne!(redis.pttl("slow-reply").await, -2, "the command was in time");
    proxy.delay_replies(ms(0));
    proxy.delay_commands(ms(600));
    assert!(set(&mut connection, "slow-command").await.unwrap_err().is_timeout());
    assert_eq!(redis.pttl("slow-command").await, -2, "the command is still on its way");
    redis.until_key("slow-command").await;
}

#[tokio::test]
async fn a_swallowed_reply_is_missing_though_its_command_ran() {
    let (redis, proxy, mut connection) = behind_a_proxy().await;
    proxy.swallow_replies_to("set", 1);
    let () = redis::cmd("PING").query_async(&mut connection).await.unwrap();
    assert!(!proxy.has_swallowed_all());
    assert!(set(&mut connection, "k").await.unwrap_err().is_timeout());
    assert!(proxy.has_swallowed_all());
    assert_eq!(redis.get("k").await.as_deref(), Some("v"));
    assert!(set(&mut connection, "k").await.unwrap_err().is_timeout(), "nothing comes after it");

    let mut connection = connect(&proxy.url()).await.unwrap();
    proxy.swallow(1);
    assert!(set(&mut connection, "k2").await.unwrap_err().is_timeout());
    assert_eq!(redis.get("k2").await.as_deref(), Some("v"));
}

#[tokio::test]
async fn repointing_leaves_old_connections_where_they_are() {
    let (old, proxy, mut connection) = behind_a_proxy().await;
    let new = RedisServer::start().await;
    proxy.repoint(new.addr());
    set(&mut connection, "k").await.unwrap();
    let mut later = connect(&proxy.url()).await.unwrap();
    set(&mut later, "k2").await.unwrap();
    assert_eq!((old.pttl("k").await, old.pttl("k2").await), (-1, -2));
    assert_eq!((new.pttl("k").await, new.pttl("k2").await), (-2, -1));
}

#[tokio::test]
async fn a_closing_proxy_ends_connections_and_a_refusing_one_takes_none() {
    let (_redis, proxy, mut connection) = behind_a_proxy().await;
    proxy.refuse();
    proxy.close_all();
    assert!(set(&mut connection, "k").await.is_err());
    assert!(connect(&proxy.url()).await.is_err());
    proxy.accept_again();
    connect(&proxy.url()).await.expect("connections are taken again");
}

#[tokio::test]
async fn a_server_can_be_paused_killed_and_restarted_empty() {
    let mut redis = RedisServer::start().await;
    let mut connection = connect(&redis.url()).await.unwrap();
    redis.pause().await;
    assert!(set(&mut connection, "k").await.unwrap_err().is_timeout());
    redis.resume();
    redis.until_key("k").await;
    redis.kill();
    assert!(connect(&redis.url()).await.is_err());
    redis.restart().await;
    assert_eq!(redis.pttl("k").await, -2);
}

#[tokio::test]
async fn a_server_comes_back_with_its_data_when_asked_to() {
    let mut redis = RedisServer::start().await;
    let () = redis.command(&["SET", "k", "v"]).await;
    let () = redis.command(&["SAVE"]).await;
    redis.restart_with_data(&[]).await;
    eventually("the data to be loaded", secs(10), async || {
        redis.try_command::<bool>(&["EXISTS", "k"]).await.is_ok_and(|there| there)
    })
    .await;
}

#[tokio::test]
async fn commands_are_recorded_and_counted() {
    let redis = RedisServer::start().await;
    let monitor = redis.monitor().await;
    let script = "return redis.call('SET', KEYS[1], 'v')";
    let () = redis.command(&["EVAL", script, "1", "k"]).await;
    let () = redis.command(&["set", "k", "v"]).await;
    monitor.catch_up(&redis).await;
    assert_eq!(monitor.commands_on("SET", "k").len(), 2);
    assert_eq!(monitor.commands("SET").len(), 1, "the script's own are told apart");
    assert_eq!(redis.calls().await["eval"], 1);
}

#[tokio::test]
async fn remaining_times_are_sampled() {
    let redis = RedisServer::start().await;
    let samples = PttlSamples::of(&redis, "k", ms(5)).await;
    let () = redis.command(&["SET", "k", "v", "PX", "200"]).await;
    let mut seen = Vec::new();
    eventually("the key to come and go", secs(10), async || {
        seen.extend(samples.take());
        seen.iter().any(|left| *left > 0) && seen.last() == Some(&-2)
    })
    .await;
    assert!(!seen.contains(&-1), "{seen:?}");
    assert_eq!(redis.keys("*").await, []);
}
