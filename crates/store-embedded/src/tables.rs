//! The tables of the store: what each holds, its name on disk, its tuning, and whether compaction drops its expired rows.
//!
//! Memory does not grow with the data: only filters and indexes of the two upper levels are pinned, everything below shares the
//! block cache.

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
    /// Open holds by the moment at which they end.
    HoldTimers,
    /// Orders with their events.
    Orders,
    OrdersByCustomer,
    OrdersByZone,
    OrdersByTime,
    /// Unpaid orders by the moment at which they are cancelled.
    PaymentTimers,
    /// Running sums by day and zone, of orders before the first hour of [`Self::SalesByHour`].
    Sales,
    /// Idempotency keys with their stored outcomes.
    IdempotencyKeys,
    /// The currency, the commit sequence number, the first hour of the hourly sums, how far the feed is purged, and the
    /// checkpoints of imports.
    Meta,
    /// Running sums by hour and zone.
    SalesByHour,
    /// The change feed: rows of consecutive changes by the number of their first.
    Changes,
}

impl Table {
    pub(crate) const ALL: [Self; 22] = [
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
        Self::HoldTimers,
        Self::Orders,
        Self::OrdersByCustomer,
        Self::OrdersByZone,
        Self::OrdersByTime,
        Self::PaymentTimers,
        Self::Sales,
        Self::IdempotencyKeys,
        Self::Meta,
        Self::SalesByHour,
        Self::Changes,
    ];

    /// The tables whose rows expire.
    pub(crate) const EXPIRING: [Self; 7] = [
        Self::Carts,
        Self::ClosedCarts,
        Self::CartChanges,
        Self::Sessions,
        Self::SessionsByUser,
        Self::Reservations,
        Self::IdempotencyKeys,
    ];

    /// The table's name on disk.
    pub(crate) const fn name(self) -> &'static str {
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
            Self::HoldTimers => "hold_timers",
            Self::Orders => "orders",
            Self::OrdersByCustomer => "orders_by_customer",
            Self::OrdersByZone => "orders_by_zone",
            Self::OrdersByTime => "orders_by_time",
            Self::PaymentTimers => "payment_timers",
            Self::Sales => "sales",
            Self::IdempotencyKeys => "idempotency_keys",
            Self::Meta => "meta",
            Self::SalesByHour => "sales_by_hour",
            Self::Changes => "changes",
        }
    }

    /// The table with this name on disk.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }

    /// Whether values start with their expiry, so that compaction may drop expired rows.
    pub(crate) fn expires(name: &str) -> bool {
        Self::EXPIRING.iter().any(|table| table.name() == name)
    }

    /// Whether rows have no value. Such rows are many and small, and take several times their bytes in a memtable.
    const fn is_index(self) -> bool {
        matches!(
            self,
            Self::CartActivity
                | Self::SessionsByUser
                | Self::ProductsByCategory
                | Self::HoldTimers
                | Self::OrdersByCustomer
                | Self::OrdersByZone
                | Self::OrdersByTime
                | Self::PaymentTimers
        )
    }

    /// Whether rows are read by their whole key; the other tables are only scanned.
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
                | Self::SalesByHour
                | Self::IdempotencyKeys
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

/// The memtable of an index is smaller by this factor.
const INDEX_SHARE: u64 = 4;

/// Block sizes of tables with point reads, and of tables that are only scanned.
const POINT_BLOCK_BYTES: u32 = 4 << 10;
const SCANNED_BLOCK_BYTES: u32 = 8 << 10;

fn options(table: Table, memtable_bytes: u64) -> KeyspaceCreateOptions {
    let memtable_bytes = if table.is_index() { memtable_bytes / INDEX_SHARE } else { memtable_bytes };
    // Only the small upper levels are pinned: the levels below grow with the data and share the block cache.
    let options = KeyspaceCreateOptions::default()
        .max_memtable_size(memtable_bytes)
        .index_block_pinning_policy(PinningPolicy::new([true, true, false]))
        .filter_block_pinning_policy(PinningPolicy::new([true, true, false]));
    if table.is_point_read() {
        options
            .data_block_size_policy(BlockSizePolicy::all(POINT_BLOCK_BYTES))
            .data_block_hash_ratio_policy(HashRatioPolicy::all(1.0))
    } else {
        // A scan uses no filter and reads many rows of a block.
        options
            .data_block_size_policy(BlockSizePolicy::all(SCANNED_BLOCK_BYTES))
            .filter_policy(FilterPolicy::disabled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_own_index_and_name() {
        for (index, table) in Table::ALL.iter().enumerate() {
            assert_eq!(*table as usize, index);
        }
        let mut names: Vec<&str> = Table::ALL.iter().map(|table| table.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Table::ALL.len());
    }
}
