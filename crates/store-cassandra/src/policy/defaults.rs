//! What each table is, the rules it has where the configuration says nothing, and the reason where they are not those of
//! the shop's design papers.

use std::time::Duration;

use scylla::statement::{Consistency, SerialConsistency};

use super::{Compaction, Deletions, Nature, ReadRepair, Rules};
use crate::tables::Table;

const DAY: Duration = Duration::from_hours(24);
const WEEK: Duration = Duration::from_hours(7 * 24);

/// Everything at quorums of the local data centre, differences mended when they are read and looked for every day.
pub(super) const STRICT: Rules = Rules {
    write: Consistency::LocalQuorum,
    read: Consistency::LocalQuorum,
    showcase: Consistency::LocalQuorum,
    serial: SerialConsistency::LocalSerial,
    read_repair: ReadRepair::Blocking,
    gc_grace: Duration::from_hours(10 * 24),
    repair: Some(DAY),
    ttl: None,
    compaction: Compaction::LEVELED,
};

pub(super) fn rules(table: Table) -> Rules {
    match table {
        Table::OrderById | Table::StockZones | Table::BucketPlans | Table::Settings | Table::Imports => {
            STRICT
        }
        Table::OrdersByCustomer | Table::OrdersByZoneDay | Table::OrdersByDay | Table::Buckets => {
            Rules { compaction: Compaction::tiered(), ..STRICT }
        }
        Table::ProductById | Table::ProductsByCategory | Table::CategoryBands => {
            Rules { showcase: Consistency::LocalOne, repair: Some(WEEK), ..STRICT }
        }
        // What is deleted all the time is forgotten as soon as repair allows, or reads would wade through it.
        Table::Stock => Rules { showcase: Consistency::LocalOne, gc_grace: 2 * DAY, ..STRICT },
        Table::Reservations | Table::Due | Table::DueSlots => Rules { gc_grace: 2 * DAY, ..STRICT },
        Table::IdempotencyKeys => Rules { gc_grace: 2 * DAY, repair: None, ttl: Some(2 * DAY), ..STRICT },
        Table::Intents => Rules {
            read_repair: ReadRepair::None,
            gc_grace: Duration::from_hours(3),
            repair: None,
            ttl: Some(10 * DAY),
            compaction: Compaction::TimeWindow { window: DAY },
            ..STRICT
        },
        Table::Processes => Rules {
            read_repair: ReadRepair::None,
            gc_grace: Duration::from_hours(3),
            repair: None,
            ttl: Some(10 * DAY),
            ..STRICT
        },
        Table::Categories | Table::CartsByOwner | Table::SessionsById | Table::SessionsByUser => {
            Rules { repair: Some(WEEK), ..STRICT }
        }
        Table::CartChanges => Rules {
            read_repair: ReadRepair::None,
            gc_grace: DAY,
            repair: None,
            ttl: Some(30 * DAY),
            compaction: Compaction::TimeWindow { window: DAY },
            ..STRICT
        },
        Table::CartsByDay => Rules { read_repair: ReadRepair::None, repair: Some(WEEK), ..STRICT },
    }
}

const LIVES_ON: Nature =
    Nature { is_conditional: false, is_read_back: true, expires: false, deletions: Deletions::Matter };

pub(super) const fn nature(table: Table) -> Nature {
    match table {
        Table::OrderById | Table::ProductById | Table::Stock | Table::Settings => {
            Nature { is_conditional: true, ..LIVES_ON }
        }
        Table::OrdersByCustomer
        | Table::OrdersByZoneDay
        | Table::OrdersByDay
        | Table::ProductsByCategory
        | Table::StockZones
        | Table::BucketPlans
        | Table::Buckets
        | Table::Imports => LIVES_ON,
        Table::Due | Table::DueSlots | Table::Categories | Table::CategoryBands => {
            Nature { deletions: Deletions::Harmless, ..LIVES_ON }
        }
        Table::IdempotencyKeys | Table::CartsByOwner | Table::SessionsById => {
            Nature { is_conditional: true, expires: true, ..LIVES_ON }
        }
        Table::Reservations
        | Table::SessionsByUser
        | Table::Intents
        | Table::Processes
        | Table::CartChanges => Nature { expires: true, deletions: Deletions::Harmless, ..LIVES_ON },
        Table::CartsByDay => {
            Nature { is_read_back: false, expires: true, deletions: Deletions::Harmless, ..LIVES_ON }
        }
    }
}

pub(super) const fn reason(table: Table) -> &'static str {
    match table {
        Table::OrderById => {
            "a step of the status is one conditional write; its event lies in the same partition"
        }
        Table::OrdersByCustomer => {
            "a shopper sees a new order at once, so old pages are read at a quorum too"
        }
        Table::OrdersByZoneDay | Table::OrdersByDay => {
            "an order is in all its views or in none: ANY and ONE would let a report miss orders that were paid"
        }
        Table::ProductById => "the showcase reads one copy; the price at checkout is read at a quorum",
        Table::ProductsByCategory | Table::Categories | Table::CategoryBands => {
            "a quorum of two copies is both: with three a lost node stops no price change"
        }
        Table::Stock => {
            "conditional writes decide who gets a unit; listings may show a figure of one copy; released holds are \
             deleted, so deletions are kept no longer than repair needs"
        }
        Table::StockZones => "a zone that was written is found by the next look at the product's stock",
        Table::Reservations => {
            "written twice, when it is made and when it is closed; the units themselves are decided in stock"
        }
        Table::Due | Table::DueSlots => {
            "a queue: what is done is deleted; a row that came back is checked and dropped"
        }
        Table::IdempotencyKeys => {
            "rows live two days, as long as their deletions are kept, so nothing needs repair"
        }
        Table::Intents => {
            "written and deleted around every order; an intent that came back finds everything done"
        }
        Table::Processes => {
            "a process that came back from the dead list is taken over again, which changes nothing"
        }
        Table::BucketPlans => "every process must count by the same plan",
        Table::Buckets => "a bucket that nobody finds would hide its orders",
        Table::Imports | Table::Settings => "small, and read when something begins",
        Table::CartsByOwner => "a shopper must see their own cart, and a removed line must not come back",
        Table::CartChanges => "nothing is changed or deleted, whole days expire",
        Table::CartsByDay => "an index for reports; what it names is read and checked",
        Table::SessionsById => "a session that was ended must not come back",
        Table::SessionsByUser => "keys only; what they name is read and checked",
    }
}
