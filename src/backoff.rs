//! Attempt number to delay: growing, bounded, jittered. Pure and seedable; somebody else sleeps.
//!
//! A uniform draw from the grown step spreads waiters best for the fewest attempts; see "Exponential Backoff
//! and Jitter", M. Brooker, AWS Architecture Blog, 2015. The draw starts at a tenth of the step, not at
//! zero, so that an unlucky waiter does not knock several times in a row.

use std::time::Duration;

/// An endless sequence of delays.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    step: Duration,
    longest: Duration,
    random: fastrand::Rng,
}

impl Backoff {
    pub(crate) fn new(initial: Duration, longest: Duration, seed: u64) -> Self {
        Self { step: initial, longest, random: fastrand::Rng::with_seed(seed) }
    }

    pub(crate) fn next_delay(&mut self) -> Duration {
        let step = self.step;
        self.step = step.saturating_mul(2).min(self.longest);
        step.mul_f64(0.1 + 0.9 * self.random.f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn delays_grow_to_the_limit_and_stay_inside_their_step() {
        let mut backoff = Backoff::new(ms(50), ms(500), 7);
        for step in [50, 100, 200, 400, 500, 500, 500] {
            let delay = backoff.next_delay();
            assert!(delay >= ms(step) / 10 && delay <= ms(step), "{delay:?} in a step of {step} ms");
        }
    }

    // B23
    #[test]
    fn waiters_with_different_seeds_do_not_knock_in_step() {
        let mut firsts: Vec<_> =
            (0..200).map(|seed| Backoff::new(ms(50), ms(500), seed).next_delay()).collect();
        firsts.sort();
        let densest = firsts.windows(20).map(|w| w[19] - w[0]).min().expect("200 delays");
        assert!(densest > ms(1), "20 of 200 waiters within {densest:?}");
    }
}
