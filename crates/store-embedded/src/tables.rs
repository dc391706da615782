//! The tables of the engine: what each holds, how it is tuned, and which drop their expired rows when compacted.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use fjall::compaction::filter::{CompactionFilter, Context, Factory, ItemAccessor, Verdict};
use fjall::config::{BlockSizePolicy, HashRatioPolicy, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions};
use mw_codec::VERSION;

/// A table; `keys.rs` has the key of each, `mw-codec` the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Table {
    /// The active cart of an owner.
    Carts,
    /// Ordered and abandoned carts of an owner, newest first.
    ClosedCarts,
    /// Line changes of an owner, newest first.
    CartChanges,
    /// Active and abandoned carts by the hour of their last change.
    CartActivity,
    Sessions,
    SessionsByUser,
    Products,
    ProductsByCategory,
    Stock,
    Ledger,
    Reservations,
    /// Open holds by the moment they end.
    HoldsDue,
    /// Orders with their events.
    Orders,
    OrdersByCustomer,
    OrdersByZone,
    OrdersByTime,
    /// Orders that wait for payment, by the moment they are cancelled.
    PaymentsDue,
    /// Running sums by day and zone.
    Sales,
    /// Idempotency keys with the outcome they remember.
    Remembered,
    /// The currency, and how far imports got.
    Meta,
}

impl Table {
    pub(crate) const ALL: [Self; 20] = [
        Self::Carts,
        Self::ClosedCarts,
        Self::CartChanges,
        Self::CartActivity,
        Self::Sessions,
        Self::SessionsByUser,
        Self::Products,
        Self::ProductsByCategory,
        Self::Stock,
        Self::Ledger,
        Self::Reservations,
        Self::HoldsDue,
        Self::Orders,
        Self::OrdersByCustomer,
        Self::OrdersByZone,
        Self::OrdersByTime,
        Self::PaymentsDue,
        Self::Sales,
        Self::Remembered,
        Self::Meta,
    ];

    /// The table's name on disk.
    const fn name(self) -> &'static str {
        match self {
            Self::Carts => "carts",
            Self::ClosedCarts => "closed_carts",
            Self::CartChanges => "cart_changes",
            Self::CartActivity => "cart_activity",
            Self::Sessions => "sessions",
            Self::SessionsByUser => "sessions_by_user",
            Self::Products => "products",
            Self::ProductsByCategory => "products_by_category",
            Self::Stock => "stock",
            Self::Ledger => "ledger",
            Self::Reservations => "reservations",
            Self::HoldsDue => "holds_due",
            Self::Orders => "orders",
            Self::OrdersByCustomer => "orders_by_customer",
            Self::OrdersByZone => "orders_by_zone",
            Self::OrdersByTime => "orders_by_time",
            Self::PaymentsDue => "payments_due",
            Self::Sales => "sales",
            Self::Remembered => "remembered",
            Self::Meta => "meta",
        }
    }

    /// Whether a value begins with its expiry, so that compaction may drop the row.
    fn expires(name: &str) -> bool {
        [
            Self::Carts,
            Self::ClosedCarts,
            Self::CartChanges,
            Self::Sessions,
            Self::SessionsByUser,
            Self::Reservations,
            Self::Remembered,
        ]
        .iter()
        .any(|table| table.name() == name)
    }

    /// Whether rows are keys alone. They are many and small, and weigh far more in memory than their bytes.
    const fn is_index(self) -> bool {
        matches!(
            self,
            Self::CartActivity
                | Self::SessionsByUser
                | Self::ProductsByCategory
                | Self::HoldsDue
                | Self::OrdersByCustomer
                | Self::OrdersByZone
                | Self::OrdersByTime
                | Self::PaymentsDue
        )
    }

    /// Whether rows are mostly asked for by their whole key.
    const fn is_point_read(self) -> bool {
        matches!(
            self,
            Self::Carts | Self::Sessions | Self::Products | Self::Stock | Self::Orders | Self::Remembered
        )
    }
}

/// The open tables, by [`Table`].
#[derive(Clone)]
pub(crate) struct Tables(Arc<[Keyspace]>);

impl Tables {
    pub(crate) fn open(db: &Database, memtable_bytes: u64) -> fjall::Result<Self> {
        let keyspaces: fjall::Result<Vec<Keyspace>> = Table::ALL
            .iter()
            .map(|table| db.keyspace(table.name(), || options(*table, memtable_bytes)))
            .collect();
        Ok(Self(keyspaces?.into()))
    }

    #[expect(clippy::indexing_slicing, reason = "one keyspace was opened for each table, in the same order")]
    pub(crate) fn get(&self, table: Table) -> &Keyspace {
        &self.0[table as usize]
    }
}

/// An index gets this part of the memory that another table gets for what was written last.
const INDEX_SHARE: u64 = 4;

fn options(table: Table, memtable_bytes: u64) -> KeyspaceCreateOptions {
    let memtable_bytes = if table.is_index() { memtable_bytes / INDEX_SHARE } else { memtable_bytes };
    let options = KeyspaceCreateOptions::default()
        .max_memtable_size(memtable_bytes)
        .filter_block_pinning_policy(PinningPolicy::all(true))
        .index_block_pinning_policy(PinningPolicy::all(true));
    if table.is_point_read() {
        options
            .data_block_size_policy(BlockSizePolicy::all(4 * 1_024))
            .data_block_hash_ratio_policy(HashRatioPolicy::all(1.0))
    } else {
        options
    }
}

/// A row is dropped only this long after its expiry, so that a clock set forward by mistake costs nothing.
const GRACE_MS: i64 = 3_600_000;

/// Drops expired rows while tables are compacted. The time is the latest that any write has told the engine.
pub(crate) struct ExpiryFilter {
    now_ms: Arc<AtomicI64>,
}

impl ExpiryFilter {
    /// A filter for the tables whose rows expire, none for the others.
    pub(crate) fn factory(now_ms: &Arc<AtomicI64>, name: &str) -> Option<Arc<dyn Factory>> {
        Table::expires(name).then(|| Arc::new(Self { now_ms: Arc::clone(now_ms) }) as Arc<dyn Factory>)
    }
}

impl Factory for ExpiryFilter {
    fn name(&self) -> &'static str {
        "expiry"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(DropBefore { cutoff_ms: self.now_ms.load(Ordering::Relaxed).saturating_sub(GRACE_MS) })
    }
}

struct DropBefore {
    cutoff_ms: i64,
}

impl CompactionFilter for DropBefore {
    fn filter_item(
        &mut self,
        item: ItemAccessor<'_>,
        _: &Context,
    ) -> fjall::compaction::filter::CompactionFilterResult {
        let value = item.value()?;
        Ok(if is_expired(&value, self.cutoff_ms) { Verdict::Remove } else { Verdict::Keep })
    }
}

/// A value that cannot be understood is kept: whoever reads it will tell.
fn is_expired(value: &[u8], cutoff_ms: i64) -> bool {
    match value.split_first() {
        Some((&VERSION, rest)) => {
            rest.first_chunk::<8>().is_some_and(|expiry| i64::from_be_bytes(*expiry) <= cutoff_ms)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_own_place_and_name() {
        for (at, table) in Table::ALL.iter().enumerate() {
            assert_eq!(*table as usize, at);
        }
        let mut names: Vec<&str> = Table::ALL.iter().map(|table| table.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Table::ALL.len());
    }

    #[test]
    fn only_what_is_long_expired_is_dropped() {
        let value = |expiry: i64| [&[VERSION], expiry.to_be_bytes().as_slice(), b"rest"].concat();
        assert!(is_expired(&value(99), 100));
        assert!(is_expired(&value(100), 100));
        assert!(!is_expired(&value(101), 100));
        assert!(!is_expired(b"", 100));
        assert!(!is_expired(&[VERSION + 1; 20], i64::MAX));
    }

    #[test]
    fn compaction_drops_expired_rows_of_expiring_tables_only() {
        let folder = tempfile::tempdir().unwrap();
        let now_ms = Arc::new(AtomicI64::new(10 * GRACE_MS));
        let clock = Arc::clone(&now_ms);
        let db = Database::builder(folder.path())
            .with_compaction_filter_factories(Arc::new(move |name| ExpiryFilter::factory(&clock, name)))
            .open()
            .unwrap();
        let tables = Tables::open(&db, 1 << 20).unwrap();
        let value = |expiry: i64| [&[VERSION], expiry.to_be_bytes().as_slice()].concat();
        for table in [Table::Sessions, Table::Products] {
            let keyspace = tables.get(table);
            keyspace.insert("old", value(9 * GRACE_MS)).unwrap();
            keyspace.insert("within grace", value(9 * GRACE_MS + 1)).unwrap();
            keyspace.rotate_memtable_and_wait().unwrap();
            keyspace.major_compact().unwrap();
        }
        let left = |table| tables.get(table).len().unwrap();
        assert_eq!((left(Table::Sessions), left(Table::Products)), (1, 2));
    }
}
