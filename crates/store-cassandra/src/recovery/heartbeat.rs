//! Heartbeats and the list of processes: which processes of the shop live, and which ones failed.
//!
//! A process counts up its heartbeat. A reader that sees a heartbeat stand still for the failure timeout, by its own clock,
//! takes the process for failed. No clock is compared with another one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mw_store::Result;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use super::intents::TTL_SECONDS;
use crate::driver::statements::{Access, Cql, unset_if_null};
use crate::schema::tables::Table;

/// Between two heartbeats.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A process whose heartbeat stands still for so long has failed. Together with a round or two of recovery this keeps its
/// orphaned intents under ten seconds old.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(5);
/// All processes are in one partition: there are few.
const PART: i32 = 0;

/// Another process, and the time buckets that its intents are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) process: Uuid,
    oldest_bucket: i64,
    newest_bucket: i64,
}

impl Peer {
    pub(crate) fn time_buckets(&self) -> std::ops::RangeInclusive<i64> {
        self.oldest_bucket..=self.newest_bucket
    }
}

/// Another process that lives, and the address of its internal listener, if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LivingPeer {
    pub(crate) process: Uuid,
    pub(crate) address: Option<String>,
}

/// The other processes of the shop.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Peers {
    pub(crate) alive: Vec<LivingPeer>,
    pub(crate) failed: Vec<Peer>,
}

/// A row of the list of processes: process, heartbeat, oldest and newest time bucket of its intents, address.
type ProcessRow = (Uuid, i64, i64, i64, Option<String>);

#[derive(Debug)]
pub(crate) struct ProcessList {
    process: Uuid,
    heartbeat: AtomicI64,
    address: Mutex<Option<String>>,
    detector: Mutex<FailureDetector>,
    insert: PreparedStatement,
    read: PreparedStatement,
    delete: PreparedStatement,
}

impl ProcessList {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::Processes;
        let insert = "INSERT INTO {} (part, process, heartbeat, oldest_bucket, newest_bucket, address) \
             VALUES (?, ?, ?, ?, ?, ?) USING TTL ?";
        let read = "SELECT process, heartbeat, oldest_bucket, newest_bucket, address FROM {} \
             WHERE part = ? LIMIT 10000";
        let delete = "DELETE FROM {} WHERE part = ? AND process = ?";
        Ok(Self {
            process: Uuid::new_v4(),
            heartbeat: AtomicI64::new(0),
            address: Mutex::default(),
            detector: Mutex::default(),
            insert: cql.prepare(table, Access::Write, insert).await?,
            read: cql.prepare(table, Access::Read, read).await?,
            delete: cql.prepare(table, Access::Write, delete).await?,
        })
    }

    /// The id of this process, new at every start.
    pub(crate) const fn process(&self) -> Uuid {
        self.process
    }

    /// The address of this process' internal listener, told to the other processes with the next heartbeat.
    pub(crate) fn set_address(&self, address: String) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    /// Writes the heartbeat of this process and the time buckets that its intents may be in.
    pub(crate) async fn heartbeat(&self, cql: &Cql, oldest_bucket: i64, newest_bucket: i64) -> Result<()> {
        let heartbeat = self.heartbeat.fetch_add(1, Ordering::Relaxed) + 1;
        let address = self.address.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let address = unset_if_null(None::<()>, address);
        let values = (PART, self.process, heartbeat, oldest_bucket, newest_bucket, address, TTL_SECONDS);
        cql.write(&self.insert, values).await
    }

    /// Removes a process that has no intents any more.
    pub(crate) async fn deregister(&self, cql: &Cql, process: Uuid) -> Result<()> {
        cql.write(&self.delete, (PART, process)).await
    }

    pub(crate) async fn peers(&self, cql: &Cql) -> Result<Peers> {
        let mut rows: Vec<ProcessRow> = cql.rows(&self.read, (PART,)).await?;
        rows.retain(|(process, ..)| *process != self.process);
        let mut detector = self.detector.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(detector.observe(rows, Instant::now()))
    }
}

/// The last heartbeat of each other process, and since when this process sees it.
#[derive(Debug, Default)]
struct FailureDetector {
    seen: HashMap<Uuid, (i64, Instant)>,
}

impl FailureDetector {
    fn observe(&mut self, rows: Vec<ProcessRow>, now: Instant) -> Peers {
        let mut seen = HashMap::with_capacity(rows.len());
        let mut peers = Peers::default();
        for (process, heartbeat, oldest_bucket, newest_bucket, address) in rows {
            let since = match self.seen.get(&process) {
                Some((known, since)) if *known == heartbeat => *since,
                _ => now,
            };
            seen.insert(process, (heartbeat, since));
            if now.duration_since(since) >= FAILURE_TIMEOUT {
                peers.failed.push(Peer { process, oldest_bucket, newest_bucket });
            } else {
                peers.alive.push(LivingPeer { process, address });
            }
        }
        self.seen = seen;
        peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_fails_when_its_heartbeat_stands_still_for_the_failure_timeout() {
        let [stopped, alive] = [1, 2].map(Uuid::from_u128);
        let address = Some("10.0.0.2:9400".to_owned());
        let rows = |heartbeat| vec![(stopped, 7, 3, 4, None), (alive, heartbeat, 0, 1, address.clone())];
        let mut detector = FailureDetector::default();
        let start = Instant::now();
        let living = LivingPeer { process: alive, address: address.clone() };
        let both = Peers {
            alive: vec![LivingPeer { process: stopped, address: None }, living.clone()],
            failed: Vec::new(),
        };
        assert_eq!(detector.observe(rows(1), start), both, "first seen now, however old it is");
        assert_eq!(detector.observe(rows(2), start + Duration::from_millis(4_999)), both);
        let peers = detector.observe(rows(3), start + FAILURE_TIMEOUT);
        assert_eq!(peers.alive, [living]);
        assert_eq!(peers.failed, [Peer { process: stopped, oldest_bucket: 3, newest_bucket: 4 }]);
        assert_eq!(peers.failed.first().map(|peer| peer.time_buckets().count()), Some(2));
    }
}
