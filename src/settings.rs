//! Every number and policy of a lock, checked once.
//!
//! Numbers go in through [`LockSettingsBuilder`]; [`build`](LockSettingsBuilder::build) refuses nonsense
//! with an error that names the field and the rule. What comes out cannot be wrong any more, so no other
//! module checks again.
//!
//! ```
//! use std::time::Duration;
//! use tower_redis_lock::{LockSettings, OnLost};
//!
//! let defaults = LockSettings::default();
//! assert_eq!(defaults.ttl(), Duration::from_secs(30));
//!
//! let settings = LockSettings::builder()
//!     .ttl(Duration::from_secs(10))
//!     .max_wait(Duration::from_millis(300))
//!     .on_lost(OnLost::Notify)
//!     .build()?;
//! assert_eq!(settings.renew_every(), Some(Duration::from_secs(10) / 3));
//!
//! let error = LockSettings::builder().ttl(Duration::from_millis(3)).build().unwrap_err();
//! assert_eq!(error.field(), "ttl");
//! # Ok::<_, tower_redis_lock::SettingsError>(())
//! ```

use std::fmt;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::queue::{Limits, RunLimit};

const MIN_TTL: Duration = Duration::from_millis(10);
const MAX_TTL: Duration = Duration::from_secs(7 * 24 * 3600);
const MAX_SPAN: Duration = MAX_TTL;
const MIN_STEP: Duration = Duration::from_millis(1);
const DEFAULT_WATCH_AFTER: Duration = Duration::from_millis(250);
const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_millis(500);

/// What happens to the handler when its lock is lost while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLost {
    /// Drop the handler's future and answer 500 `lock-lost`. The default.
    #[default]
    Abort,
    /// Only tell: [`HeldLock::lost`](crate::HeldLock::lost) resolves, the handler's response is sent.
    Notify,
}

/// What happens to a request when the lock store cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Answer 503. The default.
    #[default]
    Reject,
    /// Call the handler without a lock, with [`Unguarded`](crate::Unguarded) in the request's extensions.
    Proceed,
}

/// When the lock is given back, relative to the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseMode {
    /// The response (or its end, for a streamed body) waits for the release, at most one
    /// `command_timeout`. Whoever has seen the answer can take the lock at once. The default.
    #[default]
    BeforeResponse,
    /// The response does not wait; the keeper releases.
    Background,
}

/// How long a request holds its lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldUntil {
    /// Until the response body has ended. The default.
    #[default]
    BodyEnd,
    /// Until the handler has returned the head of its response.
    ResponseHead,
}

/// What happens to a handler that runs when its client goes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDisconnect {
    /// The handler's future is dropped and the lock released. The default, and what servers do.
    #[default]
    Stop,
    /// The handler runs to its end in the background, with the lock held and renewed; its response is
    /// dropped, body included. A request that still waits for its lock stops waiting.
    RunToEnd,
}

/// The settings of a lock: immutable, valid, cheap to clone with the [`Locker`](crate::Locker) that has them.
#[derive(Clone, Debug, PartialEq)]
pub struct LockSettings {
    ttl: Duration,
    renew_every: Option<Duration>,
    max_wait: Duration,
    retry: (Duration, Duration),
    max_attempts: Option<u32>,
    max_hold: Option<Duration>,
    on_lost: OnLost,
    on_store_error: OnStoreError,
    release: ReleaseMode,
    hold: HoldUntil,
    on_disconnect: OnDisconnect,
    command_timeout: Duration,
    margin: Duration,
    watch_after: Duration,
    max_waiters: Limits,
    hand_over: RunLimit,
}

impl LockSettings {
    /// Starts from the defaults.
    pub fn builder() -> LockSettingsBuilder {
        LockSettingsBuilder::default()
    }

    /// How long the lock lives in the store without a renewal.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Pause between renewals; `None` = the lock is never renewed.
    pub fn renew_every(&self) -> Option<Duration> {
        self.renew_every
    }

    /// How long an acquisition may wait for a contended lock.
    pub fn max_wait(&self) -> Duration {
        self.max_wait
    }

    /// How many attempts an acquisition may make; `None` = as many as fit into `max_wait`.
    pub fn max_attempts(&self) -> Option<u32> {
        self.max_attempts
    }

    /// How long a lock may be held; `None` = as long as it is renewed.
    pub fn max_hold(&self) -> Option<Duration> {
        self.max_hold
    }

    /// What happens to the handler when the lock is lost.
    pub fn on_lost(&self) -> OnLost {
        self.on_lost
    }

    /// What happens when the store cannot be used.
    pub fn on_store_error(&self) -> OnStoreError {
        self.on_store_error
    }

    /// When the lock is given back.
    pub fn release(&self) -> ReleaseMode {
        self.release
    }

    /// What ends the hold.
    pub fn hold(&self) -> HoldUntil {
        self.hold
    }

    /// What happens to a handler whose client goes away.
    pub fn on_disconnect(&self) -> OnDisconnect {
        self.on_disconnect
    }

    /// Time limit of one store command.
    pub fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// Safety margin by which the local deadline lies before the store's expiry.
    pub fn margin(&self) -> Duration {
        self.margin
    }

    /// How old a hold has to be before the keeper watches its key for changes.
    pub fn watch_after(&self) -> Duration {
        self.watch_after
    }

    pub(crate) fn max_waiters(&self) -> Limits {
        self.max_waiters
    }

    pub(crate) fn hand_over(&self) -> RunLimit {
        self.hand_over
    }

    pub(crate) fn backoff(&self, seed: u64) -> Backoff {
        Backoff::new(self.retry.0, self.retry.1, seed)
    }
}

impl Default for LockSettings {
    fn default() -> Self {
        let ttl = Duration::from_secs(30);
        Self {
            ttl,
            renew_every: Some(ttl / 3),
            max_wait: Duration::from_secs(1),
            retry: (Duration::from_millis(50), Duration::from_millis(500)),
            max_attempts: None,
            max_hold: None,
            on_lost: OnLost::default(),
            on_store_error: OnStoreError::default(),
            release: ReleaseMode::default(),
            hold: HoldUntil::default(),
            on_disconnect: OnDisconnect::default(),
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            margin: default_margin(ttl),
            watch_after: DEFAULT_WATCH_AFTER,
            max_waiters: Limits { per_key: 1_000, total: 10_000 },
            hand_over: RunLimit { turns: 32, span: Duration::from_secs(1) },
        }
    }
}

fn default_margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Collects settings; [`build`](Self::build) checks them.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LockSettingsBuilder {
    ttl: Option<Duration>,
    renew_every: Option<Option<Duration>>,
    max_wait: Option<Duration>,
    retry: Option<(Duration, Duration)>,
    max_attempts: Option<u32>,
    max_hold: Option<Duration>,
    on_lost: OnLost,
    on_store_error: OnStoreError,
    release: ReleaseMode,
    hold: HoldUntil,
    on_disconnect: OnDisconnect,
    command_timeout: Option<Duration>,
    margin: Option<Duration>,
    watch_after: Option<Duration>,
    max_waiters: Option<Limits>,
    hand_over: Option<RunLimit>,
}

impl LockSettingsBuilder {
    /// How long the lock lives without a renewal: 10 ms to 7 days, cut to whole milliseconds. Default 30 s.
    ///
    /// A dead holder blocks others for at most this long. Renewal keeps a living holder's lock, so there is
    /// no need for a ttl as long as the longest handler.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Pause between renewals: 1 ms to less than half of the ttl. Default ttl / 3.
    pub fn renew_every(mut self, pause: Duration) -> Self {
        self.renew_every = Some(Some(pause));
        self
    }

    /// Never renew: the lock is lost when its ttl is over.
    pub fn without_renewal(mut self) -> Self {
        self.renew_every = Some(None);
        self
    }

    /// How long an acquisition may wait for a contended lock: 0 (one attempt) to 7 days. Default 1 s.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    /// Delays between attempts: they double from `initial` to `max`, each cut to a random 10 to 100 %. At least 1 ms,
    /// `initial` not above `max`. Default 50 ms to 500 ms.
    pub fn retry(mut self, initial: Duration, max: Duration) -> Self {
        self.retry = Some((initial, max));
        self
    }

    /// How many attempts an acquisition may make inside `max_wait`: at least 1. Default: no limit.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// How long a lock may be held: 10 ms to 7 days. When it is over, renewal stops and the lock counts
    /// as lost with the reason `max_hold`. Default: no limit.
    pub fn max_hold(mut self, hold: Duration) -> Self {
        self.max_hold = Some(hold);
        self
    }

    /// What happens to the handler when the lock is lost. Default [`OnLost::Abort`].
    pub fn on_lost(mut self, policy: OnLost) -> Self {
        self.on_lost = policy;
        self
    }

    /// What happens when the store cannot be used. Default [`OnStoreError::Reject`].
    pub fn on_store_error(mut self, policy: OnStoreError) -> Self {
        self.on_store_error = policy;
        self
    }

    /// When the lock is given back. Default [`ReleaseMode::BeforeResponse`].
    pub fn release(mut self, mode: ReleaseMode) -> Self {
        self.release = mode;
        self
    }

    /// What ends the hold. Default [`HoldUntil::BodyEnd`].
    pub fn hold(mut self, until: HoldUntil) -> Self {
        self.hold = until;
        self
    }

    /// What happens to a handler that runs when its client goes away. Default [`OnDisconnect::Stop`].
    pub fn on_disconnect(mut self, policy: OnDisconnect) -> Self {
        self.on_disconnect = policy;
        self
    }

    /// Time limit of one store command: 1 ms to ttl / 3. Default 500 ms, or ttl / 3 where that is less.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = Some(timeout);
        self
    }

    /// By how much the local deadline lies before the store's expiry: less than half of the ttl.
    /// Default 1 % of the ttl + 2 ms, which covers clocks that run up to 1 % apart.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// How old a hold has to be before the keeper watches its key, so that a loss is noticed within
    /// milliseconds: at most 7 days. Default 250 ms, so that short holds cost no command more.
    pub fn watch_after(mut self, age: Duration) -> Self {
        self.watch_after = Some(age);
        self
    }

    /// How many requests of this process may wait behind the first one, for one key and for all keys
    /// together; beyond, the answer is [`AcquireError::QueueFull`](crate::AcquireError::QueueFull) at once.
    /// `per_key` not above `total`. Default 1 000 and 10 000.
    pub fn max_waiters(mut self, per_key: usize, total: usize) -> Self {
        self.max_waiters = Some(Limits { per_key, total });
        self
    }

    /// How many times, and for how long, this process may pass a lock from one of its requests to the next
    /// before it releases it for real, so that other processes get their turn. 0 turns: always. `span` at
    /// most 7 days. Default 32 turns and 1 s: a release for real costs about 2 ms when nobody else waits,
    /// which 32 turns make small, and another process waits for at most one such run.
    pub fn hand_over(mut self, turns: u32, span: Duration) -> Self {
        self.hand_over = Some(RunLimit { turns, span });
        self
    }

    /// Checks every number against the others.
    ///
    /// # Errors
    ///
    /// A [`SettingsError`] that names the first field that breaks its rule.
    pub fn build(self) -> Result<LockSettings, SettingsError> {
        let Self {
            ttl,
            renew_every,
            max_wait,
            retry,
            max_attempts,
            max_hold,
            on_lost,
            on_store_error,
            release,
            hold,
            on_disconnect,
            command_timeout,
            margin,
            watch_after,
            max_waiters,
            hand_over,
        } = self;
        let defaults = LockSettings::default();

        let ttl = ttl.unwrap_or(defaults.ttl);
        within("ttl", ttl, MIN_TTL, MAX_TTL, "must be 10 ms to 7 days")?;
        let ttl = Duration::from_millis(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));

        let renew_every = renew_every.unwrap_or(Some(ttl / 3));
        if let Some(pause) = renew_every
            && (pause < MIN_STEP || pause >= ttl / 2)
        {
            return refuse("renew_every", "must be at least 1 ms and less than ttl / 2");
        }

        let max_wait = max_wait.unwrap_or(defaults.max_wait);
        within("max_wait", max_wait, Duration::ZERO, MAX_SPAN, "must be at most 7 days")?;

        let (initial, longest) = retry.unwrap_or(defaults.retry);
        within("retry", initial, MIN_STEP, longest, "must start at 1 ms or more and not above its maximum")?;
        within("retry", longest, MIN_STEP, MAX_SPAN, "must grow to at most 7 days")?;

        if max_attempts == Some(0) {
            return refuse("max_attempts", "must be at least 1");
        }
        if let Some(limit) = max_hold {
            within("max_hold", limit, MIN_TTL, MAX_SPAN, "must be 10 ms to 7 days")?;
        }

        let command_timeout = command_timeout.unwrap_or_else(|| DEFAULT_COMMAND_TIMEOUT.min(ttl / 3));
        within("command_timeout", command_timeout, MIN_STEP, ttl / 3, "must be 1 ms to ttl / 3")?;

        let margin = margin.unwrap_or_else(|| default_margin(ttl));
        if margin >= ttl / 2 {
            return refuse("margin", "must be less than ttl / 2");
        }

        let watch_after = watch_after.unwrap_or(DEFAULT_WATCH_AFTER);
        within("watch_after", watch_after, Duration::ZERO, MAX_SPAN, "must be at most 7 days")?;

        let max_waiters = max_waiters.unwrap_or(defaults.max_waiters);
        if max_waiters.per_key > max_waiters.total {
            return refuse("max_waiters", "must not allow more for one key than in total");
        }
        let hand_over = hand_over.unwrap_or(defaults.hand_over);
        within("hand_over", hand_over.span, Duration::ZERO, MAX_SPAN, "must span at most 7 days")?;

        Ok(LockSettings {
            ttl,
            renew_every,
            max_wait,
            retry: (initial, longest),
            max_attempts,
            max_hold,
            on_lost,
            on_store_error,
            release,
            hold,
            on_disconnect,
            command_timeout,
            margin,
            watch_after,
            max_waiters,
            hand_over,
        })
    }
}

fn within(
    field: &'static str,
    value: Duration,
    least: Duration,
    most: Duration,
    rule: &'static str,
) -> Result<(), SettingsError> {
    if value < least || value > most {
        return refuse(field, rule);
    }
    Ok(())
}

fn refuse<T>(field: &'static str, rule: &'static str) -> Result<T, SettingsError> {
    Err(SettingsError { field, rule })
}

/// A setting that breaks its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    field: &'static str,
    rule: &'static str,
}

impl SettingsError {
    /// Name of the field, as its builder method is called.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// The rule that it breaks.
    pub fn rule(&self) -> &'static str {
        self.rule
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.rule)
    }
}

impl std::error::Error for SettingsError {}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn check_refused(field: &str, set: impl FnOnce(LockSettingsBuilder) -> LockSettingsBuilder) {
        let error = set(LockSettings::builder()).build().expect_err("must be refused");
        assert_eq!(error.field(), field, "{error}");
    }

    // B06
    #[test]
    fn nonsense_is_refused_by_name() {
        for ttl in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_micros(999),
            ms(9),
            Duration::from_secs(10 * 365 * 24 * 3600),
            Duration::MAX,
        ] {
            check_refused("ttl", |b| b.ttl(ttl));
        }
        check_refused("renew_every", |b| b.ttl(ms(1000)).renew_every(ms(500)));
        check_refused("renew_every", |b| b.renew_every(Duration::ZERO));
        check_refused("renew_every", |b| b.renew_every(Duration::MAX));
        check_refused("max_wait", |b| b.max_wait(Duration::MAX));
        check_refused("retry", |b| b.retry(Duration::ZERO, ms(5)));
        check_refused("retry", |b| b.retry(ms(6), ms(5)));
        check_refused("retry", |b| b.retry(ms(6), Duration::MAX));
        check_refused("max_attempts", |b| b.max_attempts(0));
        check_refused("max_hold", |b| b.max_hold(Duration::ZERO));
        check_refused("max_hold", |b| b.max_hold(Duration::MAX));
        check_refused("command_timeout", |b| b.command_timeout(Duration::ZERO));
        check_refused("command_timeout", |b| b.ttl(ms(900)).command_timeout(ms(301)));
        check_refused("max_waiters", |b| b.max_waiters(11, 10));
        check_refused("hand_over", |b| b.hand_over(1, Duration::MAX));
        check_refused("watch_after", |b| b.watch_after(Duration::MAX));
        check_refused("margin", |b| b.ttl(ms(900)).margin(ms(450)));
    }

    #[test]
    fn sensible_values_are_kept() {
        for ttl in [ms(10), ms(500), ms(1500), MAX_TTL] {
            let settings = LockSettings::builder().ttl(ttl).build().expect("valid");
            assert_eq!(settings.ttl(), ttl);
            assert!(settings.renew_every().is_some_and(|pause| pause < ttl / 2));
            assert!(settings.command_timeout() <= ttl / 3);
        }
        let waits_longer_than_it_holds = LockSettings::builder().ttl(ms(100)).max_wait(ms(9000));
        assert_eq!(waits_longer_than_it_holds.build().expect("valid").max_wait(), ms(9000));
    }

    #[test]
    fn the_builder_without_changes_gives_the_defaults() {
        assert_eq!(LockSettings::builder().build(), Ok(LockSettings::default()));
    }
}
