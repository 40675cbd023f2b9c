//! Section M of the field reports: what is logged, how often, and what never is.

use http::StatusCode;

use crate::support::eventually::secs;
use crate::support::http::Refusal;
use crate::support::log_lines::Level;
use crate::support::orders_process::{Orders, key_of, ship_path};
use crate::support::redis_server::RedisServer;
use crate::support::running::{Load, count, ends};
use crate::support::settled::{check_no_orphans, check_settled};

#[tokio::test]
async fn ordinary_contention_is_not_worth_a_line() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("0s").start().await;
    redis.rival_takes(&key_of("42")).await;
    let quiet = orders.log().all().len();
    for _ in 0..20 {
        let all = (0..50).map(|_| orders.start_to_ship("42", 0)).collect();
        let answers = ends(all).await;
        assert_eq!(count(&answers, StatusCode::CONFLICT), 50);
    }
    assert_eq!(orders.log().all().len(), quiet, "{:#?}", orders.log().all());
    check_settled(&orders, Some(1000)).await;
}

#[tokio::test]
async fn an_outage_is_worth_a_handful_of_lines_not_one_for_each_request() {
    let mut redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("0s").start().await;
    orders.ship("42", 0).await.shipped();
    redis.kill();
    let load = Load::start(&orders.http, 10, |client, round| ship_path(&format!("o{client}-{round}"), 0));
    tokio::time::sleep(secs(2)).await;
    let answers = load.stop().await;
    assert!(answers.len() > 50, "only {} requests", answers.len());
    for answer in &answers {
        answer.as_ref().expect("an answer").refused(Refusal::StoreUnavailable);
    }
    let lines = orders.log().at_least(Level::Warn);
    assert!((1..10).contains(&lines.len()), "{} lines, such as {:?}", lines.len(), lines.first());
    check_settled(&orders, Some(answers.len() as u64 + 1)).await;
}

#[tokio::test]
async fn no_answer_shows_the_key_or_the_token() {
    let redis = RedisServer::start().await;
    let orders = Orders::on(&redis).max_wait("0s").ttl("1s").start().await;
    let shipping = orders.start_to_ship("secret-42", 60_000);
    redis.until_inside("secret-42").await;
    let token = redis.get(&key_of("secret-42")).await.expect("the key is held");
    let contended = orders.ship("secret-42", 0).await;
    contended.refused(Refusal::Contended);
    let () = redis.command(&["DEL", &key_of("secret-42")]).await;
    let lost = shipping.end().await;
    lost.refused(Refusal::LockLost);

    for answer in [contended, lost] {
        assert!(!answer.text().contains("secret-42"), "{answer:?}");
        assert!(!answer.text().contains(&token), "{answer:?}");
    }
    assert!(!orders.log().all().iter().any(|line| line.contains(&token)), "{:?}", orders.log().all());
    check_settled(&orders, Some(2)).await;
    check_no_orphans(&redis, secs(1)).await;
}
