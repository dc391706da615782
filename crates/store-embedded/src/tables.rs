//! The tables of the engine: what each holds, how it is tuned, and which drop their expired rows when compacted.

use std::sync::Arc;

use fjall::config::{BlockSizePolicy, FilterPolicy, HashRatioPolicy, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions};

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
    pub(crate) fn expires(name: &str) -> bool {
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

    /// Whether rows are asked for by their whole key; otherwise they are only ever walked.
    const fn is_point_read(self) -> bool {
        matches!(
            self,
            Self::Carts
                | Self::Sessions
                | Self::Products
                | Self::Stock
                | Self::Reservations
                | Self::Orders
                | Self::Sales
                | Self::Remembered
                | Self::Meta
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

/// Of rows that are read one by one, and of rows that are walked.
const POINT_BLOCK_BYTES: u32 = 4 << 10;
const WALKED_BLOCK_BYTES: u32 = 8 << 10;

fn options(table: Table, memtable_bytes: u64) -> KeyspaceCreateOptions {
    let memtable_bytes = if table.is_index() { memtable_bytes / INDEX_SHARE } else { memtable_bytes };
    // Only the small upper levels stay in memory for good: what is below grows with the shop, and shares the block cache.
    let options = KeyspaceCreateOptions::default()
        .max_memtable_size(memtable_bytes)
        .index_block_pinning_policy(PinningPolicy::new([true, true, false]))
        .filter_block_pinning_policy(PinningPolicy::new([true, true, false]));
    if table.is_point_read() {
        options
            .data_block_size_policy(BlockSizePolicy::all(POINT_BLOCK_BYTES))
            .data_block_hash_ratio_policy(HashRatioPolicy::all(1.0))
    } else {
        // A walk asks no filter, and passes many rows of a block.
        options
            .data_block_size_policy(BlockSizePolicy::all(WALKED_BLOCK_BYTES))
            .filter_policy(FilterPolicy::disabled())
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
}
