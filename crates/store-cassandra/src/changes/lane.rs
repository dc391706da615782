//! The lane of a process: the part of the change feed that it alone writes.
//!
//! Invariant: the rows of a lane have consecutive numbers, and a row is written only when all before it are. One mutation is in
//! flight at a time, and one whose result is not known is sent again with the same rows. So a reader that finds a number missing
//! knows that nothing follows yet, or that the row is no longer kept.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use mw_codec::changes::subjects::{self, Subject};
use mw_domain::Timestamp;
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use crate::driver::statements::{Access, Cql};
use crate::driver::time::{at, to_cql};
use crate::schema::tables::Table;

/// Rows of a partition.
pub(super) const BLOCK_ROWS: i64 = 8_192;
/// Rows of one mutation at most.
const ROWS_MAX: usize = 128;
/// Changes that wait for the lane; a further one waits for space.
const WAITING_MAX: usize = 4_096;
/// Before a failed mutation is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Between two looks at whether the record of the lane is out of date.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// The record of a lane without changes is renewed this often, so that readers know that its process lives.
const RENEWAL_INTERVAL: Duration = Duration::from_mins(10);
/// Rows stay on disk longer than they are readable, and the record of their lane longer than they: a reader must notice that
/// they are gone.
const ROW_MARGIN_S: i64 = 3_600;
const RECORD_MARGIN_S: i64 = 86_400;
/// Partitions of the list of lanes.
pub(super) const PARTS: i32 = 4;

/// A change that waits for the lane, and who waits for it.
#[derive(Debug)]
struct Job {
    subjects: Vec<u8>,
    written: oneshot::Sender<()>,
}

/// The lane of this process.
#[derive(Debug)]
pub(crate) struct Lane {
    jobs: mpsc::Sender<Job>,
    /// The number of the next row.
    next: watch::Receiver<i64>,
}

#[derive(Debug)]
struct LaneWriter {
    lane: Uuid,
    clock: fn() -> SystemTime,
    ttl_s: i32,
    insert: PreparedStatement,
    next: watch::Sender<i64>,
    /// The time of the last row: it never goes back, so that rows leave the feed in their order.
    written_at: Timestamp,
}

type LaneRow = (Uuid, i64, i64, CqlTimestamp, Vec<u8>, i32);

impl Lane {
    /// Lists the lane before its first row, and starts its writer, which ends with the store.
    pub(super) async fn start(cql: &Arc<Cql>, retention_ms: i64, clock: fn() -> SystemTime) -> Result<Self> {
        let insert =
            "INSERT INTO {} (lane, block, number, written_at, subjects) VALUES (?, ?, ?, ?, ?) USING TTL ?";
        let record =
            "INSERT INTO {} (part, lane, started_at, renewed_at, next) VALUES (?, ?, ?, ?, ?) USING TTL ?";
        let (jobs, queue) = mpsc::channel(WAITING_MAX);
        let (next, next_seen) = watch::channel(0);
        let kept_s = retention_ms / 1_000;
        let lane = Uuid::new_v4();
        let writer = LaneWriter {
            lane,
            clock,
            ttl_s: i32::try_from(kept_s + ROW_MARGIN_S).unwrap_or(i32::MAX),
            insert: cql.prepare(Table::Changes, Access::Write, insert).await?,
            next,
            written_at: Timestamp::EPOCH,
        };
        let recorder = Recorder {
            lane,
            clock,
            started_at: at(clock()),
            ttl_s: i32::try_from(kept_s + RECORD_MARGIN_S).unwrap_or(i32::MAX),
            record: cql.prepare(Table::ChangeLanes, Access::Write, record).await?,
            next: next_seen.clone(),
        };
        recorder.write(cql, 0).await?;
        tokio::spawn(recorder.run(Arc::downgrade(cql)));
        tokio::spawn(writer.run(queue, Arc::downgrade(cql)));
        Ok(Self { jobs, next: next_seen })
    }

    /// Writes a change; returns when it is in the feed. An error is ambiguous: the row may still be written.
    pub(crate) async fn write(&self, changed: &[Subject]) -> Result<()> {
        let (written, result) = oneshot::channel();
        let job = Job { subjects: subjects::encode(changed), written };
        let stopped = || StoreError::Ambiguous("write the change feed: its writer has stopped".to_owned());
        self.jobs.send(job).await.map_err(|_| stopped())?;
        result.await.map_err(|_| stopped())
    }

    /// Tells when this process has written a row.
    pub(super) fn written(&self) -> watch::Receiver<i64> {
        self.next.clone()
    }
}

impl LaneWriter {
    async fn run(mut self, mut queue: mpsc::Receiver<Job>, cql: Weak<Cql>) {
        let mut jobs = Vec::with_capacity(ROWS_MAX);
        while queue.recv_many(&mut jobs, ROWS_MAX).await > 0 {
            let Some(cql) = cql.upgrade() else { return };
            // A mutation has one partition: rows behind its end follow in the next one.
            while !jobs.is_empty() {
                let first = *self.next.borrow();
                let space = usize::try_from(BLOCK_ROWS - first % BLOCK_ROWS).unwrap_or(ROWS_MAX);
                let rest = jobs.split_off(space.min(jobs.len()));
                self.write(&cql, first, std::mem::replace(&mut jobs, rest)).await;
            }
        }
    }

    async fn write(&mut self, cql: &Cql, first: i64, jobs: Vec<Job>) {
        self.written_at = self.written_at.max(at((self.clock)()));
        let (rows, waiting): (Vec<LaneRow>, Vec<_>) = (first..)
            .zip(jobs)
            .map(|(number, job)| {
                let block = number / BLOCK_ROWS;
                let written_at = to_cql(self.written_at);
                let row = (self.lane, block, number, written_at, job.subjects, self.ttl_s);
                (row, job.written)
            })
            .unzip();
        let mut is_logged = false;
        // A crash here leaves changes that were not acknowledged without their row; the intents of their operations are
        // finished by recovery, in the lane of another process.
        while let Err(error) = cql.write_rows(&self.insert, &rows).await {
            if !std::mem::replace(&mut is_logged, true) {
                tracing::warn!(%error, "write the change feed: trying again every {RETRY_PAUSE:?}");
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        self.next.send_replace(first + i64::try_from(rows.len()).unwrap_or(0));
        for caller in waiting {
            // The caller may have gone; its change is in the feed all the same.
            let _ = caller.send(());
        }
    }
}

/// Writes how far the lane is, once a second while it grows.
struct Recorder {
    lane: Uuid,
    clock: fn() -> SystemTime,
    started_at: Timestamp,
    ttl_s: i32,
    record: PreparedStatement,
    next: watch::Receiver<i64>,
}

impl Recorder {
    async fn run(self, cql: Weak<Cql>) {
        let (mut recorded, mut renewed_at) = (0, tokio::time::Instant::now());
        loop {
            tokio::time::sleep(RECORD_INTERVAL).await;
            let Some(cql) = cql.upgrade() else { return };
            let next = *self.next.borrow();
            if next == recorded && renewed_at.elapsed() < RENEWAL_INTERVAL {
                continue;
            }
            match self.write(&cql, next).await {
                Ok(()) => (recorded, renewed_at) = (next, tokio::time::Instant::now()),
                Err(error) => tracing::debug!(%error, "record the lane of the change feed"),
            }
        }
    }

    async fn write(&self, cql: &Cql, next: i64) -> Result<()> {
        let (started_at, renewed_at) = (to_cql(self.started_at), to_cql(at((self.clock)())));
        let values = (part(self.lane), self.lane, started_at, renewed_at, next, self.ttl_s);
        cql.write(&self.record, values).await
    }
}

fn part(lane: Uuid) -> i32 {
    let (_, low) = lane.as_u64_pair();
    i32::try_from(low % u64::from(PARTS.cast_unsigned())).unwrap_or_default()
}
