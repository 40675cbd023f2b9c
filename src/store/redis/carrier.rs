//! Which connection carried a `SET` whose answer never came.
//!
//! A clean-up on the same connection cannot overtake the `SET`. So an acquisition that times out or is
//! dropped leaves its connection here, under its token, until [`Carriers::clean_up`] takes it out.

use std::collections::HashMap;

use parking_lot::Mutex;
use redis::RedisResult;
use tokio::time::timeout;

use super::connections::Link;
use super::{classify, decode_release, release_on};
use crate::store::{Owned, OwnerToken, Release, StoreError, StoreErrorKind};

#[derive(Debug, Default)]
pub(super) struct Carriers(Mutex<HashMap<OwnerToken, Vec<Carrier>>>);

#[derive(Debug)]
enum Carrier {
    /// May still deliver it.
    Link(Link),
    /// Was cut after the `SET` went out.
    Gone,
}

impl Carriers {
    /// Call before the first await of sending; the result must see the answer.
    pub(super) fn sending<'a>(&'a self, token: &'a OwnerToken, link: &Link) -> Carried<'a> {
        Carried { carriers: self, token, carrier: Some(Carrier::Link(link.clone())) }
    }

    /// Releases the lock on every connection that may still deliver a `SET` of the token.
    pub(super) async fn clean_up(&self, owned: Owned<'_>) -> Result<Release, StoreError> {
        let carriers = self.0.lock().remove(owned.token).unwrap_or_default();
        let mut outcome = Release::Missing;
        let mut failure = None;
        for carrier in carriers {
            match carrier.clean_up(owned).await {
                Ok(Release::Missing) => {}
                Ok(release) => outcome = release,
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            None => Ok(outcome),
            Some(error) => Err(error),
        }
    }
}

impl Carrier {
    async fn clean_up(self, owned: Owned<'_>) -> Result<Release, StoreError> {
        let Self::Link(link) = self else {
            return Err(StoreError::new(
                StoreErrorKind::Connect,
                "what was sent can no longer be overtaken safely",
            )
            .never_sent());
        };
        match timeout(owned.timeout, release_on(&mut link.connection(), owned)).await {
            Ok(Ok(reply)) => decode_release(reply),
            Ok(Err(error)) => Err(classify::store_error(&error)),
            Err(_) => Err(StoreError::new(StoreErrorKind::Timeout, "no answer to a clean-up")),
        }
    }
}

/// A `SET` on the wire. Dropped without an answer, it remembers its connection.
pub(super) struct Carried<'a> {
    carriers: &'a Carriers,
    token: &'a OwnerToken,
    carrier: Option<Carrier>,
}

impl Carried<'_> {
    pub(super) fn answered<T>(mut self, reply: &RedisResult<T>) {
        self.carrier = match reply {
            Err(error) if classify::store_error(error).is_unresolved() => Some(Carrier::Gone),
            _ => None,
        };
    }
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        if let Some(carrier) = self.carrier.take() {
            self.carriers.0.lock().entry(self.token.clone()).or_default().push(carrier);
        }
    }
}
