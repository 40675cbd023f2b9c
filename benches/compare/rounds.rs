//! Taking turns: everybody once per round, each round beginning with another one.

use std::future::Future;
use std::pin::Pin;

/// One contender of a comparison, and what was measured of it so far.
pub(crate) struct Lane<'a, T> {
    pub(crate) name: &'static str,
    run: Box<dyn Fn() -> Pin<Box<dyn Future<Output = T> + 'a>> + 'a>,
    pub(crate) samples: Vec<T>,
}

impl<'a, T> Lane<'a, T> {
    pub(crate) fn new<F>(name: &'static str, run: impl Fn() -> F + 'a) -> Self
    where
        F: Future<Output = T> + 'a,
    {
        Self { name, run: Box::new(move || Box::pin(run())), samples: Vec::new() }
    }

    /// The median of `value` over the rounds.
    pub(crate) fn median(&self, value: impl Fn(&T) -> f64) -> f64 {
        median(self.samples.iter().map(value).collect())
    }
}

/// Runs every lane once, to warm up.
pub(crate) async fn warm_up<T>(lanes: &[Lane<'_, T>]) {
    for lane in lanes {
        (lane.run)().await;
    }
}

/// Runs every lane `rounds` times, by turns.
pub(crate) async fn interleave<T>(lanes: &mut [Lane<'_, T>], rounds: usize) {
    for round in 0..rounds {
        for turn in 0..lanes.len() {
            let index = (round + turn) % lanes.len();
            let sample = (lanes[index].run)().await;
            lanes[index].samples.push(sample);
        }
    }
}

pub(crate) fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// By the nearest rank. `NaN` without values.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.clamp(1, values.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}
