//! The traits of each table, its default policy, and the reason where the default differs from the shop's design papers.

use std::time::Duration;

use scylla::statement::{Consistency, SerialConsistency};

use super::{Compaction, ReadRepair, ResurrectedRows, TablePolicy, TableTraits};
use crate::schema::tables::Table;

const DAY: Duration = Duration::from_hours(24);
const WEEK: Duration = Duration::from_hours(7 * 24);

/// `LOCAL_QUORUM` for reads and writes, blocking read repair, and a repair every day.
pub(super) const STRICT: TablePolicy = TablePolicy {
    write: Consistency::LocalQuorum,
    read: Consistency::LocalQuorum,
    stale_read: Consistency::LocalQuorum,
    serial: SerialConsistency::LocalSerial,
    read_repair: ReadRepair::Blocking,
    gc_grace: Duration::from_hours(10 * 24),
    repair: Some(DAY),
    ttl: None,
    compaction: Compaction::LEVELED,
};

pub(super) fn policy(table: Table) -> TablePolicy {
    match table {
        Table::OrderById | Table::StockZones | Table::BucketPlans | Table::Settings | Table::Imports => {
            STRICT
        }
        Table::Migration => TablePolicy { gc_grace: 2 * DAY, ..STRICT },
        Table::OrdersByCustomer | Table::OrdersByDay | Table::Buckets => {
            TablePolicy { compaction: Compaction::tiered(), ..STRICT }
        }
        Table::ProductById | Table::ProductsByCategory | Table::CategoryBands => {
            TablePolicy { stale_read: Consistency::LocalOne, repair: Some(WEEK), ..STRICT }
        }
        // Rows are deleted all the time: tombstones are purged as soon as the repair interval allows, or reads would scan
        // them.
        Table::Stock => TablePolicy { stale_read: Consistency::LocalOne, gc_grace: 2 * DAY, ..STRICT },
        Table::Reservations | Table::Timers | Table::TimerBuckets | Table::TimerProgress => {
            TablePolicy { gc_grace: 2 * DAY, ..STRICT }
        }
        Table::IdempotencyKeys => {
            TablePolicy { gc_grace: 2 * DAY, repair: None, ttl: Some(2 * DAY), ..STRICT }
        }
        Table::Intents => TablePolicy {
            read_repair: ReadRepair::None,
            gc_grace: Duration::from_hours(3),
            repair: None,
            ttl: Some(10 * DAY),
            compaction: Compaction::TimeWindow { window: DAY },
            ..STRICT
        },
        Table::Changes => TablePolicy {
            read_repair: ReadRepair::None,
            gc_grace: DAY,
            repair: None,
            ttl: Some(8 * DAY),
            compaction: Compaction::TimeWindow { window: DAY },
            ..STRICT
        },
        Table::Processes | Table::ChangeLanes | Table::PartitionWindows => TablePolicy {
            read_repair: ReadRepair::None,
            gc_grace: Duration::from_hours(3),
            repair: None,
            ttl: Some(10 * DAY),
            ..STRICT
        },
        Table::PartitionStats => TablePolicy {
            read_repair: ReadRepair::None,
            gc_grace: DAY,
            repair: None,
            ttl: Some(40 * DAY),
            ..STRICT
        },
        Table::AuditLog => TablePolicy { repair: Some(WEEK), ttl: Some(400 * DAY), ..STRICT },
        Table::RepairRuns
        | Table::Categories
        | Table::CartsByOwner
        | Table::ClosedCarts
        | Table::SessionsById
        | Table::SessionsByUser => TablePolicy { repair: Some(WEEK), ..STRICT },
        Table::CartChanges => TablePolicy {
            read_repair: ReadRepair::None,
            gc_grace: DAY,
            repair: None,
            ttl: Some(30 * DAY),
            compaction: Compaction::TimeWindow { window: DAY },
            ..STRICT
        },
        Table::CartsByDay => TablePolicy { read_repair: ReadRepair::None, repair: Some(WEEK), ..STRICT },
    }
}

/// Rows without TTL that are read back, and must not reappear once they are deleted.
const PERMANENT: TableTraits = TableTraits {
    has_lwt: false,
    is_read_back: true,
    expires: false,
    resurrected_rows: ResurrectedRows::Harmful,
};

pub(super) const fn traits(table: Table) -> TableTraits {
    match table {
        Table::OrderById | Table::ProductById | Table::Stock | Table::Settings | Table::Migration => {
            TableTraits { has_lwt: true, ..PERMANENT }
        }
        Table::OrdersByCustomer
        | Table::OrdersByDay
        | Table::ProductsByCategory
        | Table::StockZones
        | Table::BucketPlans
        | Table::Buckets
        | Table::RepairRuns
        | Table::Imports => PERMANENT,
        Table::Timers
        | Table::TimerBuckets
        | Table::TimerProgress
        | Table::Categories
        | Table::CategoryBands => TableTraits { resurrected_rows: ResurrectedRows::Harmless, ..PERMANENT },
        Table::IdempotencyKeys | Table::CartsByOwner | Table::SessionsById => {
            TableTraits { has_lwt: true, expires: true, ..PERMANENT }
        }
        Table::ClosedCarts => TableTraits { expires: true, ..PERMANENT },
        Table::Reservations
        | Table::SessionsByUser
        | Table::Intents
        | Table::Processes
        | Table::Changes
        | Table::ChangeLanes
        | Table::PartitionWindows
        | Table::PartitionStats
        | Table::AuditLog
        | Table::CartChanges => {
            TableTraits { expires: true, resurrected_rows: ResurrectedRows::Harmless, ..PERMANENT }
        }
        Table::CartsByDay => TableTraits {
            is_read_back: false,
            expires: true,
            resurrected_rows: ResurrectedRows::Harmless,
            ..PERMANENT
        },
    }
}

pub(super) const fn reason(table: Table) -> &'static str {
    match table {
        Table::OrderById => "a status step is one LWT; its event is a row of the same partition",
        Table::OrdersByCustomer => "a user sees a new order at once, so old pages are read at a quorum too",
        Table::OrdersByDay => {
            "an order is in all its views or in none: ANY and ONE would let a report miss orders that were paid"
        }
        Table::ProductById => "a stale read asks one replica; the price at checkout is read at a quorum",
        Table::ProductsByCategory | Table::Categories | Table::CategoryBands => {
            "at replication factor 2 a quorum is both replicas; at 3 a price change survives the loss of a node"
        }
        Table::Stock => {
            "LWTs decide who gets a unit; a category list may show the level of one replica; released holds are deleted, \
             so tombstones are kept no longer than the repair interval requires"
        }
        Table::StockZones => "a zone that was written is found by the next read of the product's stock",
        Table::Reservations => {
            "written twice, when it is made and when it is closed; the units themselves are decided in stock"
        }
        Table::TimerProgress => "two cells a shard, which only grow",
        Table::Timers | Table::TimerBuckets => {
            "a queue: a row is deleted when it is done; a row that reappears is checked and dropped"
        }
        Table::IdempotencyKeys => {
            "rows live two days, as long as their tombstones are kept, so no repair is needed"
        }
        Table::Intents => {
            "written and deleted around every order; an intent that reappears finds its work done"
        }
        Table::Processes => "a dead process that reappears is recovered again, which changes nothing",
        Table::Changes => {
            "rows are never updated or deleted; whole days expire, each row by the TTL of feed.retention"
        }
        Table::ChangeLanes => {
            "a lane that is not listed would hide its changes; a record outlives its rows by a day"
        }
        Table::PartitionWindows | Table::PartitionStats => {
            "statistics: a row that is lost or reappears is replaced by the next window"
        }
        Table::RepairRuns => "a deadline counts from the last complete repair, whichever process asks",
        Table::AuditLog => "rows are never updated or deleted; they expire",
        Table::BucketPlans => "every process must write by the same bucket plan",
        Table::Buckets => "a bucket that is not listed would hide its orders",
        Table::Migration => {
            "the state of a live migration says what was taken, and one process may change it"
        }
        Table::Imports | Table::Settings => "small, and read once, when an import or a process starts",
        Table::CartsByOwner => "a user must see their own cart, and a removed line must not reappear",
        Table::ClosedCarts => "a cart that was opened again must not be listed as closed",
        Table::CartChanges => "rows are never updated or deleted; whole days expire",
        Table::CartsByDay => "an index for reports; the carts that it lists are read and checked",
        Table::SessionsById => "a session that was ended must not reappear",
        Table::SessionsByUser => "an index; the sessions that it lists are read and checked",
    }
}
