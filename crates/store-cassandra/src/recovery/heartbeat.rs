//! Heartbeats and the list of processes: which processes of the shop live, and which ones failed.
//!
//! A process counts up its heartbeat. A reader that sees a heartbeat stand still for the failure timeout, by its own clock,
//! takes the process for failed. No clock is compared with another one.
//!
//! The list is in a few partitions. A process whose partition cannot be written writes to the next one, and the highest
//! heartbeat counts; a reader that cannot read one of them takes the processes in it for living.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mw_store::Result;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use super::intents::{TIME_BUCKETS_MAX, TTL_SECONDS};
use super::ownership::key_of;
use crate::driver::statements::{Access, Cql, unset_if_null};
use crate::schema::tables::Table;

/// Between two heartbeats.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A process whose heartbeat stands still for so long has failed. Together with a round or two of recovery this keeps its
/// orphaned intents under ten seconds old.
pub(super) const FAILURE_TIMEOUT: Duration = Duration::from_secs(5);
/// Partitions of the list of processes.
const PARTS: i32 = 4;

/// Another process, and the time buckets that its intents are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) process: Uuid,
    oldest_bucket: i64,
    newest_bucket: i64,
    /// How long its heartbeat has stood still.
    pub(crate) silent_for: Duration,
}

impl Peer {
    /// The buckets in which it may have intents: those of the lifetime of an intent.
    pub(crate) fn time_buckets(&self) -> std::ops::RangeInclusive<i64> {
        self.oldest_bucket.max(self.newest_bucket.saturating_sub(TIME_BUCKETS_MAX))..=self.newest_bucket
    }

    /// The key by which living processes divide the recovery of one of its buckets.
    pub(crate) fn bucket_key(&self, time_bucket: i64) -> u64 {
        let (high, low) = self.process.as_u64_pair();
        key_of(&[high, low, time_bucket.cast_unsigned()])
    }

    /// The key by which they divide its removal from the list.
    pub(crate) fn key(&self) -> u64 {
        let (high, low) = self.process.as_u64_pair();
        key_of(&[high, low])
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
    /// Moves the row of this process to another partition when one cannot be written.
    moves: AtomicUsize,
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
            moves: AtomicUsize::new(0),
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
        let part = self.available_part(cql);
        let values = (part, self.process, heartbeat, oldest_bucket, newest_bucket, address, TTL_SECONDS);
        let written = cql.write(&self.insert, values).await;
        if written.is_err() {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    /// The partition of this process, or the next one that has its quorum.
    fn available_part(&self, cql: &Cql) -> i32 {
        let moves = self.moves.load(Ordering::Relaxed) as u64;
        let parts = (0..u64::from(PARTS.cast_unsigned())).map(|next| self.part(moves.wrapping_add(next)));
        let has_quorum = |part: &i32| cql.has_quorum(&self.read, &(*part,));
        parts.into_iter().find(has_quorum).unwrap_or_else(|| self.part(moves))
    }

    fn part(&self, moves: u64) -> i32 {
        let (high, low) = self.process.as_u64_pair();
        let part = key_of(&[high, low]).wrapping_add(moves) % u64::from(PARTS.cast_unsigned());
        i32::try_from(part).unwrap_or_default()
    }

    /// Removes a process that has no intents any more.
    pub(crate) async fn deregister(&self, cql: &Cql, process: Uuid) -> Result<()> {
        let deletes = (0..PARTS).map(|part| cql.write(&self.delete, (part, process)));
        join_all(deletes).await.into_iter().collect()
    }

    pub(crate) async fn peers(&self, cql: &Cql) -> Result<Peers> {
        let reads = join_all((0..PARTS).map(|part| cql.rows::<ProcessRow>(&self.read, (part,)))).await;
        if let [.., Err(error)] = reads.as_slice()
            && reads.iter().all(Result::is_err)
        {
            return Err(error.clone());
        }
        let mut detector = self.detector.lock().unwrap_or_else(PoisonError::into_inner);
        let parts: Vec<Option<Vec<ProcessRow>>> = reads.into_iter().map(Result::ok).collect();
        let mut peers = detector.observe(parts, Instant::now());
        peers.alive.retain(|peer| peer.process != self.process);
        peers.failed.retain(|peer| peer.process != self.process);
        Ok(peers)
    }
}

/// The last heartbeat of each process, and since when this process sees it.
#[derive(Debug, Default)]
struct FailureDetector {
    seen: HashMap<Uuid, Seen>,
}

#[derive(Debug)]
struct Seen {
    row: ProcessRow,
    part: usize,
    since: Instant,
}

impl FailureDetector {
    /// The rows of each partition; `None` for one that could not be read.
    fn observe(&mut self, parts: Vec<Option<Vec<ProcessRow>>>, now: Instant) -> Peers {
        let mut seen: HashMap<Uuid, Seen> = HashMap::new();
        let unread: Vec<bool> = parts.iter().map(Option::is_none).collect();
        for (part, rows) in parts.into_iter().enumerate() {
            for row in rows.into_iter().flatten() {
                if seen.get(&row.0).is_some_and(|other| other.row.1 >= row.1) {
                    continue;
                }
                let since = match self.seen.get(&row.0) {
                    Some(known) if known.row.1 == row.1 => known.since,
                    _ => now,
                };
                seen.insert(row.0, Seen { row, part, since });
            }
        }
        for (process, known) in self.seen.drain() {
            // Its heartbeat may have gone on where it cannot be read.
            if unread.get(known.part).copied().unwrap_or(false) {
                let is_behind = seen.get(&process).is_none_or(|found| found.row.1 < known.row.1);
                if is_behind {
                    seen.insert(process, Seen { since: now, ..known });
                }
            }
        }
        self.seen = seen;
        self.peers(now)
    }

    fn peers(&self, now: Instant) -> Peers {
        let mut peers = Peers::default();
        for Seen { row, since, .. } in self.seen.values() {
            let (process, _, oldest_bucket, newest_bucket, address) = row.clone();
            let silent_for = now.duration_since(*since);
            if silent_for >= FAILURE_TIMEOUT {
                peers.failed.push(Peer { process, oldest_bucket, newest_bucket, silent_for });
            } else {
                peers.alive.push(LivingPeer { process, address });
            }
        }
        peers.alive.sort_unstable_by_key(|peer| peer.process);
        peers.failed.sort_unstable_by_key(|peer| peer.process);
        peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn row(process: Uuid, heartbeat: i64) -> ProcessRow {
        (process, heartbeat, 3, 4, None)
    }

    const fn living(process: Uuid) -> LivingPeer {
        LivingPeer { process, address: None }
    }

    #[test]
    fn process_fails_when_its_heartbeat_stands_still_for_the_failure_timeout() {
        let [stopped, alive] = [1, 2].map(Uuid::from_u128);
        let address = Some("10.0.0.2:9400".to_owned());
        let rows =
            |heartbeat| vec![Some(vec![row(stopped, 7), (alive, heartbeat, 0, 1, address.clone())]), None];
        let mut detector = FailureDetector::default();
        let start = Instant::now();
        let alive = LivingPeer { process: alive, address: address.clone() };
        let both = Peers { alive: vec![living(stopped), alive.clone()], failed: Vec::new() };
        assert_eq!(detector.observe(rows(1), start), both, "first seen now, however old it is");
        assert_eq!(detector.observe(rows(2), start + Duration::from_millis(4_999)), both);
        let peers = detector.observe(rows(3), start + FAILURE_TIMEOUT);
        assert_eq!(peers.alive, [alive]);
        let failed =
            Peer { process: stopped, oldest_bucket: 3, newest_bucket: 4, silent_for: FAILURE_TIMEOUT };
        assert_eq!(peers.failed.first().map(|peer| peer.time_buckets().count()), Some(2));
        assert_eq!(peers.failed, [failed]);
    }

    #[test]
    fn process_whose_partition_cannot_be_read_is_taken_for_living() {
        let process = Uuid::from_u128(1);
        let mut detector = FailureDetector::default();
        let start = Instant::now();
        detector.observe(vec![Some(vec![row(process, 7)]), Some(Vec::new())], start);
        let lost = detector.observe(vec![None, Some(Vec::new())], start + 2 * FAILURE_TIMEOUT);
        assert_eq!(lost.alive, [living(process)]);
        let back = detector.observe(vec![Some(vec![row(process, 7)]), None], start + 3 * FAILURE_TIMEOUT);
        assert_eq!(back.failed.len(), 1, "silent since its partition was read in vain");
    }

    #[test]
    fn highest_heartbeat_counts_when_a_process_moved_to_another_partition() {
        let process = Uuid::from_u128(1);
        let mut detector = FailureDetector::default();
        let start = Instant::now();
        for (second, heartbeat) in (0..10).zip(8..) {
            let rows = vec![Some(vec![row(process, 7)]), Some(vec![row(process, heartbeat)])];
            let peers = detector.observe(rows, start + second * Duration::from_secs(1));
            assert_eq!(peers.alive, [living(process)]);
        }
    }

    #[test]
    fn recovery_reads_no_more_buckets_than_the_lifetime_of_an_intent() {
        let peer = Peer {
            process: Uuid::from_u128(1),
            oldest_bucket: i64::MIN,
            newest_bucket: 1_000_000,
            silent_for: FAILURE_TIMEOUT,
        };
        assert_eq!(i64::try_from(peer.time_buckets().count()), Ok(TIME_BUCKETS_MAX + 1));
    }
}
