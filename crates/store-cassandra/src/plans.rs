//! How finely the partitions of a key are cut, as rows that start at an instant.
//!
//! A plan is written with an instant in the future, and every process reads the plans again more often than that, so that
//! all know a plan before it counts. Writers ask the plan of the moment; which buckets exist is a list of its own, so a
//! reader walks just those.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError, RwLock};

use mw_domain::bucket::Plan;
use mw_domain::{Period, Timestamp};
use mw_store::{Refusal, Result};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::tables::Table;
use crate::time::{from_cql, to_cql};

/// A plan starts at least this long after it is made: several times the interval of reading plans again.
const AHEAD_SECONDS: i64 = 60;
/// Buckets that this process remembers to have announced.
const ANNOUNCED_MAX: usize = 200_000;
/// Pieces at most.
const CUT_MAX: u32 = 64;

/// Tables whose partitions are cut by plans.
pub(crate) const PLANNED: [(Table, u32); 4] = [
    (Table::OrdersByCustomer, 1),
    (Table::OrdersByZoneDay, 4),
    (Table::OrdersByDay, 4),
    (Table::ProductsByCategory, 1),
];

type Known = HashMap<(Table, String), Vec<Plan>>;

#[derive(Debug)]
pub(crate) struct Plans {
    read: PreparedStatement,
    write: PreparedStatement,
    announce: PreparedStatement,
    buckets: PreparedStatement,
    known: RwLock<Known>,
    announced: Mutex<HashSet<(Table, String, Timestamp, String)>>,
}

impl Plans {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let plans = Self {
            read: cql
                .prepare(
                    Table::BucketPlans,
                    Access::Read,
                    "SELECT key, starts_at, cut FROM {} WHERE table_name = ?",
                )
                .await?,
            write: cql
                .prepare(
                    Table::BucketPlans,
                    Access::Write,
                    "INSERT INTO {} (table_name, key, starts_at, cut) VALUES (?, ?, ?, ?)",
                )
                .await?,
            announce: cql
                .prepare(
                    Table::Buckets,
                    Access::Write,
                    "INSERT INTO {} (table_name, key, starts_at, bucket) VALUES (?, ?, ?, ?)",
                )
                .await?,
            buckets: cql
                .prepare(
                    Table::Buckets,
                    Access::Read,
                    "SELECT starts_at, bucket FROM {} WHERE table_name = ? AND key = ? AND starts_at < ? LIMIT ?",
                )
                .await?,
            known: RwLock::default(),
            announced: Mutex::default(),
        };
        plans.refresh(cql).await?;
        Ok(plans)
    }

    /// Reads all plans again.
    pub(crate) async fn refresh(&self, cql: &Cql) -> Result<()> {
        let mut known = Known::new();
        for (table, _) in PLANNED {
            let mut from = PagingState::start();
            loop {
                let (rows, next) = cql
                    .page::<(String, CqlTimestamp, Option<i32>)>(&self.read, (table.name(),), from)
                    .await?;
                for (key, starts_at, cut) in rows {
                    let cut = u32::try_from(cut.unwrap_or(1)).unwrap_or(1).clamp(1, CUT_MAX);
                    let plan = Plan { starts_at: from_cql(starts_at), cut };
                    known.entry((table, key)).or_default().push(plan);
                }
                let Some(next) = next else { break };
                from = next;
            }
        }
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    /// The plans of a key, oldest first: the table's own, then those made for the key.
    pub(crate) fn of(&self, table: Table, key: &str) -> Vec<Plan> {
        let usual = PLANNED.iter().find(|(planned, _)| *planned == table).map_or(1, |(_, cut)| *cut);
        let mut plans = vec![Plan { starts_at: Timestamp::EPOCH, cut: usual }];
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = known.get(&(table, key.to_owned())) {
            plans.extend_from_slice(own);
        }
        plans
    }

    /// The plan that holds at a moment.
    pub(crate) fn at(&self, table: Table, key: &str, at: Timestamp) -> Plan {
        Plan::at(&self.of(table, key), at)
    }

    /// Makes it known that a bucket of a key has something in it.
    pub(crate) async fn announce(
        &self,
        cql: &Cql,
        table: Table,
        key: &str,
        starts_at: Timestamp,
        bucket: &str,
    ) -> Result<()> {
        let id = (table, key.to_owned(), starts_at, bucket.to_owned());
        if self.announced.lock().unwrap_or_else(PoisonError::into_inner).contains(&id) {
            return Ok(());
        }
        cql.write(&self.announce, (table.name(), key, to_cql(starts_at), bucket)).await?;
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        if announced.len() >= ANNOUNCED_MAX {
            announced.clear();
        }
        announced.insert(id);
        Ok(())
    }

    /// Buckets of a key that start before the period's end, newest first.
    pub(crate) async fn buckets(
        &self,
        cql: &Cql,
        table: Table,
        key: &str,
        period: &Period,
        limit: i32,
    ) -> Result<Vec<(Timestamp, String)>> {
        let values = (table.name(), key, to_cql(period.to), limit);
        let rows: Vec<(CqlTimestamp, String)> = cql.rows(&self.buckets, values).await?;
        Ok(rows.into_iter().map(|(starts_at, bucket)| (from_cql(starts_at), bucket)).collect())
    }
}

impl CassandraStore {
    /// Cuts the partitions of a key finer or coarser from an instant on.
    pub async fn set_plan(&self, table: Table, key: &str, plan: Plan, now: Timestamp) -> Result<()> {
        let invalid = |field: &str, detail: String| Refusal::InvalidField { field: field.to_owned(), detail };
        if !PLANNED.iter().any(|(planned, _)| *planned == table) {
            let names: Vec<&str> = PLANNED.iter().map(|(table, _)| table.name()).collect();
            return Err(invalid("table", format!("one of {}", names.join(", "))).into());
        }
        if !(1..=CUT_MAX).contains(&plan.cut) {
            return Err(invalid("cut", format!("1 to {CUT_MAX}")).into());
        }
        if plan.starts_at < now.plus_seconds(AHEAD_SECONDS) {
            let detail =
                format!("at least {AHEAD_SECONDS} s from now, so that every process knows it in time");
            return Err(invalid("starts_at", detail).into());
        }
        let cut = i32::try_from(plan.cut).unwrap_or(1);
        self.cql.write(&self.plans.write, (table.name(), key, to_cql(plan.starts_at), cut)).await?;
        self.plans.refresh(&self.cql).await
    }

    /// The plans of a key that were made for it, oldest first.
    pub fn plans(&self, table: Table, key: &str) -> Vec<Plan> {
        self.plans.of(table, key)
    }
}
