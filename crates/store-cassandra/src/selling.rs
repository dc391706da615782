//! The data centre that sells: where LWTs are decided inside one data centre (`LOCAL_SERIAL`), two that change the same stock would
//! sell its units twice. So one of them sells, by a stored setting, and the processes of the others refuse.
//!
//! The setting has [`COPIES`] copies, each in a partition of its own, so that no partition is needed by every sale. A change writes
//! all of them, and any of them renews the lease of a process: a process that could read none for [`LEASE`] stops selling. Copies are
//! decided at `SERIAL`, across all data centres, and never at another serial level; processes read them at `LOCAL_QUORUM`, so the loss
//! of another data centre stops no sale. A higher generation supersedes a lower one.
//!
//! Where all tables that a sale decides on have `serial = "SERIAL"`, every data centre may sell and the setting has no effect.

mod relocation;

use std::sync::{Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mw_domain::Timestamp;
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};

pub use relocation::{Relocation, RelocationError, RelocationStep};

use crate::CassandraStore;
use crate::driver::certainty::CasResult;
use crate::driver::connect::Options;
use crate::driver::statements::{Access, Cql};
use crate::policy::Policy;
use crate::schema::tables::{Class, Table};

/// Copies of the setting.
const COPIES: usize = 5;
/// Between two reads of a copy, another one each time.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// A copy whose read takes longer is not waited for.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// A process sells for this long after it last read a copy. Enough to try every copy once, each to its timeout.
pub(crate) const LEASE: Duration = Duration::from_secs(15);
/// The longest a sale can be in flight after it was admitted, its last statements included.
pub(crate) const IN_FLIGHT: Duration = Duration::from_mins(1);
/// While selling moves away, recovery goes on for this long: what it begins then ends within [`IN_FLIGHT`].
const DRAIN: Duration = Duration::from_secs(30);

/// Which data centre sells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selling {
    In(String),
    /// None does: what `from` has begun is being finished, then `to` sells.
    Moving {
        from: String,
        to: String,
    },
}

/// The stored setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SellingSetting {
    pub generation: u64,
    pub selling: Selling,
}

impl SellingSetting {
    fn first(dc: &str) -> Self {
        Self { generation: 1, selling: Selling::In(dc.to_owned()) }
    }

    /// `3 dc1`, or `4 dc1 dc2` while selling moves. Names of data centres have no spaces.
    fn encode(&self) -> String {
        let Self { generation, selling } = self;
        match selling {
            Selling::In(dc) => format!("{generation} {dc}"),
            Selling::Moving { from, to } => format!("{generation} {from} {to}"),
        }
    }

    fn decode(text: &str) -> Result<Self> {
        let corrupt =
            || StoreError::Corrupt(format!("read the selling data centre: invalid setting {text:?}"));
        let words: Vec<&str> = text.split(' ').collect();
        let (generation, selling) = match words.as_slice() {
            [generation, dc] => (generation, Selling::In((*dc).to_owned())),
            [generation, from, to] => {
                (generation, Selling::Moving { from: (*from).to_owned(), to: (*to).to_owned() })
            }
            _ => return Err(corrupt()),
        };
        Ok(Self { generation: generation.parse().map_err(|_| corrupt())?, selling })
    }
}

/// The tables that a sale decides on by LWT inside one data centre. With none, every data centre may sell.
pub fn local_sale_tables(policy: &Policy) -> Vec<Table> {
    let decides = |table: &Table| {
        table.class() == Class::Core
            && table.traits().has_lwt
            && !matches!(table, Table::Settings | Table::Migration)
    };
    let is_local = |table: &Table| policy.of(*table).serial == SerialConsistency::LocalSerial;
    Table::ALL.iter().copied().filter(decides).filter(is_local).collect()
}

/// Statements on the copies.
#[derive(Debug)]
pub(crate) struct Statements {
    read: PreparedStatement,
    read_serial: PreparedStatement,
    insert: PreparedStatement,
    update: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let (table, read) = (Table::Settings, "SELECT value FROM {} WHERE name = ?");
        let insert = "INSERT INTO {} (name, value) VALUES (?, ?) IF NOT EXISTS";
        let update = "UPDATE {} SET value = ? WHERE name = ? IF value = ?";
        let mut statements = Self {
            read: cql.prepare(table, Access::Read, read).await?,
            read_serial: cql.prepare(table, Access::Serial, read).await?,
            insert: cql.prepare(table, Access::Cas, insert).await?,
            update: cql.prepare(table, Access::Cas, update).await?,
        };
        statements.read.set_consistency(Consistency::LocalQuorum);
        statements.read_serial.set_consistency(Consistency::Serial);
        // Paxos is by partition: those of the copies are never decided at another serial level.
        for decided in [&mut statements.insert, &mut statements.update] {
            decided.set_serial_consistency(Some(SerialConsistency::Serial));
            decided.set_consistency(Consistency::Quorum);
        }
        Ok(statements)
    }

    async fn find(
        &self,
        cql: &Cql,
        statement: &PreparedStatement,
        copy: usize,
    ) -> Result<Option<SellingSetting>> {
        let row: Option<(Option<String>,)> = cql.first(statement, (name(copy),)).await?;
        row.and_then(|(value,)| value).map(|value| SellingSetting::decode(&value)).transpose()
    }

    /// The setting; the process of a new shop stores its own data centre.
    async fn find_or_store(&self, cql: &Cql, local_dc: &str) -> Result<SellingSetting> {
        let reads = (0..COPIES).map(|copy| self.find(cql, &self.read, copy));
        let (found, failed): (Vec<_>, Vec<_>) = join_all(reads).await.into_iter().partition(Result::is_ok);
        let copies: Vec<Option<SellingSetting>> = found.into_iter().flatten().collect();
        if copies.contains(&None) {
            return self.store_first(cql, local_dc).await;
        }
        // A copy that cannot be read now is not needed: any of them counts.
        match (copies.into_iter().flatten().max_by_key(|copy| copy.generation), failed.into_iter().next()) {
            (Some(newest), _) => Ok(newest),
            (None, Some(Err(error))) => Err(error),
            (None, _) => self.store_first(cql, local_dc).await,
        }
    }

    /// The first copy decides between data centres that start at the same time; the others follow it.
    async fn store_first(&self, cql: &Cql, local_dc: &str) -> Result<SellingSetting> {
        let mut setting = SellingSetting::first(local_dc);
        for copy in 0..COPIES {
            // Whatever the result: the serial read shows what is stored. A crash here leaves some copies missing, and the next
            // process that starts stores the rest.
            cql.cas(&self.insert, (name(copy), setting.encode())).await?;
            if copy == 0 {
                let stored = self.find(cql, &self.read_serial, copy).await?;
                setting = stored.ok_or_else(|| {
                    let missing = "store the selling data centre: the row is missing after the write";
                    StoreError::Unavailable(missing.to_owned())
                })?;
            }
        }
        Ok(setting)
    }

    /// Replaces the value of a copy that is `before`; `false` where it was another, or may not be applied.
    async fn replace(
        &self,
        cql: &Cql,
        copy: usize,
        before: &SellingSetting,
        after: &SellingSetting,
    ) -> Result<bool> {
        let values = (after.encode(), name(copy), before.encode());
        Ok(cql.cas(&self.update, values).await? == CasResult::Applied)
    }
}

fn name(copy: usize) -> String {
    format!("selling_dc.{copy}")
}

/// What this process knows of the setting.
#[derive(Debug)]
struct Known {
    setting: SellingSetting,
    /// When this generation was first read.
    since: Instant,
    /// When the last read of it began.
    renewed: Instant,
}

impl Known {
    fn renew(&mut self, found: SellingSetting, read_at: Instant) {
        if found.generation > self.setting.generation {
            *self = Self { setting: found, since: read_at, renewed: read_at };
        } else if found == self.setting {
            self.renewed = read_at;
        }
    }

    /// Why a process of this data centre does not sell at an instant.
    fn refusal(&self, local_dc: &str, at: Instant) -> Option<StoreError> {
        let age = at.saturating_duration_since(self.renewed);
        match &self.setting.selling {
            Selling::In(dc) if dc == local_dc && age <= LEASE => None,
            Selling::In(dc) if dc == local_dc => Some(StoreError::Unavailable(format!(
                "changes of stock are refused: data centre {local_dc} sells, but this process could not read for {} s \
                 whether it still does",
                age.as_secs()
            ))),
            Selling::In(dc) => Some(StoreError::NotServing(format!(
                "changes of stock are refused in data centre {local_dc}: {dc} sells; send them to a process of {dc}, or move \
                 selling with `mw cluster sell-from {local_dc}`"
            ))),
            Selling::Moving { from, to } => Some(StoreError::NotServing(format!(
                "changes of stock are refused while selling moves from data centre {from} to {to}: {to} takes them when \
                 `mw cluster sell-from {to}` is done"
            ))),
        }
    }

    /// Whether this process may finish what was begun in its data centre.
    fn may_recover(&self, local_dc: &str, at: Instant) -> bool {
        match &self.setting.selling {
            Selling::Moving { from, .. } if from == local_dc => {
                at.saturating_duration_since(self.since) <= DRAIN
            }
            _ => self.refusal(local_dc, at).is_none(),
        }
    }
}

/// Whether this process sells.
#[derive(Debug)]
pub(crate) struct SellingGuard {
    local_dc: String,
    /// `None`: every data centre may sell.
    known: Option<Mutex<Known>>,
    statements: Statements,
}

impl SellingGuard {
    pub(crate) async fn start(cql: &Cql, options: &Options) -> Result<Self> {
        let statements = Statements::prepare(cql).await?;
        let local_dc = options.local_dc.clone();
        let read_at = Instant::now();
        let setting = statements.find_or_store(cql, &local_dc).await?;
        let local_tables = local_sale_tables(&options.policy);
        let known = Known { setting, since: read_at, renewed: read_at };
        if !local_tables.is_empty()
            && let Some(reason) = known.refusal(&local_dc, read_at)
        {
            tracing::warn!(%reason, "this process serves reads, carts and sessions");
        }
        let known = (!local_tables.is_empty()).then(|| Mutex::new(known));
        Ok(Self { local_dc, known, statements })
    }

    /// Refuses while this process must not change stock.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(known) = &self.known else { return Ok(()) };
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.refusal(&self.local_dc, Instant::now()).map_or(Ok(()), Err)
    }

    /// Refuses where another data centre finishes or undoes operations on stock.
    pub(crate) fn check_recovery(&self) -> Result<()> {
        let Some(known) = &self.known else { return Ok(()) };
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.may_recover(&self.local_dc, Instant::now()) {
            return Ok(());
        }
        Err(StoreError::NotServing(format!(
            "operations on stock are not recovered in data centre {}: another one sells",
            self.local_dc
        )))
    }

    /// Reads one copy, and takes note of it.
    async fn renew(&self, cql: &Cql, copy: usize) {
        let Some(known) = &self.known else { return };
        let read_at = Instant::now();
        let read = self.statements.find(cql, &self.statements.read, copy);
        let found = match tokio::time::timeout(READ_TIMEOUT, read).await {
            Ok(Ok(Some(found))) => found,
            Ok(Ok(None)) => return,
            Ok(Err(error)) => return tracing::debug!(%error, copy, "read the selling data centre"),
            Err(_elapsed) => return tracing::debug!(copy, "read the selling data centre: no answer in time"),
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.setting.generation;
        known.renew(found, read_at);
        if known.setting.generation != before {
            tracing::warn!(selling = ?known.setting.selling, local_dc = self.local_dc, "the selling data centre has changed");
        }
    }
}

/// Reads the setting until the store is dropped.
pub(crate) async fn run(store: Weak<CassandraStore>) {
    let mut ticks = tokio::time::interval(READ_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for copy in (0..COPIES).cycle() {
        ticks.tick().await;
        let Some(store) = store.upgrade() else { return };
        store.selling.renew(&store.cql, copy).await;
    }
}

impl CassandraStore {
    /// Refuses a change of stock that this process must not make. Before the first effect of a command.
    pub(crate) fn check_sale(&self, now: Timestamp) -> Result<()> {
        self.check_clock(now)?;
        self.selling.check()
    }

    /// Whether timers, expiry and ledger compaction may act on `now` in this process. Where they may not, they wait: the log says why.
    pub(crate) fn may_expire(&self, now: Timestamp) -> bool {
        self.check_sale(now).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(text: &str) -> SellingSetting {
        SellingSetting::decode(text).unwrap()
    }

    fn known(text: &str, at: Instant) -> Known {
        Known { setting: setting(text), since: at, renewed: at }
    }

    #[test]
    fn a_setting_is_read_back() {
        for text in ["1 dc1", "2 dc1 dc2", "18446744073709551615 a-b_C"] {
            assert_eq!(setting(text).encode(), text);
        }
        for bad in ["", "dc1", "x dc1", "1", "1 a b c", "-1 dc1"] {
            assert!(matches!(SellingSetting::decode(bad), Err(StoreError::Corrupt(_))), "{bad}");
        }
    }

    #[test]
    fn only_the_selling_data_centre_sells_and_only_on_a_lease() {
        let start = Instant::now();
        let known = known("1 dc1", start);
        assert_eq!(known.refusal("dc1", start + LEASE), None);
        let stale = known.refusal("dc1", start + LEASE + Duration::from_secs(5)).unwrap();
        assert!(matches!(stale, StoreError::Unavailable(_)), "{stale}");
        assert!(stale.to_string().contains("could not read for 20 s whether it still does"), "{stale}");
        let other = known.refusal("dc2", start).unwrap();
        assert!(matches!(other, StoreError::NotServing(_)), "{other}");
        let other = other.to_string();
        assert!(other.contains("dc1 sells; send them to a process of dc1"), "{other}");
        assert!(other.contains("`mw cluster sell-from dc2`"), "{other}");
    }

    #[test]
    fn no_data_centre_sells_while_selling_moves() {
        let start = Instant::now();
        let known = known("2 dc1 dc2", start);
        for dc in ["dc1", "dc2", "dc3"] {
            assert!(known.refusal(dc, start).is_some(), "{dc}");
        }
        assert!(known.may_recover("dc1", start + DRAIN), "what was begun is finished");
        assert!(!known.may_recover("dc1", start + DRAIN + Duration::from_secs(1)));
        assert!(!known.may_recover("dc2", start));
    }

    #[test]
    fn a_copy_that_was_not_written_yet_supersedes_nothing_and_renews_nothing() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let mut known = known("1 dc1", start);
        known.renew(setting("1 dc1"), later);
        assert_eq!((known.since, known.renewed), (start, later));
        known.renew(setting("2 dc1 dc2"), later);
        assert_eq!(known.setting, setting("2 dc1 dc2"));
        let last = later + Duration::from_secs(1);
        known.renew(setting("1 dc1"), last);
        assert_eq!((known.setting.generation, known.renewed), (2, later));
        known.renew(setting("3 dc2"), last);
        assert_eq!(known.refusal("dc2", last), None);
    }

    #[test]
    fn every_data_centre_may_sell_where_all_sales_are_decided_across_them() {
        let mut policy = Policy::default();
        let local = local_sale_tables(&policy);
        assert!(local.contains(&Table::Stock) && local.contains(&Table::IdempotencyKeys), "{local:?}");
        assert!(!local.contains(&Table::CartsByOwner) && !local.contains(&Table::Settings), "{local:?}");
        for table in &local[1..] {
            policy.set(table.name(), "serial", "SERIAL").unwrap();
        }
        assert_eq!(local_sale_tables(&policy), local[..1]);
        policy.set(local[0].name(), "serial", "SERIAL").unwrap();
        assert_eq!(local_sale_tables(&policy), []);
    }
}
