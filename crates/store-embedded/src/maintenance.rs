//! Maintenance: readiness, and the removal of what has expired.
//!
//! Four passes run in turn: the activity index of carts, the rows of all tables that expire, the ledgers, and the change feed.
//! Each call plans a slice of a pass on a snapshot, off the threads of requests and of the writer, and then removes rows in
//! commands of at most [`COMMAND_ROWS`]. A command reads every row again, so what has changed since the snapshot stays. The passes are only in
//! memory: after a restart they begin again. A row that cannot be read is counted, logged and left.
//!
//! Compaction drops expired rows too, but only where it rewrites a table; rows with rising keys would never be rewritten.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mw_domain::Timestamp;
use mw_store::{BackupStatus, Maintenance, Readiness, Result, StoreError};
use prometheus::core::Collector;

use crate::changes::{ExpiredRow, Feed};
use crate::compaction::{GRACE_MS, is_expired};
use crate::keys::{self, Key};
use crate::ledger::{self, Group, LedgerPass};
use crate::long_reads::break_if;
use crate::metrics::{self, Sources};
use crate::reader::{KeyRange, Reader};
use crate::tables::Table;
use crate::tx::Tx;
use crate::{EmbeddedStore, carts, changes, free_space};

/// Rows that one command changes at most; other commands run in between.
pub(crate) const COMMAND_ROWS: usize = 64;
/// Rows that a call reads for each row that it may remove.
const ROWS_PER_REMOVAL: usize = 8;

/// A batch that runs for longer hangs: a usual one takes milliseconds.
const WRITER_HANGS_AFTER: Duration = Duration::from_secs(2);
/// From so many on fjall delays writes.
const STALL_L0_TABLES: usize = 20;
const STALL_SEALED_MEMTABLES: usize = 4;

/// Where the passes continue.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    /// The pass with which the next call begins, so that none starves the others.
    turn: usize,
    carts: Key,
    expired: ExpiredPass,
    ledgers: LedgerPass,
}

/// A pass over the tables whose rows expire.
#[derive(Debug, Default, Clone)]
struct ExpiredPass {
    table: usize,
    from: Key,
}

/// What a slice of a pass found.
#[derive(Debug, Default)]
struct Plan {
    carts: Vec<Key>,
    expired: Vec<(Table, Key)>,
    movements: Vec<Group>,
    changes: Vec<ExpiredRow>,
    /// Rows that could not be read.
    unreadable: usize,
}

#[async_trait]
impl Maintenance for EmbeddedStore {
    async fn ready(&self) -> Result<Readiness> {
        if let Some(cause) = self.status.failure() {
            tracing::warn!(cause, "not ready");
            let reason =
                "a commit failed, so writes have stopped; check the disk and the log, then restart mw";
            return Err(StoreError::NotServing(reason.into()));
        }
        if !self.writer.is_running() {
            let reason = "the store is closed or its writer thread stopped; see the log";
            return Err(StoreError::NotServing(reason.into()));
        }
        let busy_for = self.status.busy_for();
        if busy_for >= WRITER_HANGS_AFTER {
            return Err(StoreError::NotServing(self.why_writes_hang(busy_for)));
        }
        free_space(&self.options, &self.tables).check().map(|()| Readiness::default()).map_err(|cause| {
            // The path in it is not for everyone who may ask.
            tracing::warn!(cause, "not ready");
            let reason = "too little disk space is free: less than store.embedded.min_free_space, or than a compaction needs";
            StoreError::NotServing(reason.into())
        })
    }

    fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let sources = Sources {
            path: self.options.path.clone(),
            db: self.db.clone(),
            tables: self.tables.clone(),
            cache: Arc::clone(&self.cache),
            status: Arc::clone(&self.status),
        };
        metrics::collector(self.metrics.clone(), sources)
            .inspect_err(|error| tracing::error!(%error, "describe metrics of the engine: they are missing"))
            .into_iter()
            .collect()
    }

    async fn start_backup(&self, to: PathBuf, keep: usize) -> Result<()> {
        self.begin_backup(to, keep)
    }

    async fn backup_status(&self) -> Result<Option<BackupStatus>> {
        Ok(lock(&self.backup).clone())
    }

    async fn purge_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
        // The time of maintenance and not of requests: compaction drops rows by it, and a clock that jumped must not.
        // Stored, not maximised: with a clock that was set forward for a moment, compaction would drop live rows from then on.
        self.status.now_ms.store(now.as_millis(), Ordering::Relaxed);
        let passes = std::mem::take(&mut *lock(&self.passes));
        let feed = Arc::clone(&self.feed);
        let planning = self.maintenance_reads.run(Arc::new(self.snapshot()), move |reader| {
            let mut passes = passes;
            let plan = passes.plan(reader, &feed, now, limit)?;
            Ok((passes, plan))
        });
        // After an error the passes begin again.
        let (passes, plan) = planning.await?;
        *lock(&self.passes) = passes;
        if plan.unreadable > 0 {
            tracing::error!(rows = plan.unreadable, "purge expired rows: left rows that cannot be read");
        }
        let mut removed = 0;
        // A crash between two commands leaves the rest of the slice, and a later pass finds it again.
        for rows in plan.carts.chunks(COMMAND_ROWS) {
            let rows = rows.to_vec();
            removed += self.write(move |tx| carts::purge(tx, &rows, now)).await?;
        }
        for rows in plan.expired.chunks(COMMAND_ROWS) {
            let rows = rows.to_vec();
            removed += self.write(move |tx| remove_expired(tx, &rows, now)).await?;
        }
        for groups in plan.movements.chunks(COMMAND_ROWS / 2) {
            let groups = groups.to_vec();
            removed += self.write(move |tx| ledger::compact(tx, &groups)).await?;
        }
        for rows in plan.changes.chunks(COMMAND_ROWS) {
            let rows = rows.to_vec();
            removed += self.write(move |tx| Ok(changes::purge(tx, &rows))).await?;
        }
        Ok(removed.min(limit))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EmbeddedStore {
    /// What a batch that does not end waits for: compactions, by fjall's back-pressure, or the disk.
    fn why_writes_hang(&self, busy_for: Duration) -> String {
        let behind = Table::ALL.into_iter().find(|table| {
            let keyspace = self.tables.get(*table);
            keyspace.l0_table_count() >= STALL_L0_TABLES
                || keyspace.sealed_memtable_count() >= STALL_SEALED_MEMTABLES
        });
        let cause = match behind {
            Some(table) => format!("table {} is compacted or flushed too slowly", table.name()),
            None => "the disk does not finish a sync, or a command does not end".to_owned(),
        };
        format!("writes have waited for {} s: {cause}", busy_for.as_secs())
    }
}

impl Passes {
    const COUNT: usize = 4;

    /// Plans removals of up to `limit` rows, from all passes together.
    fn plan(&mut self, reader: &dyn Reader, feed: &Feed, now: Timestamp, limit: usize) -> Result<Plan> {
        let mut plan = Plan::default();
        let mut rest = limit;
        for offset in 0..Self::COUNT {
            if rest == 0 {
                break;
            }
            let rows_max = rest * ROWS_PER_REMOVAL;
            rest -= match (self.turn + offset) % Self::COUNT {
                0 => {
                    self.plan_carts(reader, now, rows_max, rest, &mut plan)?;
                    plan.carts.len()
                }
                1 => {
                    self.expired.slice(reader, now, rows_max, rest, &mut plan.expired)?;
                    plan.expired.len()
                }
                2 => {
                    plan.changes = changes::expired_rows(reader, feed, now, rest)?;
                    plan.changes.len()
                }
                _ => {
                    let found = self.ledgers.slice(reader, now, rows_max, rest)?;
                    plan.unreadable += found.unreadable;
                    plan.movements = found.groups;
                    found.rows
                }
            }
            .min(rest);
        }
        self.turn = (self.turn + 1) % Self::COUNT;
        Ok(plan)
    }

    fn plan_carts(
        &mut self,
        reader: &dyn Reader,
        now: Timestamp,
        rows_max: usize,
        removals_max: usize,
        plan: &mut Plan,
    ) -> Result<()> {
        let range = KeyRange { from: std::mem::take(&mut self.carts), to: None };
        let mut rows = 0;
        reader.scan(Table::CartActivity, &range, false, &mut |key, value| {
            rows += 1;
            match carts::read_indexed(reader, key, value, now) {
                Ok(None) => plan.carts.push(key.to_vec()),
                Ok(Some(_)) => {}
                Err(StoreError::Corrupt(_)) => plan.unreadable += 1,
                Err(error) => return Err(error),
            }
            let is_full = rows >= rows_max || plan.carts.len() >= removals_max;
            if is_full {
                self.carts = keys::just_after(key.to_vec());
            }
            Ok(break_if(is_full))
        })
    }
}

impl ExpiredPass {
    fn slice(
        &mut self,
        reader: &dyn Reader,
        now: Timestamp,
        rows_max: usize,
        removals_max: usize,
        found: &mut Vec<(Table, Key)>,
    ) -> Result<()> {
        let cutoff_ms = now.as_millis().saturating_sub(GRACE_MS);
        let mut rows = 0;
        while let Some(table) = Table::EXPIRING.get(self.table) {
            let range = KeyRange { from: std::mem::take(&mut self.from), to: None };
            reader.scan(*table, &range, false, &mut |key, value| {
                rows += 1;
                if is_expired(value, cutoff_ms) {
                    found.push((*table, key.to_vec()));
                }
                let is_full = rows >= rows_max || found.len() >= removals_max;
                if is_full {
                    self.from = keys::just_after(key.to_vec());
                }
                Ok(break_if(is_full))
            })?;
            if !self.from.is_empty() {
                return Ok(());
            }
            self.table += 1;
        }
        self.table = 0;
        Ok(())
    }
}

/// Removes rows that are still expired; returns how many.
fn remove_expired(tx: &mut Tx, rows: &[(Table, Key)], now: Timestamp) -> Result<usize> {
    let cutoff_ms = now.as_millis().saturating_sub(GRACE_MS);
    let mut removed = 0;
    for (table, key) in rows {
        let row = match tx.get(*table, key) {
            // One error in the log, and the rest of the rows goes on.
            Err(error @ StoreError::Corrupt(_)) => {
                tracing::error!(%error, "remove expired row: left as it is");
                continue;
            }
            row => row?,
        };
        if row.is_some_and(|row| is_expired(&row, cutoff_ms)) {
            tx.remove(*table, key.clone());
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests;
