//! Bucketing: into how many buckets the partitions of a key are divided, as plans that start at an instant.
//!
//! A plan starts in the future, and every process reloads the plans more often than that, so that all processes know a plan
//! before it starts. A process that could not reload them in time reads them before it writes by them, or does not write. A writer uses the plan of the moment. The buckets that exist are listed in a table of their own, so a reader
//! reads only those.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use mw_domain::buckets::{DAY_BUCKETS, DAY_BUCKETS_MAX, MONTH_BUCKETS_MAX, Plan};
use mw_domain::{Category, Period, Timestamp, UserId};
use mw_store::partitions::{BucketUnit, BucketedTable, MadeBy};
use mw_store::{Refusal, Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;

use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{from_cql, to_cql};
use crate::schema::tables::Table;

/// A plan starts at least this long after it is made: several times the interval of reloading plans.
pub(crate) const AHEAD_SECONDS: i64 = 60;
/// Plans that were read longer ago are read again before a row is written by them. The rest of [`AHEAD_SECONDS`] is for clocks
/// that differ.
const FRESH_FOR: Duration = Duration::from_secs(45);
/// Buckets that this process knows to be announced.
const ANNOUNCED_MAX: usize = 200_000;
/// Copies of the plans of a table, each a partition: every order needs the plans, so no single partition may be needed for them.
const PLAN_COPIES: usize = 4;
/// Parts of the list of a key's buckets, where many orders share the key: a writer needs one of them, a reader all.
const SHARED_PARTS: u32 = 4;
/// Buckets of a price band at most.
const BAND_BUCKETS_MAX: u32 = 64;

/// The tables whose partitions are divided into buckets by plans.
pub const BUCKETED: [BucketedTable; 3] = [
    BucketedTable {
        table: Table::OrdersByCustomer.name(),
        default_buckets: 1,
        buckets_max: MONTH_BUCKETS_MAX,
        unit: BucketUnit::Month,
        what: "a month of a user; the key is a user id",
    },
    BucketedTable {
        table: Table::OrdersByDay.name(),
        default_buckets: DAY_BUCKETS,
        buckets_max: DAY_BUCKETS_MAX,
        unit: BucketUnit::Day,
        what: "a day of the shop and of its zones; there is no key",
    },
    BucketedTable {
        table: Table::ProductsByCategory.name(),
        default_buckets: 1,
        buckets_max: BAND_BUCKETS_MAX,
        unit: BucketUnit::PriceBand,
        what: "a price band of a category; the key is a category",
    },
];

/// The partition of a copy of the plans of a table. A release with one copy wrote the first.
fn plans_key(table: Table, copy: usize) -> String {
    if copy == 0 { table.name().to_owned() } else { format!("{}#{copy}", table.name()) }
}

fn bucketed(table: Table) -> Option<&'static BucketedTable> {
    BUCKETED.iter().find(|bucketed| bucketed.table == table.name())
}

/// A plan that was made for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPlan {
    pub table: Table,
    pub key: String,
    pub plan: Plan,
    pub made_by: MadeBy,
}

/// The plans of a table as one copy has them: bucket count and maker by key and start.
type StoredPlans = BTreeMap<(String, Timestamp), (i32, String)>;

type PlanRow = (String, CqlTimestamp, Option<i32>, Option<String>);

/// The plans of a key, oldest first.
type Known = HashMap<(Table, String), Vec<(Plan, MadeBy)>>;

#[derive(Debug)]
pub(crate) struct Bucketing {
    read: PreparedStatement,
    write: PreparedStatement,
    announce: PreparedStatement,
    buckets: PreparedStatement,
    known: RwLock<Known>,
    /// When the read of the known plans began.
    read_at: Mutex<Instant>,
    announced: Mutex<HashSet<(Table, String, Timestamp, String)>>,
}

impl Bucketing {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let bucketing = Self {
            read: cql
                .prepare(
                    Table::BucketPlans,
                    Access::Read,
                    "SELECT key, starts_at, buckets, made_by FROM {} WHERE table_name = ?",
                )
                .await?,
            write: cql
                .prepare(
                    Table::BucketPlans,
                    Access::Write,
                    "INSERT INTO {} (table_name, key, starts_at, buckets, made_by) VALUES (?, ?, ?, ?, ?)",
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
            read_at: Mutex::new(Instant::now()),
            announced: Mutex::default(),
        };
        bucketing.refresh(cql).await?;
        Ok(bucketing)
    }

    /// Reloads all plans.
    pub(crate) async fn refresh(&self, cql: &Cql) -> Result<()> {
        let began = Instant::now();
        let mut known = Known::new();
        for BucketedTable { table, buckets_max, .. } in BUCKETED {
            let Some(table) = Table::named(table) else { continue };
            for ((key, starts_at), (buckets, made_by)) in self.read_plans(cql, table).await? {
                let buckets = u32::try_from(buckets).unwrap_or(1).clamp(1, buckets_max);
                let plan = Plan { starts_at, buckets };
                let is_auto = made_by == MadeBy::Auto.name();
                let made_by = if is_auto { MadeBy::Auto } else { MadeBy::Operator };
                known.entry((table, key)).or_default().push((plan, made_by));
            }
        }
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        *self.read_at.lock().unwrap_or_else(PoisonError::into_inner) = began;
        Ok(())
    }

    /// The plans of a table from all copies that can be read; one is enough. A plan that only some of them have (its process died
    /// while it wrote them, or a release with one copy made it) is written to the others.
    async fn read_plans(&self, cql: &Cql, table: Table) -> Result<StoredPlans> {
        let copies: Vec<String> = (0..PLAN_COPIES).map(|copy| plans_key(table, copy)).collect();
        let available = copies.iter().filter(|copy| cql.has_quorum(&self.read, &(copy.as_str(),)));
        let mut read: Vec<&String> = available.collect();
        if read.is_empty() {
            read = copies.iter().collect();
        }
        let reads = read.iter().map(async |copy| self.read_copy(cql, copy).await);
        let found = join_all(reads).await;
        let all: StoredPlans =
            found.iter().flatten().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let mut first_error = None;
        let mut is_read = false;
        for (copy, found) in read.into_iter().zip(found) {
            match found {
                Ok(found) => {
                    is_read = true;
                    self.complete_copy(cql, copy, &all, &found).await;
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.filter(|_| !is_read).map_or(Ok(all), Err)
    }

    async fn read_copy(&self, cql: &Cql, copy: &str) -> Result<StoredPlans> {
        let (mut plans, mut from) = (StoredPlans::new(), PagingState::start());
        loop {
            let (rows, next) = cql.page::<PlanRow>(&self.read, (copy,), from).await?;
            plans.extend(rows.into_iter().map(|(key, starts_at, buckets, made_by)| {
                ((key, from_cql(starts_at)), (buckets.unwrap_or(1), made_by.unwrap_or_default()))
            }));
            let Some(next) = next else { return Ok(plans) };
            from = next;
        }
    }

    async fn complete_copy(&self, cql: &Cql, copy: &str, all: &StoredPlans, found: &StoredPlans) {
        for ((key, starts_at), (buckets, made_by)) in all {
            if found.contains_key(&(key.clone(), *starts_at)) {
                continue;
            }
            let row = (copy, key.as_str(), to_cql(*starts_at), *buckets, made_by.as_str());
            if let Err(error) = cql.write(&self.write, row).await {
                tracing::debug!(%error, copy, "complete a copy of the bucket plans");
            }
        }
    }

    /// Writes a plan to every copy: a process may be able to read any one of them only.
    async fn write_plan(
        &self,
        cql: &Cql,
        table: Table,
        key: &str,
        plan: Plan,
        made_by: MadeBy,
    ) -> Result<()> {
        let copies: Vec<String> = (0..PLAN_COPIES).map(|copy| plans_key(table, copy)).collect();
        if !copies.iter().all(|copy| cql.has_quorum(&self.read, &(copy.as_str(),))) {
            let missing =
                "set a bucket plan: a copy of the plans has no quorum, try again when all nodes are up";
            return Err(StoreError::Unavailable(missing.to_owned()));
        }
        let buckets = i32::try_from(plan.buckets).unwrap_or(1);
        for (copy, name) in copies.iter().enumerate() {
            let row = (name.as_str(), key, to_cql(plan.starts_at), buckets, made_by.name());
            let written = cql.write(&self.write, row).await;
            // A crash here leaves a plan that some copies have; the next process that reads them completes the others.
            written.map_err(|error| if copy == 0 { error } else { error.after_first_effect() })?;
        }
        Ok(())
    }

    /// Reads the plans again where a plan could have started that this process does not know. Without it a row could be written
    /// into a bucket of a plan that has ended, where a list does not look for it.
    pub(crate) async fn keep_fresh(&self, cql: &Cql) -> Result<()> {
        let read_at = *self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        if read_at.elapsed() < FRESH_FOR { Ok(()) } else { self.refresh(cql).await }
    }

    /// The plans of a key, oldest first: the default of the table, then those made for the key.
    pub(crate) fn of(&self, table: Table, key: &str) -> Vec<Plan> {
        let buckets = bucketed(table).map_or(1, |bucketed| bucketed.default_buckets);
        let mut bucketing = vec![Plan { starts_at: Timestamp::EPOCH, buckets }];
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = known.get(&(table, key.to_owned())) {
            bucketing.extend(own.iter().map(|(plan, _)| *plan));
        }
        bucketing
    }

    /// The plan of a moment.
    pub(crate) fn at(&self, table: Table, key: &str, at: Timestamp) -> Plan {
        Plan::at(&self.of(table, key), at)
    }

    /// The partitions of the list of a key's buckets. Where the key is that of one customer, losing its partition loses the
    /// orders of one customer; no partition may be needed by every order.
    fn parts(table: Table, key: &str) -> Vec<String> {
        match table {
            Table::OrdersByDay => (0..SHARED_PARTS).map(|part| format!("{key}#{part}")).collect(),
            _ => vec![key.to_owned()],
        }
    }

    /// Lists a bucket of a key, before the first row in it is written: in the first part that has its quorum.
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
        let row = |part: &str| (table.name(), part.to_owned(), to_cql(starts_at), bucket.to_owned());
        let parts = Self::parts(table, key);
        let available = parts.iter().find(|part| cql.has_quorum(&self.announce, &row(part)));
        let part = available.or(parts.first()).map_or(key, String::as_str);
        cql.write(&self.announce, row(part)).await?;
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
        let parts = Self::parts(table, key);
        let reads = parts.iter().map(|part| {
            let values = (table.name(), part.as_str(), to_cql(period.to), limit);
            cql.rows::<(CqlTimestamp, String)>(&self.buckets, values)
        });
        let rows = try_join_all(reads).await?.into_iter().flatten();
        let mut buckets: Vec<(Timestamp, String)> =
            rows.map(|(starts_at, bucket)| (from_cql(starts_at), bucket)).collect();
        buckets.sort_unstable_by(|a, b| b.cmp(a));
        buckets.dedup();
        buckets.truncate(usize::try_from(limit).unwrap_or_default());
        Ok(buckets)
    }
}

impl CassandraStore {
    /// Changes the number of buckets of a key from an instant on.
    pub async fn set_plan(
        &self,
        table: Table,
        key: &str,
        plan: Plan,
        made_by: MadeBy,
        now: Timestamp,
    ) -> Result<()> {
        check(table, key, plan, now)?;
        self.bucketing.write_plan(&self.cql, table, key, plan, made_by).await?;
        self.bucketing.refresh(&self.cql).await
    }

    /// Every plan that was made for a key, by table, key and instant.
    pub async fn key_plans(&self) -> Result<Vec<KeyPlan>> {
        self.bucketing.refresh(&self.cql).await?;
        let known = self.bucketing.known.read().unwrap_or_else(PoisonError::into_inner);
        let made = known.iter().flat_map(|((table, key), bucketing)| {
            bucketing.iter().map(|(plan, made_by)| KeyPlan {
                table: *table,
                key: key.clone(),
                plan: *plan,
                made_by: *made_by,
            })
        });
        let mut made: Vec<KeyPlan> = made.collect();
        made.sort_by(|a, b| (a.table, &a.key, a.plan.starts_at).cmp(&(b.table, &b.key, b.plan.starts_at)));
        Ok(made)
    }
}

/// A hash of a name (FNV-1a), the same in every process and version.
pub(crate) fn hash_of(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash >> 32
}

/// Refuses a plan for a table or key without buckets, and one that starts before every process knows it.
fn check(table: Table, key: &str, plan: Plan, now: Timestamp) -> Result<()> {
    let invalid =
        |field: &str, detail: String| Err(Refusal::InvalidField { field: field.to_owned(), detail }.into());
    let Some(planned) = bucketed(table) else {
        let names: Vec<&str> = BUCKETED.iter().map(|bucketed| bucketed.table).collect();
        return invalid("table", format!("one of {}", names.join(", ")));
    };
    let is_key = match table {
        Table::OrdersByCustomer => UserId::parse(key).is_ok(),
        Table::ProductsByCategory => Category::parse(key).is_ok(),
        _ => key.is_empty(),
    };
    if !is_key {
        return invalid("key", format!("{table} divides {}", planned.what));
    }
    if !(1..=planned.buckets_max).contains(&plan.buckets) {
        return invalid("buckets", format!("1 to {}", planned.buckets_max));
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

    fn refused(table: Table, key: &str, buckets: u32, in_seconds: i64) -> Option<String> {
        let plan = Plan { starts_at: NOW.plus_seconds(in_seconds), buckets };
        check(table, key, plan, NOW).err().map(|error| error.to_string())
    }

    #[test]
    fn plan_that_starts_before_every_process_knows_it_is_refused() {
        assert_eq!(refused(Table::OrdersByCustomer, "u", 4, 60), None);
        let error = refused(Table::OrdersByCustomer, "u", 4, 59).unwrap();
        assert!(error.starts_with("from: at least 60 s from now, 2026-09-21T"), "{error}");
    }

    #[test]
    fn plan_needs_a_bucketed_table_and_a_key_of_it() {
        let error = refused(Table::Stock, "p", 4, 100).unwrap();
        assert!(error.starts_with("table: one of orders_by_customer, orders_by_day, "), "{error}");
        let error = refused(Table::OrdersByDay, "moscow", 4, 100).unwrap();
        assert_eq!(error, "key: orders_by_day divides a day of the shop and of its zones; there is no key");
        assert_eq!(refused(Table::OrdersByDay, "", 46_080, 100), None);
        assert_eq!(refused(Table::OrdersByDay, "", 46_081, 100).as_deref(), Some("buckets: 1 to 46080"));
        // A month has no finer buckets than days.
        assert_eq!(refused(Table::OrdersByCustomer, "u", 32, 100).as_deref(), Some("buckets: 1 to 31"));
        assert_eq!(refused(Table::OrdersByCustomer, "u", 0, 100).as_deref(), Some("buckets: 1 to 31"));
    }
}
