//! Every table, its replication class, and the keyspace that a class becomes.

use std::fmt;

/// A replication class: tables with the same replication factors. Replication is a property of a keyspace, so each class
/// is one keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Orders, products, stock, and the bookkeeping that makes operations on them atomic.
    Core,
    /// Carts and sessions.
    Carts,
    /// Read models of the catalogue.
    Catalog,
    /// Reports.
    History,
}

impl Class {
    pub const ALL: [Self; 4] = [Self::Core, Self::Carts, Self::Catalog, Self::History];

    /// As the schema files and the configuration name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Carts => "carts",
            Self::Catalog => "catalog",
            Self::History => "history",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// The keyspace of this class; `prefix` is the shop's `store.cassandra.keyspace`.
    pub fn keyspace(self, prefix: &str) -> String {
        match self {
            Self::Core => prefix.to_owned(),
            other => format!("{prefix}_{}", other.name()),
        }
    }
}

macro_rules! tables {
    ($($variant:ident: $class:ident $name:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Table { $($variant,)* }

        impl Table {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub const fn class(self) -> Class {
                match self { $(Self::$variant => Class::$class,)* }
            }
        }
    };
}

tables! {
    OrderById: Core "order_by_id",
    OrdersByCustomer: Core "orders_by_customer",
    OrdersByDay: History "orders_by_day",
    ProductById: Core "product_by_id",
    ProductsByCategory: Catalog "products_by_category",
    Categories: Catalog "categories",
    CategoryBands: Catalog "category_bands",
    Stock: Core "stock",
    StockZones: Core "stock_zones",
    Reservations: Core "reservations",
    Timers: Core "timers",
    TimerBuckets: Core "timer_buckets",
    TimerProgress: Core "timer_progress",
    IdempotencyKeys: Core "idempotency_keys",
    Intents: Core "intents",
    Processes: Core "processes",
    BucketPlans: Core "bucket_plans",
    Buckets: Core "buckets",
    Changes: Core "changes",
    ChangeLanes: Core "change_lanes",
    PartitionWindows: Core "partition_windows",
    PartitionStats: Core "partition_stats",
    RepairRuns: Core "repair_runs",
    AuditLog: Core "audit_log",
    Imports: Core "imports",
    Settings: Core "settings",
    Migration: Core "migration",
    CartsByOwner: Carts "carts_by_owner",
    ClosedCarts: Carts "closed_carts",
    CartChanges: Carts "cart_changes",
    CartsByDay: Carts "carts_by_day",
    SessionsById: Carts "sessions_by_id",
    SessionsByUser: Carts "sessions_by_user",
}

impl Table {
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|table| table.name() == name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
