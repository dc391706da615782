//! The lane of a process: the part of the change feed that it alone writes.
//!
//! Invariant: the rows of a lane have consecutive numbers, and a row is written only when all before it are. One mutation is in
//! flight at a time, and one whose result is not known is sent again with the same rows. So a reader that finds a number missing
//! knows that nothing follows yet, or that the row is no longer kept.
//!
//! A process goes on in a new lane where the old one cannot be written (its partition has lost its quorum) or may be taken for
//! ended (its record was not renewed for [`LEASE`]). Rows whose result is not known are then written to both.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use mw_codec::changes::subjects::{self, Subject};
use mw_domain::Timestamp;
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use tokio::sync::{mpsc, oneshot, watch};
use uuid::Uuid;

use crate::driver::statements::{Access, Cql};
use crate::driver::time::{at, capped_ttl, to_cql};
use crate::schema::tables::Table;

/// Rows of a partition: no more than a reader may pass as tombstones.
pub(super) const BLOCK_ROWS: i64 = 1_000;
/// Rows of one mutation at most.
const ROWS_MAX: usize = 128;
/// Changes that wait for the lane; a further one waits for space.
const WAITING_MAX: usize = 4_096;
/// Before a failed mutation is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Between two looks at whether the record of the lane is out of date.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// The record of a lane without changes is renewed this often, so that readers know that its process lives.
const RENEWAL_INTERVAL: Duration = Duration::from_mins(1);
/// A lane whose record was not renewed for so long gets no more rows.
const LEASE: Duration = Duration::from_mins(5);
/// A lane that was not renewed for so long has ended: well beyond the lease.
pub(super) const ENDED_AFTER_MS: i64 = 600_000;
/// Lanes that are tried in search of one that has its quorum.
const LANES_TO_CHOOSE: usize = 32;
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

/// How far a lane is.
#[derive(Debug, Clone, Copy)]
struct LaneState {
    lane: Uuid,
    started_at: Timestamp,
    /// The number of the next row.
    next: i64,
}

/// The lanes of this process, one after another.
#[derive(Debug)]
pub(crate) struct Lane {
    jobs: mpsc::Sender<Job>,
    recorder: Arc<Recorder>,
}

#[derive(Debug)]
struct LaneWriter {
    recorder: Arc<Recorder>,
    ttl_s: i32,
    insert: PreparedStatement,
    /// The time of the last row: it never goes back, so that rows leave the feed in their order.
    written_at: Timestamp,
}

type LaneRow<'a> = (Uuid, i64, i64, CqlTimestamp, &'a [u8], i32);

impl Lane {
    /// Lists the lane before its first row, and starts its writer, which ends with the store.
    pub(super) async fn start(cql: &Arc<Cql>, retention_ms: i64, clock: fn() -> SystemTime) -> Result<Self> {
        let insert =
            "INSERT INTO {} (lane, block, number, written_at, subjects) VALUES (?, ?, ?, ?, ?) USING TTL ?";
        let kept_s = retention_ms / 1_000;
        let (jobs, queue) = mpsc::channel(WAITING_MAX);
        let recorder = Arc::new(Recorder::begin(cql, kept_s, clock).await?);
        let writer = LaneWriter {
            recorder: Arc::clone(&recorder),
            ttl_s: capped_ttl(kept_s + ROW_MARGIN_S),
            insert: cql.prepare(Table::Changes, Access::Write, insert).await?,
            written_at: Timestamp::EPOCH,
        };
        tokio::spawn(run_recorder(Arc::clone(&recorder), Arc::downgrade(cql)));
        tokio::spawn(writer.run(queue, Arc::downgrade(cql)));
        Ok(Self { jobs, recorder })
    }

    /// Writes a change; returns when it is in the feed. An error is ambiguous: the row may still be written.
    pub(super) async fn write(&self, changed: &[Subject]) -> Result<()> {
        let (written, result) = oneshot::channel();
        let job = Job { subjects: subjects::encode(changed), written };
        let stopped = || StoreError::Ambiguous("write the change feed: its writer has stopped".to_owned());
        self.jobs.send(job).await.map_err(|_| stopped())?;
        result.await.map_err(|_| stopped())
    }

    /// Records where the lane ends.
    pub(super) async fn close(&self, cql: &Cql) -> Result<()> {
        let state = *self.recorder.state.borrow();
        self.recorder.write(cql, state).await
    }
}

impl LaneWriter {
    async fn run(mut self, mut queue: mpsc::Receiver<Job>, cql: Weak<Cql>) {
        let mut jobs = Vec::with_capacity(ROWS_MAX);
        while queue.recv_many(&mut jobs, ROWS_MAX).await > 0 {
            let Some(cql) = cql.upgrade() else { return };
            // A mutation has one partition: rows behind its end follow in the next one.
            while !jobs.is_empty() {
                let next = self.recorder.state.borrow().next;
                let space = usize::try_from(BLOCK_ROWS - next % BLOCK_ROWS).unwrap_or(ROWS_MAX);
                let rest = jobs.split_off(space.min(jobs.len()));
                self.write(&cql, std::mem::replace(&mut jobs, rest)).await;
            }
        }
    }

    async fn write(&mut self, cql: &Cql, jobs: Vec<Job>) {
        let mut is_logged = false;
        let written = loop {
            // A crash here leaves changes that were not acknowledged without their row; the intents of their operations are
            // finished by recovery, in the lane of another process.
            match self.try_write(cql, &jobs).await {
                Ok(state) => break state,
                Err(error) if !std::mem::replace(&mut is_logged, true) => {
                    tracing::warn!(%error, "write the change feed: trying again every {RETRY_PAUSE:?}");
                }
                Err(_) => {}
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        };
        self.recorder.state.send_replace(written);
        for Job { written, .. } in jobs {
            // The caller may have gone; its change is in the feed all the same.
            let _ = written.send(());
        }
    }

    /// Writes rows where the lane goes on; returns how far it is then.
    async fn try_write(&mut self, cql: &Cql, jobs: &[Job]) -> Result<LaneState> {
        if self.recorder.must_move(cql) {
            // A crash here leaves a listed lane without rows.
            self.recorder.move_on(cql).await?;
        }
        let state = *self.recorder.state.borrow();
        self.written_at = self.written_at.max(at((self.recorder.clock)()));
        let (block, written_at) = (state.next / BLOCK_ROWS, to_cql(self.written_at));
        let rows: Vec<LaneRow<'_>> = (state.next..)
            .zip(jobs)
            .map(|(number, job)| (state.lane, block, number, written_at, job.subjects.as_slice(), self.ttl_s))
            .collect();
        cql.write_rows(&self.insert, &rows).await?;
        Ok(LaneState { next: state.next + i64::try_from(rows.len()).unwrap_or(0), ..state })
    }
}

/// Keeps the record of the lane: that it exists, and how far it is, once a second while it grows.
#[derive(Debug)]
struct Recorder {
    clock: fn() -> SystemTime,
    ttl_s: i32,
    record: PreparedStatement,
    /// Names a partition of rows, and one of the list, in questions about their quorum.
    rows: PreparedStatement,
    list: PreparedStatement,
    state: watch::Sender<LaneState>,
    /// When the write of the last record began.
    recorded: watch::Sender<Instant>,
}

impl Recorder {
    async fn begin(cql: &Cql, kept_s: i64, clock: fn() -> SystemTime) -> Result<Self> {
        let record =
            "INSERT INTO {} (part, lane, started_at, renewed_at, next) VALUES (?, ?, ?, ?, ?) USING TTL ?";
        let rows = "SELECT number FROM {} WHERE lane = ? AND block = ? LIMIT 1";
        let list = "SELECT lane FROM {} WHERE part = ? LIMIT 1";
        let nowhere = LaneState { lane: Uuid::nil(), started_at: Timestamp::EPOCH, next: 0 };
        let recorder = Self {
            clock,
            ttl_s: capped_ttl(kept_s + RECORD_MARGIN_S),
            record: cql.prepare(Table::ChangeLanes, Access::Write, record).await?,
            rows: cql.prepare(Table::Changes, Access::Read, rows).await?,
            list: cql.prepare(Table::ChangeLanes, Access::Read, list).await?,
            state: watch::Sender::new(nowhere),
            recorded: watch::Sender::new(Instant::now()),
        };
        recorder.move_on(cql).await?;
        Ok(recorder)
    }

    /// Whether the lane may be taken for ended, or its next row has no quorum.
    fn must_move(&self, cql: &Cql) -> bool {
        let LaneState { lane, next, .. } = *self.state.borrow();
        self.recorded.borrow().elapsed() >= LEASE || !cql.has_quorum(&self.rows, &(lane, next / BLOCK_ROWS))
    }

    /// Begins a lane whose partitions have their quorum.
    async fn move_on(&self, cql: &Cql) -> Result<()> {
        let is_available = |lane: &Uuid| {
            cql.has_quorum(&self.rows, &(*lane, 0_i64)) && cql.has_quorum(&self.list, &(part(*lane),))
        };
        let mut lanes = (0..LANES_TO_CHOOSE).map(|_| Uuid::new_v4());
        let lane = lanes.find(is_available).unwrap_or_else(Uuid::new_v4);
        let state = LaneState { lane, started_at: at((self.clock)()), next: 0 };
        self.write(cql, state).await?;
        self.state.send_replace(state);
        Ok(())
    }

    async fn write(&self, cql: &Cql, LaneState { lane, started_at, next }: LaneState) -> Result<()> {
        let began = Instant::now();
        let (started_at, renewed_at) = (to_cql(started_at), to_cql(at((self.clock)())));
        cql.write(&self.record, (part(lane), lane, started_at, renewed_at, next, self.ttl_s)).await?;
        self.recorded.send_replace(began);
        Ok(())
    }
}

async fn run_recorder(recorder: Arc<Recorder>, cql: Weak<Cql>) {
    let mut written = recorder.state.borrow().next;
    loop {
        tokio::time::sleep(RECORD_INTERVAL).await;
        let Some(cql) = cql.upgrade() else { return };
        let state = *recorder.state.borrow();
        if state.next == written && recorder.recorded.borrow().elapsed() < RENEWAL_INTERVAL {
            continue;
        }
        match recorder.write(&cql, state).await {
            Ok(()) => written = state.next,
            Err(error) => tracing::debug!(%error, "record the lane of the change feed"),
        }
    }
}

fn part(lane: Uuid) -> i32 {
    let (_, low) = lane.as_u64_pair();
    i32::try_from(low % u64::from(PARTS.cast_unsigned())).unwrap_or_default()
}
