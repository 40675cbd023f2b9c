//! Futures that are dropped, at every point where that can happen.
//!
//! After each drop the same has to be true: the key is free within a bound, nothing is held or waiting, the
//! acquisition was counted once, and the lock was given back or cleaned up exactly once.

mod acquiring;
mod disconnect;
mod in_line;
mod requests;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use tower_redis_lock::store::StoreErrorKind;

use crate::doubles::key;
use crate::doubles::recorded::Recorded;
use crate::doubles::scripted_store::{Act, Op, ScriptedStore};
use crate::support::eventually::{eventually, ms, secs};

/// What a store may do while somebody waits for it: nothing yet, done but not answered, late, silent.
const SLOW: [Act; 6] =
    [Act::Pend(3), Act::PendReply(3), Act::Slow(ms(10)), Act::LateReply(ms(10)), Act::LoseReply, Act::Hang];

/// Drops the future after so many polls, unless it has ended by then.
async fn drop_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut count = 0;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            count += 1;
            if count < polls { Poll::Pending } else { Poll::Ready(None) }
        }
    })
    .await
}

/// Waits until the lock `/k` is free and everything is counted.
async fn check_clean(what: &str, store: &ScriptedStore, recorded: &Recorded, acquisitions: usize) {
    let bound = secs(3);
    eventually(&format!("{what}: the key to be free"), bound, async || store.is_free(&key("/k"))).await;
    recorded.check_settled(acquisitions).await;
    // Whatever was still under way may arrive now.
    tokio::time::sleep(secs(2)).await;
    assert!(store.is_free(&key("/k")), "{what}: the key is taken again");
}

/// How often the lock was given back, in whatever way, by commands that the store carried out or not.
fn returns(store: &ScriptedStore) -> (usize, usize) {
    (store.count(Op::Release), store.count(Op::CleanUp))
}

const DOWN: Act = Act::Fail(StoreErrorKind::Connect);
