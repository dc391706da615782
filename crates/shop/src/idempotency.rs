//! Requests with an idempotency key. The caller names the key and what was requested; the shop decides how long the
//! outcome is kept.

use mw_domain::limits::IDEMPOTENCY_HOURS;
use mw_domain::{IdempotencyKey, Timestamp};
use mw_store::{Fingerprint, RequestIdentity};

/// An idempotency key with the fingerprint of the request that carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedRequest {
    pub key: IdempotencyKey,
    pub fingerprint: Fingerprint,
}

impl KeyedRequest {
    pub(crate) fn identity(self, now: Timestamp) -> RequestIdentity {
        let keep_until = now.plus_seconds(IDEMPOTENCY_HOURS * 3_600);
        RequestIdentity { key: self.key, fingerprint: self.fingerprint, keep_until }
    }
}
