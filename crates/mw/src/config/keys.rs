//! All keys, in the order of `mw config`. Any other key is an error.

use std::time::Duration;

use super::kind::Kind;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    /// Dotted; `*` stands for one name of the operator's choice.
    pub(crate) path: &'static str,
    pub(crate) kind: Kind,
    pub(crate) presence: Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The default file has it.
    Always,
    /// May be absent altogether.
    Optional,
    /// May be absent, and is never shown.
    Secret,
}

const fn key(path: &'static str, kind: Kind) -> Key {
    Key { path, kind, presence: Presence::Always }
}

const fn optional(path: &'static str, kind: Kind) -> Key {
    Key { path, kind, presence: Presence::Optional }
}

const fn secret(path: &'static str) -> Key {
    Key { path, kind: Kind::Text, presence: Presence::Secret }
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Bounds of timeouts of clients and networks.
const TIMEOUT: Kind = Kind::Time { min: Duration::from_millis(100), max: Duration::from_hours(1) };
/// Bounds of lifetimes of carts, sessions and orders.
const LIFETIME: Kind = Kind::Time { min: Duration::from_secs(1), max: Duration::from_hours(10 * 365 * 24) };
/// A stale read may be 30 s old; the rest of that is for replicas that were down.
const PRODUCT_CACHE_TTL_MAX: Duration = Duration::from_secs(20);

/// What a status word of another program may mean.
const ORDER_STATUSES: &[&str] = &["created", "paid", "shipped", "delivered", "cancelled", "returned"];

const fn count(min: u64, max: u64) -> Kind {
    Kind::Count { min, max }
}

const fn size(min: u64, max: u64) -> Kind {
    Kind::Size { min, max }
}

pub(crate) const KEYS: &[Key] = &[
    key("shop.currency", Kind::Currency),
    key("server.listen", Kind::Address),
    key("server.max_in_flight", count(1, 1_000_000)),
    key("server.max_streams", count(1, 100_000)),
    key("server.max_connections", count(1, 1_000_000)),
    key("server.body_limit", size(1 << 10, 64 * MIB)),
    key("server.header_limit", size(8 << 10, MIB)),
    key("server.request_timeout", TIMEOUT),
    key("server.body_timeout", TIMEOUT),
    key("server.header_timeout", TIMEOUT),
    key("server.idle_timeout", TIMEOUT),
    key("server.shutdown_grace", TIMEOUT),
    optional("server.workers", count(1, 1_024)),
    secret("server.pseudonym_key"),
    optional("server.tls.certificate", Kind::Text),
    optional("server.tls.key", Kind::Text),
    key("log.filter", Kind::LogFilter),
    key("log.format", Kind::OneOf(&["text", "json"])),
    key("store.engine", Kind::OneOf(&["embedded", "cassandra", "mongodb"])),
    key("store.embedded.path", Kind::Text),
    key("store.embedded.block_cache", size(MIB, TIB)),
    key("store.embedded.cache", size(MIB, TIB)),
    key("store.embedded.memtable", size(MIB, GIB)),
    key("store.embedded.min_free_space", size(0, TIB)),
    key("store.embedded.write_queue", count(1, 1_000_000)),
    optional("store.embedded.archive", Kind::Text),
    optional("store.embedded.backups", Kind::Text),
    key("store.cassandra.contact_points", Kind::Texts),
    key("store.cassandra.local_dc", Kind::Text),
    key("store.cassandra.keyspace", Kind::Text),
    key("store.cassandra.request_timeout", TIMEOUT),
    key("store.cassandra.max_clock_skew", TIMEOUT),
    key("store.cassandra.ready_share", Kind::Share),
    key("store.cassandra.product_cache_ttl", Kind::Time { min: Duration::ZERO, max: PRODUCT_CACHE_TTL_MAX }),
    key("store.cassandra.product_cache_size", size(MIB, TIB)),
    key("store.cassandra.auto_repair", Kind::Flag),
    key("store.cassandra.internal_listen", Kind::AddressOrOff),
    optional("store.cassandra.internal_advertise", Kind::Address),
    secret("store.cassandra.internal_token"),
    optional("store.cassandra.trace", Kind::Text),
    optional("store.cassandra.username", Kind::Text),
    secret("store.cassandra.password"),
    optional("store.cassandra.tls.ca", Kind::Text),
    optional("store.cassandra.tls.certificate", Kind::Text),
    optional("store.cassandra.tls.key", Kind::Text),
    optional("store.cassandra.replication.*.*", count(1, 100)),
    optional("store.cassandra.policy.*.*", Kind::Scalar),
    key("store.mongodb.uri", Kind::Uri),
    key("store.mongodb.database", Kind::Text),
    key("store.mongodb.shape", Kind::OneOf(&["customer", "user"])),
    key("store.mongodb.request_timeout", TIMEOUT),
    optional("store.mongodb.shard_keys.orders", Kind::Text),
    optional("store.mongodb.shard_keys.products", Kind::Text),
    optional("store.mongodb.shard_keys.carts", Kind::Text),
    optional("store.mongodb.statuses.*", Kind::OneOf(ORDER_STATUSES)),
    optional("store.mongodb.policy.*.*", Kind::Scalar),
    key(
        "operate.partitions.window",
        Kind::Time { min: Duration::from_secs(1), max: Duration::from_hours(1) },
    ),
    key("operate.partitions.wide", size(MIB, GIB)),
    key("operate.partitions.adapt", Kind::OneOf(&["auto", "advise", "off"])),
    optional("operate.repair.blackout", Kind::Texts),
    key("operate.jolokia.port", count(1, 65_535)),
    optional("operate.jolokia.username", Kind::Text),
    secret("operate.jolokia.password"),
    key("carts.user_ttl", LIFETIME),
    key("carts.guest_ttl", LIFETIME),
    key("sessions.ttl", LIFETIME),
    key("orders.payment_window", LIFETIME),
    key("reservations.ttl", Kind::Seconds { min: 1, max: 86_400 }),
    optional("migration.statuses.*", Kind::OneOf(ORDER_STATUSES)),
    optional("migration.zones.*", Kind::Text),
    key("feed.topics", Kind::Topics),
    key("feed.retention", LIFETIME),
    optional("tokens", Kind::Tokens),
];

pub(crate) enum Match {
    Key(&'static Key),
    /// A table of keys.
    Table,
    Unknown,
}

pub(crate) fn find(path: &str) -> Match {
    if let Some(key) = KEYS.iter().find(|key| matches(key.path, path)) {
        return Match::Key(key);
    }
    if KEYS.iter().any(|key| is_above(path, key.path)) {
        return Match::Table;
    }
    Match::Unknown
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut names, mut parts) = (pattern.split('.'), path.split('.'));
    loop {
        match (names.next(), parts.next()) {
            (None, None) => return true,
            (Some(name), Some(part)) if name == part || (name == "*" && !part.is_empty()) => {}
            _ => return false,
        }
    }
}

fn is_above(table: &str, pattern: &str) -> bool {
    let depth = table.split('.').count();
    let mut ends = pattern.match_indices('.').map(|(at, _)| at);
    ends.nth(depth - 1).and_then(|end| pattern.get(..end)).is_some_and(|above| matches(above, table))
}

/// Minimum similarity (0 to 1) for a suggested key.
const LIKENESS_MIN: f64 = 0.85;

/// The most similar key.
pub(crate) fn similar(path: &str) -> Option<&'static str> {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let score = |key: &Key| {
        let whole = strsim::jaro_winkler(key.path, path);
        let name = strsim::jaro_winkler(&last(key.path), &last(path)) * 0.95;
        whole.max(name)
    };
    KEYS.iter()
        .map(|key| (score(key), key.path))
        .filter(|(score, path)| *score >= LIKENESS_MIN && !path.contains('*'))
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tables_and_unknown_paths_are_distinguished() {
        assert!(matches!(find("server.listen"), Match::Key(_)));
        assert!(matches!(find("store.cassandra.replication.core.dc1"), Match::Key(_)));
        for table in ["server", "server.tls", "store.cassandra.replication", "store.cassandra.policy.orders"]
        {
            assert!(matches!(find(table), Match::Table), "{table}");
        }
        for unknown in ["", "serve", "server.", "server.listen.port", "server.tls.key.x", "a.b.c.d.e"] {
            assert!(matches!(find(unknown), Match::Unknown), "{unknown}");
        }
    }

    #[test]
    fn a_misspelt_key_gets_a_suggestion() {
        assert_eq!(similar("server.listn"), Some("server.listen"));
        assert_eq!(similar("order.payment_window"), Some("orders.payment_window"));
        assert_eq!(similar("payment_window"), Some("orders.payment_window"));
        assert_eq!(similar("zzz"), None);
    }
}
