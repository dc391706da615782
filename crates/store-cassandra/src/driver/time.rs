//! Timestamps and TTLs as Cassandra stores them.

use std::time::{SystemTime, UNIX_EPOCH};

use mw_domain::Timestamp;
use scylla::value::CqlTimestamp;

/// Rows stay this much longer than they are visible: the time in the row decides about visibility, the TTL only deletes.
const TTL_GRACE_SECONDS: i64 = 3_600;
/// The longest TTL of Cassandra: twenty years.
const TTL_MAX_SECONDS: i64 = 20 * 365 * 86_400;

pub(crate) const fn to_cql(at: Timestamp) -> CqlTimestamp {
    CqlTimestamp(at.as_millis())
}

pub(crate) const fn from_cql(at: CqlTimestamp) -> Timestamp {
    Timestamp::from_millis(at.0)
}

/// The reading of a clock.
pub(crate) fn at(clock: SystemTime) -> Timestamp {
    let since = clock.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The TTL of a row that is not visible from `until` on.
pub(crate) fn ttl_seconds(now: Timestamp, until: Timestamp) -> i32 {
    let seconds = until.as_millis().saturating_sub(now.as_millis()).max(0) / 1_000;
    capped_ttl(seconds.saturating_add(TTL_GRACE_SECONDS))
}

/// The longest TTL up to so many seconds.
pub(crate) fn capped_ttl(seconds: i64) -> i32 {
    i32::try_from(seconds.min(TTL_MAX_SECONDS)).unwrap_or(i32::MAX)
}
