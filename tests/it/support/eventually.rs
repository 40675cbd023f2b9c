//! Waiting for something to become true, instead of sleeping and hoping that it has.

use std::time::{Duration, Instant};

/// How long to pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Asks `probe` again and again until it answers with something, and returns that.
///
/// `bound` is an upper limit against hanging, not a statement about speed.
///
/// # Panics
///
/// When `bound` has passed and the probe has still nothing to give. `what` says in the message
/// what was waited for.
pub(crate) async fn eventually_some<T>(
    what: &str,
    bound: Duration,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(start.elapsed() < bound, "waited {:?} in vain for: {what}", start.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
}

/// Like [`eventually_some`], for a condition.
pub(crate) async fn eventually(what: &str, bound: Duration, mut probe: impl AsyncFnMut() -> bool) {
    eventually_some(what, bound, async || probe().await.then_some(())).await;
}

/// Bounds one future, so that a test that would hang says instead where it hung.
pub(crate) async fn within<F: Future>(what: &str, bound: Duration, future: F) -> F::Output {
    match tokio::time::timeout(bound, future).await {
        Ok(output) => output,
        Err(_) => panic!("did not end within {bound:?}: {what}"),
    }
}

/// `within` is shorter to write with plain numbers.
pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A number of milliseconds.
pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[tokio::test]
async fn eventually_returns_as_soon_as_the_condition_holds() {
    let mut looks = 0;
    eventually("the third look", secs(5), async || {
        looks += 1;
        looks == 3
    })
    .await;
    assert_eq!(looks, 3);
}

#[tokio::test]
#[should_panic(expected = "in vain for: the moon")]
async fn eventually_gives_up_at_its_bound_and_says_what_it_waited_for() {
    eventually("the moon", ms(30), async || false).await;
}
