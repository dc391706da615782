//! The stock keeper: per product and zone one conditional write under way, which settles all who wait.
//!
//! A lightweight transaction for each buyer collapses on a hit product: rounds of Paxos on one partition fight each other.
//! Here everybody of this process who wants something of a partition stands in one queue. The keeper takes those who wait,
//! decides them in turn over the figures it knows, and writes the new figures and a ledger row each, together or not at
//! all. The condition is the partition's revision, so that several processes can keep the same product: whoever is late
//! reads again and decides again.

mod change;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mw_domain::{Level, Timestamp};
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use scylla::{DeserializeValue, SerializeValue};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use change::{Added, Draft, Past};
pub(crate) use change::{Answer, Change, Place, Replacement, RowKey};

use crate::cql::{Access, Cql, Row};
use crate::ledger::{Figures, LedgerRow, State};
use crate::outcome::Verdict;
use crate::tables::Table;
use crate::time::{from_cql, to_cql};

/// Those who may wait at one keeper.
const QUEUE: usize = 16_384;
/// Changes of one write: between these, by how long writes take.
const BATCH_MIN: usize = 64;
const BATCH_MAX: usize = 1_024;
/// Writes that are faster may grow, slower ones shrink. Most of a write's time is that of its rounds, however many changes it
/// has, so a busy cluster is no reason for small ones; only what comes near a timeout is.
const FAST: Duration = Duration::from_millis(300);
const SLOW: Duration = Duration::from_millis(900);
/// Rounds that may be lost to other processes.
const ROUNDS: usize = 40;
/// Attempts to learn what became of a write.
const LOOKS: usize = 8;
/// A keeper with nothing to do goes away.
const IDLE: Duration = Duration::from_secs(5);
/// Writers that a partition remembers.
const MARKS: usize = 8;
/// Rows that a keeper remembers.
const KNOWN_MAX: usize = 16_384;
/// Rows of one look-up.
const LOOKUP_MAX: usize = 256;

#[derive(Debug)]
struct Job {
    change: Change,
    now: Timestamp,
    answer: oneshot::Sender<Result<Answer>>,
}

#[derive(Debug)]
pub(crate) struct Keepers {
    statements: Arc<Statements>,
    desks: Arc<Mutex<Desks>>,
}

/// The keepers at work, by place.
type Desks = HashMap<Place, Desk>;

#[derive(Debug, Clone)]
struct Desk {
    queue: mpsc::Sender<Job>,
    /// Units that were available when the keeper last looked; [`UNSEEN`] before.
    available: Arc<AtomicU64>,
}

const UNSEEN: u64 = u64::MAX;

#[derive(Debug)]
struct Statements {
    figures: PreparedStatement,
    figures_serial: PreparedStatement,
    rows: PreparedStatement,
    guard: PreparedStatement,
    put: PreparedStatement,
    put_new: PreparedStatement,
    remove: PreparedStatement,
    zone: PreparedStatement,
}

pub(crate) const FIGURES: &str = "SELECT rev, on_hand, reserved, folded, holds_from, updated_at, marks FROM {} \
     WHERE product_id = ? AND geo_zone = ? LIMIT 1";

pub(crate) type FigureRow = (
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<CqlTimestamp>,
    Option<CqlTimestamp>,
    Option<Vec<Uuid>>,
);

pub(crate) fn read_figures(row: FigureRow) -> Result<Figures> {
    let (rev, on_hand, reserved, folded, holds_from, updated_at, marks) = row;
    let units = |figure: Option<i64>| {
        u64::try_from(figure.unwrap_or_default())
            .map_err(|_| StoreError::Corrupt("a stock figure is below nothing".to_owned()))
    };
    Ok(Figures {
        rev,
        level: Level { on_hand: units(on_hand)?, reserved: units(reserved)? },
        folded: folded.unwrap_or_default(),
        holds_from: holds_from.map(from_cql),
        updated_at: updated_at.map_or(Timestamp::EPOCH, from_cql),
        marks: marks.unwrap_or_default(),
    })
}

impl Keepers {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::Stock;
        let guard = "UPDATE {} SET rev = ?, on_hand = ?, reserved = ?, folded = ?, holds_from = ?, \
             updated_at = ?, marks = ? WHERE product_id = ? AND geo_zone = ? IF rev = ?";
        let rows = "SELECT until, op_id, operation FROM {} \
             WHERE product_id = ? AND geo_zone = ? AND (until, op_id) IN ?";
        // An INSERT would write a marker of the row besides.
        let put =
            "UPDATE {} SET operation = ? WHERE product_id = ? AND geo_zone = ? AND until = ? AND op_id = ?";
        let remove = "DELETE FROM {} WHERE product_id = ? AND geo_zone = ? AND until = ? AND op_id = ?";
        let zone = "INSERT INTO {} (product_id, geo_zone) VALUES (?, ?)";
        let statements = Statements {
            figures: cql.prepare(table, Access::Read, FIGURES).await?,
            figures_serial: cql.prepare(table, Access::Serial, FIGURES).await?,
            rows: cql.prepare(table, Access::Read, rows).await?,
            guard: cql.prepare(table, Access::Cas, guard).await?,
            put: cql.prepare(table, Access::Cas, put).await?,
            put_new: cql.prepare(table, Access::Cas, &format!("{put} IF operation = null")).await?,
            remove: cql.prepare(table, Access::Cas, remove).await?,
            zone: cql.prepare(Table::StockZones, Access::Write, zone).await?,
        };
        Ok(Self { statements: Arc::new(statements), desks: Arc::default() })
    }

    /// Asks the keeper of a place, and waits for its answer.
    pub(crate) async fn ask(
        &self,
        cql: &Arc<Cql>,
        place: &Place,
        change: Change,
        now: Timestamp,
    ) -> Result<Answer> {
        let (answer, answered) = oneshot::channel();
        let mut job = Job { change, now, answer };
        loop {
            let queue = self.queue(cql, place);
            match queue.try_send(job) {
                Ok(()) => break,
                Err(mpsc::error::TrySendError::Full(_)) => return Err(StoreError::Overloaded),
                // It went away for want of work: the next one is started.
                Err(mpsc::error::TrySendError::Closed(back)) => {
                    self.forget(place, &queue);
                    job = back;
                }
            }
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::Ambiguous("the keeper went away".to_owned())))
    }

    /// The units that the keeper of a place last saw available; `None` where none is at work.
    pub(crate) fn last_available(&self, place: &Place) -> Option<u64> {
        let desks = self.desks.lock().unwrap_or_else(PoisonError::into_inner);
        let available = desks.get(place)?.available.load(Ordering::Relaxed);
        (available != UNSEEN).then_some(available)
    }

    fn queue(&self, cql: &Arc<Cql>, place: &Place) -> mpsc::Sender<Job> {
        let mut desks = self.desks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(desk) = desks.get(place) {
            return desk.queue.clone();
        }
        let (queue, jobs) = mpsc::channel(QUEUE);
        let available = Arc::new(AtomicU64::new(UNSEEN));
        desks.insert(place.clone(), Desk { queue: queue.clone(), available: Arc::clone(&available) });
        let keeper = Keeper {
            cql: Arc::clone(cql),
            statements: Arc::clone(&self.statements),
            place: place.clone(),
            figures: None,
            since: Instant::now(),
            known: HashMap::new(),
            added: Added::default(),
            batch: BATCH_MIN,
            available,
        };
        tokio::spawn(keep(keeper, jobs, Arc::clone(&self.desks)));
        queue
    }

    fn forget(&self, place: &Place, gone: &mpsc::Sender<Job>) {
        let mut desks = self.desks.lock().unwrap_or_else(PoisonError::into_inner);
        if desks.get(place).is_some_and(|desk| desk.queue.same_channel(gone)) {
            desks.remove(place);
        }
    }
}

async fn keep(mut keeper: Keeper, mut jobs: mpsc::Receiver<Job>, desks: Arc<Mutex<Desks>>) {
    loop {
        let mut group = Vec::new();
        let waited = tokio::time::timeout(IDLE, jobs.recv_many(&mut group, keeper.batch)).await;
        match waited {
            Ok(0) => return,
            Ok(_) => keeper.settle(group, !jobs.is_empty()).await,
            Err(_) => {
                desks.lock().unwrap_or_else(PoisonError::into_inner).remove(&keeper.place);
                jobs.close();
                // Whoever came between the last look and the closing is still served.
                while jobs.recv_many(&mut group, keeper.batch).await > 0 {
                    keeper.settle(std::mem::take(&mut group), false).await;
                }
                return;
            }
        }
    }
}

struct Keeper {
    cql: Arc<Cql>,
    statements: Arc<Statements>,
    place: Place,
    /// As of the last write of this keeper; another process may have changed them since.
    figures: Option<Figures>,
    /// When the figures were asked for that these follow from.
    since: Instant,
    /// Rows as of the same moment.
    known: HashMap<RowKey, Option<LedgerRow>>,
    added: Added,
    batch: usize,
    available: Arc<AtomicU64>,
}

/// What became of a write.
enum Written {
    Yes,
    No,
    /// It is not there, but may still come.
    NotYet,
    Unknown(String),
}

impl Keeper {
    /// Decides everybody in the group and answers them.
    async fn settle(&mut self, group: Vec<Job>, is_more: bool) {
        let started = Instant::now();
        let decided = self.decide(&group).await;
        let took = started.elapsed();
        let seen = self.figures.as_ref().map_or(UNSEEN, |figures| figures.level.available());
        self.available.store(seen, Ordering::Relaxed);
        if took < FAST && is_more {
            self.batch = (self.batch * 2).min(BATCH_MAX);
        } else if took > SLOW {
            self.batch = (self.batch / 2).max(BATCH_MIN);
        }
        match decided {
            Ok(answers) => {
                for (job, answer) in group.into_iter().zip(answers) {
                    // Whoever went away does not need the answer; what was done stands.
                    let _ = job.answer.send(answer);
                }
            }
            Err(error) => {
                self.figures = None;
                for job in group {
                    let _ = job.answer.send(Err(error.clone()));
                }
            }
        }
    }

    async fn decide(&mut self, group: &[Job]) -> Result<Vec<Result<Answer>>> {
        // A write whose answer was lost may still arrive, until another one takes its place.
        let mut in_doubt = false;
        let mut is_retried = false;
        for round in 0..ROUNDS {
            let was_known = self.figures.is_some();
            if !was_known {
                // What was read before may be older than the figures that are read now.
                self.since = Instant::now();
                self.known.clear();
            }
            let past = Past { since: self.since, is_retried, in_doubt };
            let figures = if let Some(figures) = self.figures.take() {
                figures
            } else {
                // A plain read may show figures that not all replicas have; the rows read next would come from another.
                let needs_rows = group.iter().any(|job| !job.change.rows(past).is_empty());
                let figures = self.look(round > 0 || needs_rows).await?;
                self.added = Added::since(figures.rev);
                figures
            };
            self.look_up(group, past).await?;
            let guarded: HashSet<RowKey> = group.iter().filter_map(|job| job.change.guarded(past)).collect();
            let mut draft =
                Draft::new(figures, std::mem::take(&mut self.known), std::mem::take(&mut self.added));
            let answers: Vec<Answer> =
                group.iter().map(|job| draft.decide(&self.place, &job.change, job.now)).collect();
            if !draft.is_changed {
                let is_final = answers.iter().all(|answer| matches!(answer, Answer::Done { .. }));
                if was_known && !is_final {
                    // A refusal is only given on figures that were read for it.
                    continue;
                }
                self.known = draft.rows;
                self.added = draft.added;
                self.figures = Some(draft.figures);
                return Ok(answers.into_iter().map(Ok).collect());
            }
            is_retried = true;
            match self.write(&mut draft, &guarded).await? {
                Written::Yes => {
                    self.known = draft.rows;
                    if self.known.len() > KNOWN_MAX {
                        self.known.clear();
                    }
                    self.figures = Some(draft.figures);
                    self.added = draft.added;
                    return Ok(answers.into_iter().map(Ok).collect());
                }
                Written::No => back_off(round).await,
                Written::NotYet => in_doubt = true,
                Written::Unknown(detail) => {
                    return Ok(answers.iter().map(|_| Err(StoreError::Ambiguous(detail.clone()))).collect());
                }
            }
        }
        let detail = format!("the stock of {} is being fought for", self.place.product_id);
        Err(if in_doubt { StoreError::Ambiguous(detail) } else { StoreError::Unavailable(detail) })
    }

    async fn look(&self, is_serial: bool) -> Result<Figures> {
        let statement = if is_serial { &self.statements.figures_serial } else { &self.statements.figures };
        let values = (self.place.product_id.as_str(), self.place.geo_zone.as_str());
        let row: Option<FigureRow> = self.cql.first(statement, values).await?;
        row.map_or_else(|| Ok(Figures::default()), read_figures)
    }

    /// Learns the rows that the group's changes are about.
    async fn look_up(&mut self, group: &[Job], past: Past) -> Result<()> {
        let mut missing: Vec<RowKey> = group
            .iter()
            .flat_map(|job| job.change.rows(past))
            .filter(|key| !self.known.contains_key(key))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        for keys in missing.chunks(LOOKUP_MAX) {
            let asked: Vec<(CqlTimestamp, Uuid)> =
                keys.iter().map(|(until, op_id)| (to_cql(*until), *op_id)).collect();
            let values = (self.place.product_id.as_str(), self.place.geo_zone.as_str(), asked);
            let rows: Vec<StoredRow> = self.cql.rows(&self.statements.rows, values).await?;
            for key in keys {
                self.known.insert(*key, None);
            }
            for row in rows {
                let row = read_row(row)?;
                self.known.insert((row.until, row.op_id), Some(row));
            }
        }
        Ok(())
    }

    /// Writes what was decided, on the condition that nobody changed the partition meanwhile, nor wrote a guarded row before.
    async fn write(&self, draft: &mut Draft, guarded: &HashSet<RowKey>) -> Result<Written> {
        let (product_id, geo_zone) = (&self.place.product_id, &self.place.geo_zone);
        if draft.figures.rev.is_none() {
            self.cql.write(&self.statements.zone, (product_id.as_str(), geo_zone.as_str())).await?;
        }
        let expected = draft.figures.rev;
        let mark = Uuid::new_v4();
        let figures = &mut draft.figures;
        figures.rev = Some(expected.unwrap_or_default() + 1);
        figures.marks.insert(0, mark);
        figures.marks.truncate(MARKS);
        let mut rows: Vec<(&PreparedStatement, Row)> = Vec::with_capacity(draft.written.len() + 1);
        let guard = (
            figures.rev,
            figures.level.on_hand.cast_signed(),
            figures.level.reserved.cast_signed(),
            figures.folded,
            figures.holds_from.map(to_cql),
            to_cql(figures.updated_at),
            figures.marks.clone(),
            product_id.as_str().to_owned(),
            geo_zone.as_str().to_owned(),
            expected,
        );
        rows.push((&self.statements.guard, Box::new(guard)));
        for ((until, op_id), row) in &draft.written {
            let place = (product_id.as_str().to_owned(), geo_zone.as_str().to_owned());
            match row {
                Some(row) => rows.push((
                    if guarded.contains(&(*until, *op_id)) {
                        &self.statements.put_new
                    } else {
                        &self.statements.put
                    },
                    Box::new((Operation::of(row), place.0, place.1, to_cql(*until), *op_id)),
                )),
                None => {
                    rows.push((
                        &self.statements.remove,
                        Box::new((place.0, place.1, to_cql(*until), *op_id)),
                    ));
                }
            }
        }
        Ok(match self.cql.cas_batch(&rows).await? {
            Verdict::Applied => Written::Yes,
            Verdict::NotApplied => Written::No,
            Verdict::Unknown => self.resolve(expected, mark).await,
        })
    }

    /// Learns what became of a write that nobody answered.
    async fn resolve(&self, expected: Option<i64>, mark: Uuid) -> Written {
        let mut last = String::new();
        for round in 0..LOOKS {
            match self.look(true).await {
                Ok(figures) if figures.marks.contains(&mark) => return Written::Yes,
                Ok(figures) => {
                    let since = figures.rev.unwrap_or_default() - expected.unwrap_or_default();
                    return match usize::try_from(since) {
                        Ok(0) => Written::NotYet,
                        Ok(since) if since <= MARKS => Written::No,
                        _ => Written::Unknown("too much has happened to the stock since".to_owned()),
                    };
                }
                Err(error) => last = error.to_string(),
            }
            back_off(round).await;
        }
        Written::Unknown(last)
    }
}

/// A pause that grows, and differs between those who fight for the same.
async fn back_off(round: usize) {
    let most = 1 << round.min(5);
    let share = u64::from(Uuid::new_v4().as_bytes()[0]);
    tokio::time::sleep(Duration::from_micros(most * (500 + share * 8))).await;
}

/// What a row of the ledger says, apart from its key.
#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
pub(crate) struct Operation {
    state: String,
    quantity: i64,
    at: CqlTimestamp,
    note: Option<String>,
}

impl Operation {
    fn of(row: &LedgerRow) -> Self {
        Self {
            state: row.state.name().to_owned(),
            quantity: row.quantity,
            at: to_cql(row.at),
            note: row.note.clone(),
        }
    }

    pub(crate) fn row(self, until: CqlTimestamp, op_id: Uuid) -> Result<LedgerRow> {
        Ok(LedgerRow {
            until: from_cql(until),
            op_id,
            state: State::named(&self.state)?,
            quantity: self.quantity,
            at: from_cql(self.at),
            note: self.note,
        })
    }
}

pub(crate) type StoredRow = (CqlTimestamp, Uuid, Option<Operation>);

pub(crate) fn read_row((until, op_id, operation): StoredRow) -> Result<LedgerRow> {
    let operation = operation.ok_or_else(|| StoreError::Corrupt(format!("the stock row of {op_id}")))?;
    operation.row(until, op_id)
}
