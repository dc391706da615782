//! The stock keeper: per product and zone one task of a process, with one conditional write in flight at a time.
//!
//! One lightweight transaction per buyer collapses on a hit product, because Paxos rounds on one partition contend.
//! So all commands of a process on one partition go into the mailbox of its keeper. The keeper takes those that wait
//! as a batch, decides them in order on its copy of the partition, and writes the new header and one ledger row per
//! operation in one conditional batch. The condition is the partition's revision, so that several processes can keep
//! the same product: one whose copy is stale reads again and decides again.
//!
//! A crash loses the mailbox and the keeper's copy, never a write: a batch applies whole or not at all, and a command
//! whose response was lost can be submitted again, because its ledger row shows that it is done.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mw_domain::Timestamp;
use mw_store::request::{self, RequestLabel};
use mw_store::{Result, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlTimestamp, MaybeUnset};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::driver::certainty::CasResult;
use crate::driver::statements::{Access, Cql, Row};
use crate::driver::time::to_cql;
use crate::revision::{CasAttempt, CasFate, NextRevision, gave_up};
use crate::schema::tables::Table;
use crate::stock::decision::{BatchPlan, Decision, ReadBasis, StockCommand, StockKey};
use crate::stock::forwarding::{Contention, Forwarding};
use crate::stock::ledger::{END_OF_TIME, LedgerRow, LedgerState, RowKey, StockHeader};
use crate::stock::rows::{
    HeaderRow, Operation, SELECT_HEADER, StoredRow, UPDATE_HEADER, read_header, read_row, read_rows, revision,
};

/// Commands that may wait in one mailbox.
const MAILBOX_MAX: usize = 16_384;
/// Commands of one batch: between these bounds, by how long writes take.
const BATCH_MIN: usize = 64;
const BATCH_MAX: usize = 1_024;
/// Faster writes let the batch grow, slower ones shrink it. Most of a write's time is its Paxos rounds, however many
/// commands it has, so a busy cluster is no reason for small batches; only what comes near a timeout is.
const FAST: Duration = Duration::from_millis(300);
const SLOW: Duration = Duration::from_millis(900);
/// CAS rounds that a batch may lose to other processes. A process that has just won needs no read before its next batch, so
/// the others may lose many in a row before commands are forwarded.
const ROUNDS: usize = 160;
/// Serial reads made to learn the fate of a write whose result was lost.
const FATE_READS: usize = 8;
/// A keeper without commands ends after this time.
const IDLE: Duration = Duration::from_secs(5);
/// Ledger rows in a keeper's copy.
const KNOWN_MAX: usize = 16_384;
/// Ledger rows of one read.
const ROWS_READ_MAX: usize = 256;
/// Ledger rows of a page, and pages, read to find the next open hold.
const HOLDS_PAGE: i32 = 500;
const HOLDS_PAGES_MAX: usize = 40;

/// A command that waits in the mailbox.
#[derive(Debug)]
struct PendingCommand {
    command: StockCommand,
    now: Timestamp,
    reply: oneshot::Sender<Result<Decision>>,
    label: Option<RequestLabel>,
}

#[derive(Debug)]
pub(crate) struct Keepers {
    statements: Arc<Statements>,
    mailboxes: Arc<Mutex<Mailboxes>>,
    forwarding: Forwarding,
}

/// The mailboxes of the running keepers.
type Mailboxes = HashMap<StockKey, Mailbox>;

#[derive(Debug, Clone)]
struct Mailbox {
    queue: mpsc::Sender<PendingCommand>,
    /// Units that were available when the keeper last decided; [`NOT_READ`] before.
    available: Arc<AtomicU64>,
}

const NOT_READ: u64 = u64::MAX;

#[derive(Debug)]
struct Statements {
    header: PreparedStatement,
    header_serial: PreparedStatement,
    rows: PreparedStatement,
    holds: PreparedStatement,
    update_header: PreparedStatement,
    put: PreparedStatement,
    put_if_absent: PreparedStatement,
    remove: PreparedStatement,
    zone: PreparedStatement,
}

impl Keepers {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::Stock;
        let holds = "SELECT until, op_id, operation FROM {} \
             WHERE product_id = ? AND geo_zone = ? AND until >= ? AND until < ?";
        let mut holds = cql.prepare(table, Access::Read, holds).await?;
        holds.set_page_size(HOLDS_PAGE);
        let rows = "SELECT until, op_id, operation FROM {} \
             WHERE product_id = ? AND geo_zone = ? AND (until, op_id) IN ?";
        // An INSERT would also write a row marker.
        let put =
            "UPDATE {} SET operation = ? WHERE product_id = ? AND geo_zone = ? AND until = ? AND op_id = ?";
        let remove = "DELETE FROM {} WHERE product_id = ? AND geo_zone = ? AND until = ? AND op_id = ?";
        let zone = "INSERT INTO {} (product_id, geo_zone) VALUES (?, ?)";
        let statements = Statements {
            header: cql.prepare(table, Access::Read, SELECT_HEADER).await?,
            header_serial: cql.prepare(table, Access::Serial, SELECT_HEADER).await?,
            rows: cql.prepare(table, Access::Read, rows).await?,
            holds,
            update_header: cql.prepare(table, Access::Cas, UPDATE_HEADER).await?,
            put: cql.prepare(table, Access::Cas, put).await?,
            put_if_absent: cql.prepare(table, Access::Cas, &format!("{put} IF operation = null")).await?,
            remove: cql.prepare(table, Access::Cas, remove).await?,
            zone: cql.prepare(Table::StockZones, Access::Write, zone).await?,
        };
        let forwarding = Forwarding::default();
        Ok(Self { statements: Arc::new(statements), mailboxes: Arc::default(), forwarding })
    }

    pub(crate) const fn forwarding(&self) -> &Forwarding {
        &self.forwarding
    }

    /// Submits a command to the keeper of this process and waits for its decision.
    pub(super) async fn submit_locally(
        &self,
        cql: &Arc<Cql>,
        stock_key: &StockKey,
        command: StockCommand,
        now: Timestamp,
    ) -> Result<Decision> {
        let decision = self.enqueue(cql, stock_key, command, now)?;
        let StockKey { product_id, geo_zone } = stock_key;
        let dropped =
            || format!("change stock of {product_id} in {geo_zone}: the keeper ended without a reply");
        decision.await.unwrap_or_else(|_| Err(StoreError::Ambiguous(dropped())))
    }

    /// Puts a command into the mailbox of the keeper of this process.
    pub(super) fn enqueue(
        &self,
        cql: &Arc<Cql>,
        stock_key: &StockKey,
        command: StockCommand,
        now: Timestamp,
    ) -> Result<oneshot::Receiver<Result<Decision>>> {
        let (reply, decision) = oneshot::channel();
        let mut pending = PendingCommand { command, now, reply, label: request::current() };
        loop {
            let queue = self.mailbox(cql, stock_key);
            match queue.try_send(pending) {
                Ok(()) => return Ok(decision),
                Err(mpsc::error::TrySendError::Full(_)) => return Err(StoreError::Overloaded),
                // The keeper was idle and ended: a new one is started.
                Err(mpsc::error::TrySendError::Closed(back)) => {
                    self.remove_mailbox(stock_key, &queue);
                    pending = back;
                }
            }
        }
    }

    /// The units that the keeper of a partition last saw available; `None` where no keeper runs.
    pub(crate) fn last_available(&self, stock_key: &StockKey) -> Option<u64> {
        if let Some(available) = self.forwarding.contention().last_available(stock_key) {
            return Some(available);
        }
        let mailboxes = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let available = mailboxes.get(stock_key)?.available.load(Ordering::Relaxed);
        (available != NOT_READ).then_some(available)
    }

    /// The mailbox of the running keeper; starts one where none runs.
    fn mailbox(&self, cql: &Arc<Cql>, stock_key: &StockKey) -> mpsc::Sender<PendingCommand> {
        let mut mailboxes = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mailbox) = mailboxes.get(stock_key) {
            return mailbox.queue.clone();
        }
        let (queue, commands) = mpsc::channel(MAILBOX_MAX);
        let available = Arc::new(AtomicU64::new(NOT_READ));
        let mailbox = Mailbox { queue: queue.clone(), available: Arc::clone(&available) };
        mailboxes.insert(stock_key.clone(), mailbox);
        let keeper = Keeper {
            cql: Arc::clone(cql),
            statements: Arc::clone(&self.statements),
            stock_key: stock_key.clone(),
            header: None,
            read_at: Instant::now(),
            known: HashMap::new(),
            pending: Vec::new(),
            batch_size: BATCH_MIN,
            available,
            contention: Arc::clone(self.forwarding.contention()),
        };
        tokio::spawn(run(keeper, commands, Arc::clone(&self.mailboxes)));
        queue
    }

    fn remove_mailbox(&self, stock_key: &StockKey, closed: &mpsc::Sender<PendingCommand>) {
        let mut mailboxes = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        if mailboxes.get(stock_key).is_some_and(|mailbox| mailbox.queue.same_channel(closed)) {
            mailboxes.remove(stock_key);
        }
    }
}

/// The task of one keeper: processes batches until it was idle for [`IDLE`].
async fn run(
    mut keeper: Keeper,
    mut commands: mpsc::Receiver<PendingCommand>,
    mailboxes: Arc<Mutex<Mailboxes>>,
) {
    loop {
        let mut batch = Vec::new();
        let waited = tokio::time::timeout(IDLE, commands.recv_many(&mut batch, keeper.batch_size)).await;
        match waited {
            Ok(0) => return,
            Ok(_) => {
                let label = batch.first().and_then(|pending| pending.label);
                request::scope(label, keeper.process_batch(batch, !commands.is_empty())).await;
            }
            Err(_) => {
                mailboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(&keeper.stock_key);
                commands.close();
                // Commands that were submitted between the timeout and the closing are still processed.
                while commands.recv_many(&mut batch, keeper.batch_size).await > 0 {
                    keeper.process_batch(std::mem::take(&mut batch), false).await;
                }
                return;
            }
        }
    }
}

struct Keeper {
    cql: Arc<Cql>,
    statements: Arc<Statements>,
    stock_key: StockKey,
    /// The header as of this keeper's last write or read; another process may have changed the partition since.
    header: Option<StockHeader>,
    /// When the header was read that the copy follows from.
    read_at: Instant,
    /// Ledger rows at the same revision; `None` where a row is known to be absent.
    known: HashMap<RowKey, Option<LedgerRow>>,
    /// Writes whose result was lost and that may still arrive. While there are any, the header is read, and every batch
    /// writes: a write that takes their revision makes sure that they never apply.
    pending: Vec<CasAttempt>,
    batch_size: usize,
    available: Arc<AtomicU64>,
    contention: Arc<Contention>,
}

impl Keeper {
    /// Decides every command of a batch, writes the result and replies.
    async fn process_batch(&mut self, batch: Vec<PendingCommand>, has_more: bool) {
        let started = Instant::now();
        let decided = self.decide_and_write(&batch).await;
        let took = started.elapsed();
        let available = self.header.as_ref().map_or(NOT_READ, |header| header.level.available());
        self.available.store(available, Ordering::Relaxed);
        if took < FAST && has_more {
            self.batch_size = (self.batch_size * 2).min(BATCH_MAX);
        } else if took > SLOW {
            self.batch_size = (self.batch_size / 2).max(BATCH_MIN);
        }
        // A crash before the replies leaves applied commands that no caller knows of. Each caller's own recovery (an
        // intent, a second request with the key, a timer) submits them again and finds their rows.
        match decided {
            Ok(decisions) => {
                for (pending, decision) in batch.into_iter().zip(decisions) {
                    // A caller that was dropped needs no reply; what was written stays.
                    let _ = pending.reply.send(Ok(decision));
                }
            }
            Err(error) => {
                self.header = None;
                for pending in batch {
                    let _ = pending.reply.send(Err(error.clone()));
                }
            }
        }
    }

    async fn decide_and_write(&mut self, batch: &[PendingCommand]) -> Result<Vec<Decision>> {
        let mut lost = Vec::new();
        let decided = self.cas_rounds(batch, &mut lost).await;
        // A write of these very commands may be applied, or may still arrive: no failure is certain any more.
        decided.map_err(|error| if lost.is_empty() { error } else { error.after_first_effect() })
    }

    /// Decides and writes until a write applies. `lost` are the writes of this batch whose result was lost, without
    /// those that certainly did not apply.
    async fn cas_rounds(
        &mut self,
        batch: &[PendingCommand],
        lost: &mut Vec<CasAttempt>,
    ) -> Result<Vec<Decision>> {
        let mut is_retried = false;
        for round in 0..ROUNDS {
            let was_known = self.header.is_some();
            if !was_known {
                // Rows that were read before may be older than the header that is read now.
                self.read_at = Instant::now();
                self.known.clear();
            }
            let basis = ReadBasis { read_at: self.read_at, is_retried, in_doubt: !lost.is_empty() };
            let header = self.current_header(batch, basis, round, lost).await?;
            self.read_rows(batch, basis).await?;
            let next_hold_end = self.read_next_hold_end(batch, &header).await?;
            let rows_to_insert: HashSet<RowKey> =
                batch.iter().filter_map(|pending| pending.command.row_to_insert(basis)).collect();
            let known = std::mem::take(&mut self.known);
            let mut plan = BatchPlan::new(self.stock_key.clone(), header, known, next_hold_end);
            let decisions: Vec<Decision> =
                batch.iter().map(|pending| plan.decide(&pending.command, pending.now)).collect();
            if let Some((op_id, delta)) = plan.out_of_bounds {
                if was_known {
                    // The row was read now and may be of a later revision than the keeper's copy of the header.
                    continue;
                }
                tracing::error!(
                    stock = self.subject(), %op_id, ?delta,
                    "skip ledger transition: the stock level would leave its bounds; run `mw stock audit`"
                );
            }
            if !plan.is_changed && self.pending.is_empty() {
                if was_known && !decisions.iter().all(Decision::is_final) {
                    // A refusal is only given on a header that was read for it.
                    continue;
                }
                self.adopt(plan);
                return Ok(decisions);
            }
            is_retried = true;
            match self.write(&mut plan, &rows_to_insert, lost).await? {
                CasFate::Applied => {
                    self.adopt(plan);
                    return Ok(decisions);
                }
                CasFate::Superseded => {
                    self.contention.lost_round(&self.stock_key, Instant::now());
                    back_off(round).await;
                }
                CasFate::Pending => {}
                CasFate::Unknown => return Err(self.unknown_fate()),
            }
        }
        Err(gave_up(ROUNDS, &self.subject()))
    }

    fn unknown_fate(&self) -> StoreError {
        StoreError::Ambiguous(format!(
            "change {}: no result, and more changes since than tokens are kept",
            self.subject()
        ))
    }

    /// Takes over the plan as the keeper's copy of the partition.
    fn adopt(&mut self, plan: BatchPlan) {
        self.known = plan.rows;
        if self.known.len() > KNOWN_MAX {
            self.known.clear();
        }
        self.header = Some(plan.header);
    }

    /// What this keeper changes, for errors.
    fn subject(&self) -> String {
        format!("stock of {} in {}", self.stock_key.product_id, self.stock_key.geo_zone)
    }

    /// The keeper's copy of the header, or a new read.
    async fn current_header(
        &mut self,
        batch: &[PendingCommand],
        basis: ReadBasis,
        round: usize,
        lost: &mut Vec<CasAttempt>,
    ) -> Result<StockHeader> {
        if let Some(header) = self.header.take() {
            return Ok(header);
        }
        // A plain read may show a header that not all replicas have, and the rows read next could come from another
        // replica.
        let needs_rows = batch.iter().any(|pending| {
            let command = &pending.command;
            matches!(command, StockCommand::RaiseEarliestHoldEnd) || !command.rows_to_read(basis).is_empty()
        });
        let header = self.read_header(round > 0 || needs_rows || !self.pending.is_empty()).await?;
        let seen = revision(&header);
        self.pending.retain(|attempt| attempt.fate(&seen) == CasFate::Pending);
        if lost.iter().any(|attempt| attempt.fate(&seen) == CasFate::Unknown) {
            return Err(self.unknown_fate());
        }
        lost.retain(|attempt| attempt.fate(&seen) != CasFate::Superseded);
        Ok(header)
    }

    async fn read_header(&self, is_serial: bool) -> Result<StockHeader> {
        let statement = if is_serial { &self.statements.header_serial } else { &self.statements.header };
        let values = (self.stock_key.product_id.as_str(), self.stock_key.geo_zone.as_str());
        let row: Option<HeaderRow> = self.cql.first(statement, values).await?;
        row.map_or_else(|| Ok(StockHeader::default()), read_header)
    }

    /// Reads the ledger rows that the batch needs and the keeper's copy does not have.
    async fn read_rows(&mut self, batch: &[PendingCommand], basis: ReadBasis) -> Result<()> {
        let mut missing: Vec<RowKey> = batch
            .iter()
            .flat_map(|pending| pending.command.rows_to_read(basis))
            .filter(|key| !self.known.contains_key(key))
            .collect();
        missing.sort_unstable();
        missing.dedup();
        for keys in missing.chunks(ROWS_READ_MAX) {
            let cql_keys: Vec<(CqlTimestamp, Uuid)> =
                keys.iter().map(|(until, op_id)| (to_cql(*until), *op_id)).collect();
            let values = (self.stock_key.product_id.as_str(), self.stock_key.geo_zone.as_str(), cql_keys);
            let rows: Vec<StoredRow> = self.cql.rows(&self.statements.rows, values).await?;
            for key in keys {
                self.known.insert(*key, None);
            }
            for row in rows {
                let row = read_row(row)?;
                self.known.insert(row.key(), Some(row));
            }
        }
        Ok(())
    }

    /// A lower bound of the ends of the stored open holds, where a command of the batch raises the header's. A hold that
    /// another process adds after the header was read changes the revision, so that a bound past it is not written.
    async fn read_next_hold_end(
        &self,
        batch: &[PendingCommand],
        header: &StockHeader,
    ) -> Result<Option<Timestamp>> {
        let is_asked =
            batch.iter().any(|pending| matches!(pending.command, StockCommand::RaiseEarliestHoldEnd));
        let (true, Some(earliest)) = (is_asked, header.earliest_hold_end) else { return Ok(None) };
        let (product_id, geo_zone) = (self.stock_key.product_id.as_str(), self.stock_key.geo_zone.as_str());
        let values = (product_id, geo_zone, to_cql(earliest), to_cql(END_OF_TIME));
        let mut reached = earliest;
        let mut from = PagingState::start();
        for _ in 0..HOLDS_PAGES_MAX {
            let (rows, next) = self.cql.page::<StoredRow>(&self.statements.holds, values, from).await?;
            let rows = read_rows(rows)?;
            if let Some(open) = rows.iter().find(|row| row.state == LedgerState::Held) {
                return Ok(Some(open.until));
            }
            reached = rows.last().map_or(reached, |row| row.until);
            let Some(next) = next else { return Ok(None) };
            from = next;
        }
        Ok(Some(reached))
    }

    /// Writes a plan on the condition that the revision has not changed and that rows to insert are absent.
    async fn write(
        &mut self,
        plan: &mut BatchPlan,
        rows_to_insert: &HashSet<RowKey>,
        lost: &mut Vec<CasAttempt>,
    ) -> Result<CasFate> {
        if plan.header.rev.is_none() {
            // A crash here leaves a zone in the list of the product without a partition: readers skip it.
            let values = (self.stock_key.product_id.as_str(), self.stock_key.geo_zone.as_str());
            self.cql.write(&self.statements.zone, values).await.map_err(StoreError::before_first_effect)?;
        }
        let next = revision(&plan.header).next();
        plan.header.rev = Some(next.rev);
        plan.header.recent_op_tokens.clone_from(&next.recent_op_tokens);
        // A crash here leaves nothing, or the whole batch.
        let fate = match self.cql.cas_batch(&self.statements_of(plan, &next, rows_to_insert)).await? {
            CasResult::Applied => CasFate::Applied,
            CasResult::NotApplied => return Ok(CasFate::Superseded),
            CasResult::Unknown => {
                let attempt = next.attempt();
                lost.push(attempt);
                self.pending.push(attempt);
                self.resolve(attempt).await?
            }
        };
        match fate {
            CasFate::Applied => self.pending.clear(),
            CasFate::Superseded => {
                // This write never applies; of earlier ones the next read tells.
                lost.pop();
                self.pending.pop();
            }
            CasFate::Pending | CasFate::Unknown => {}
        }
        Ok(fate)
    }

    /// The conditional batch of a plan: the header first, then a statement per ledger row.
    fn statements_of(
        &self,
        plan: &BatchPlan,
        next: &NextRevision,
        rows_to_insert: &HashSet<RowKey>,
    ) -> Vec<(&PreparedStatement, Row)> {
        let partition =
            || (self.stock_key.product_id.as_str().to_owned(), self.stock_key.geo_zone.as_str().to_owned());
        let (product_id, geo_zone) = partition();
        let header = &plan.header;
        let (compacted_before, earliest_before) = plan.bounds_before;
        let update = (
            header.rev,
            header.level.on_hand.cast_signed(),
            header.level.reserved.cast_signed(),
            header.compacted,
            unset_if_same(compacted_before, header.compacted_to),
            unset_if_same(earliest_before, header.earliest_hold_end),
            to_cql(header.updated_at),
            next.recent_op_tokens.clone(),
            product_id,
            geo_zone,
            next.expected,
        );
        let mut batch: Vec<(&PreparedStatement, Row)> = Vec::with_capacity(plan.writes.len() + 1);
        batch.push((&self.statements.update_header, Box::new(update)));
        for ((until, op_id), row) in &plan.writes {
            let (product_id, geo_zone) = partition();
            let Some(row) = row else {
                let values = (product_id, geo_zone, to_cql(*until), *op_id);
                batch.push((&self.statements.remove, Box::new(values)));
                continue;
            };
            let is_insert = rows_to_insert.contains(&(*until, *op_id));
            let put = if is_insert { &self.statements.put_if_absent } else { &self.statements.put };
            batch.push((put, Box::new((Operation::of(row), product_id, geo_zone, to_cql(*until), *op_id))));
        }
        batch
    }

    /// Learns the fate of a write whose result was lost.
    async fn resolve(&self, attempt: CasAttempt) -> Result<CasFate> {
        let mut last = String::new();
        for round in 0..FATE_READS {
            match self.read_header(true).await {
                Ok(header) => return Ok(attempt.fate(&revision(&header))),
                Err(error) => last = error.to_string(),
            }
            back_off(round).await;
        }
        Err(StoreError::Ambiguous(format!("change {}: {last}", self.subject())))
    }
}

/// A column that keeps its value is not written: a cell less, and no tombstone where it is null.
fn unset_if_same(before: Option<Timestamp>, after: Option<Timestamp>) -> MaybeUnset<Option<CqlTimestamp>> {
    if before == after { MaybeUnset::Unset } else { MaybeUnset::Set(after.map(to_cql)) }
}

/// A random pause that grows with the round, so that processes in contention do not meet again at once.
async fn back_off(round: usize) {
    let most = 1 << round.min(5);
    let share = u64::from(Uuid::new_v4().as_bytes()[0]);
    tokio::time::sleep(Duration::from_micros(most * (500 + share * 8))).await;
}
