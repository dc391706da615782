//! How finely the partitions of a key are cut, as rows that start at an instant.
//!
//! A plan is written with an instant in the future, and every process reads the plans again more often than that, so that
//! all know a plan before it counts. Writers ask the plan of the moment; which buckets exist is a list of its own, so a
//! reader walks just those.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError, RwLock};

use mw_domain::bucket::{MONTH_PIECES_MAX, Plan};
use mw_domain::{Category, GeoZone, Period, Timestamp, UserId};
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

/// A table whose partitions are cut by plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    pub table: Table,
    /// Pieces, where no plan was made for a key.
    pub usual_cut: u32,
    /// Pieces at most.
    pub cut_max: u32,
    /// What is cut, and what its key is.
    pub what: &'static str,
}

pub const PLANNED: [Planned; 4] = [
    Planned {
        table: Table::OrdersByCustomer,
        usual_cut: 1,
        cut_max: MONTH_PIECES_MAX,
        what: "a month of a customer; the key is a user id",
    },
    Planned {
        table: Table::OrdersByZoneDay,
        usual_cut: 4,
        cut_max: CUT_MAX,
        what: "a day of a zone; the key is a zone",
    },
    Planned {
        table: Table::OrdersByDay,
        usual_cut: 4,
        cut_max: CUT_MAX,
        what: "a day of the whole shop; there is no key",
    },
    Planned {
        table: Table::ProductsByCategory,
        usual_cut: 1,
        cut_max: CUT_MAX,
        what: "a price band of a category; the key is a category",
    },
];

/// A plan that was made for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPlan {
    pub table: Table,
    pub key: String,
    pub plan: Plan,
}

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
        for Planned { table, .. } in PLANNED {
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
        let usual = PLANNED.iter().find(|planned| planned.table == table);
        let cut = usual.map_or(1, |planned| planned.usual_cut);
        let mut plans = vec![Plan { starts_at: Timestamp::EPOCH, cut }];
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
        check(table, key, plan, now)?;
        let cut = i32::try_from(plan.cut).unwrap_or(1);
        self.cql.write(&self.plans.write, (table.name(), key, to_cql(plan.starts_at), cut)).await?;
        self.plans.refresh(&self.cql).await
    }

    /// Every plan that was made for a key, by table, key and instant.
    pub async fn key_plans(&self) -> Result<Vec<KeyPlan>> {
        self.plans.refresh(&self.cql).await?;
        let known = self.plans.known.read().unwrap_or_else(PoisonError::into_inner);
        let made = known.iter().flat_map(|((table, key), plans)| {
            plans.iter().map(|plan| KeyPlan { table: *table, key: key.clone(), plan: *plan })
        });
        let mut made: Vec<KeyPlan> = made.collect();
        made.sort_by(|a, b| (a.table, &a.key, a.plan.starts_at).cmp(&(b.table, &b.key, b.plan.starts_at)));
        Ok(made)
    }
}

/// A plan that could not hold, or that not everybody would know in time, is refused.
fn check(table: Table, key: &str, plan: Plan, now: Timestamp) -> Result<()> {
    let invalid =
        |field: &str, detail: String| Err(Refusal::InvalidField { field: field.to_owned(), detail }.into());
    let Some(planned) = PLANNED.iter().find(|planned| planned.table == table) else {
        let names: Vec<&str> = PLANNED.iter().map(|planned| planned.table.name()).collect();
        return invalid("table", format!("one of {}", names.join(", ")));
    };
    let is_key = match table {
        Table::OrdersByCustomer => UserId::parse(key).is_ok(),
        Table::OrdersByZoneDay => GeoZone::parse(key).is_ok(),
        Table::ProductsByCategory => Category::parse(key).is_ok(),
        _ => key.is_empty(),
    };
    if !is_key {
        return invalid("key", format!("{table} cuts {}", planned.what));
    }
    if !(1..=planned.cut_max).contains(&plan.cut) {
        return invalid("cut", format!("1 to {}", planned.cut_max));
    }
    let earliest = now.plus_seconds(AHEAD_SECONDS);
    if plan.starts_at < earliest {
        let why = "so that every process knows it before it counts";
        return invalid("from", format!("at least {AHEAD_SECONDS} s from now, {earliest} or later, {why}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    fn refused(table: Table, key: &str, cut: u32, in_seconds: i64) -> Option<String> {
        let plan = Plan { starts_at: NOW.plus_seconds(in_seconds), cut };
        check(table, key, plan, NOW).err().map(|error| error.to_string())
    }

    #[test]
    fn a_plan_that_not_everybody_would_know_in_time_is_refused() {
        assert_eq!(refused(Table::OrdersByCustomer, "u", 4, 60), None);
        let said = refused(Table::OrdersByCustomer, "u", 4, 59).unwrap();
        assert!(said.starts_with("from: at least 60 s from now, 2026-09-21T"), "{said}");
    }

    #[test]
    fn a_plan_is_for_a_table_that_is_cut_and_a_key_that_it_has() {
        let said = refused(Table::Stock, "p", 4, 100).unwrap();
        assert!(said.starts_with("table: one of orders_by_customer, orders_by_zone_day, "), "{said}");
        let said = refused(Table::OrdersByDay, "moscow", 4, 100).unwrap();
        assert_eq!(said, "key: orders_by_day cuts a day of the whole shop; there is no key");
        assert_eq!(refused(Table::OrdersByDay, "", 64, 100), None);
        assert!(refused(Table::OrdersByZoneDay, "", 4, 100).is_some());
        // A month has no finer pieces than days.
        assert_eq!(refused(Table::OrdersByCustomer, "u", 32, 100).as_deref(), Some("cut: 1 to 31"));
        assert_eq!(refused(Table::OrdersByCustomer, "u", 0, 100).as_deref(), Some("cut: 1 to 31"));
    }
}
