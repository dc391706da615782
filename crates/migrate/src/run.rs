//! A running migration: it goes on from the state in the target until the cutover is done.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mw_store::migration::MigrationTarget;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::apply::{Of, Reading, Taker};
use crate::control::{Listener, serve, serve_mailbox};
use crate::copy;
use crate::cutover::go_back;
use crate::error::{MigrateError, Result};
use crate::follow::{follow, read};
use crate::mapping::Settings;
use crate::retry::retry;
use crate::shared::{QUEUE, Shared, Start, Work, lock};
use crate::source::Source;
use crate::source::stream::Position;
use crate::state::{self, AllCounts, Meta, Phase, Range};
use crate::status::{self, Status};
use crate::verify::verify;

/// How often the status is told.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long a command waits for its answer after the cutover.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// How often the oplog's length is asked for.
const OPLOG_EVERY: Duration = Duration::from_mins(1);
/// How long a failed verification waits before the next one.
const VERIFY_AGAIN: Duration = Duration::from_secs(10);

/// How to run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Documents a second that are copied at most.
    pub rate: Option<u32>,
    /// Begins a new change stream and reads every document again, after the history was lost.
    pub recopy: bool,
}

/// Why a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The target is the shop.
    CutOver,
    Aborted,
    /// It was told to stop; the next run goes on.
    Stopped,
}

/// What a run works on.
pub struct Parts {
    pub source: Arc<Source>,
    pub target: Arc<dyn MigrationTarget>,
    pub settings: Settings,
    /// Where other commands reach this process, if they cannot open the target themselves.
    pub listener: Option<Listener>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Runs until the cutover is done, the migration is aborted, or `stop` resolves.
pub async fn run(
    parts: Parts,
    options: RunOptions,
    tell: &(dyn Fn(&Status) + Sync),
    stop: impl Future<Output = ()>,
) -> Result<Ended> {
    let target = Arc::clone(&parts.target);
    take_over(&*target, "run").await?;
    let ended = run_alone(parts, options, tell, stop).await;
    // A crash before it leaves this process named in the target; another one takes over when it is known as failed.
    target.end_run().await;
    ended
}

/// Makes this process the one that changes the target.
async fn take_over(target: &dyn MigrationTarget, what: &str) -> Result<()> {
    if retry("take over the migration", || async { Ok(target.begin_run().await?) }).await? {
        return Ok(());
    }
    let why = format!("{what}: another process runs this migration; stop it first, or use it from here");
    Err(MigrateError::Refused(why))
}

async fn run_alone(
    parts: Parts,
    options: RunOptions,
    tell: &(dyn Fn(&Status) + Sync),
    stop: impl Future<Output = ()>,
) -> Result<Ended> {
    let Parts { source, target, settings, listener } = parts;
    let settings = Arc::new(settings);
    let begun = begin(&source, &*target, options.recopy).await?;
    let (work, queue) = mpsc::channel(QUEUE);
    let start =
        Start { meta: begun.meta, counts: begun.counts, taken_up_to: begun.taken_up_to, rate: options.rate };
    let taker = Taker::new(Arc::clone(&source), Arc::clone(&target), Arc::clone(&settings), begun.counts);
    let shared = Arc::new(Shared::new(source, target, settings, work, start));
    if shared.phase() == Phase::Cutover {
        go_back(&shared).await?;
    }
    let (abort, mut aborted) = watch::channel(false);
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    tasks.spawn(take_all(Arc::clone(&shared), taker, queue));
    tasks.spawn(follow(Arc::clone(&shared), begun.position));
    tasks.spawn(lead(Arc::clone(&shared), begun.ranges, options.recopy));
    tasks.spawn(watch_oplog(Arc::clone(&shared)));
    let abort = Arc::new(abort);
    if let Some(listener) = listener {
        tasks.spawn(serve(Arc::clone(&shared), listener, Arc::clone(&abort)));
    }
    tasks.spawn(serve_mailbox(Arc::clone(&shared), abort));
    let ended = wait(&shared, &mut tasks, &mut aborted, tell, stop).await;
    tasks.shutdown().await;
    let ended = ended.map_err(|error| *error)?;
    if ended == Ended::Aborted {
        clear(&shared).await?;
    }
    Ok(ended)
}

async fn wait(
    shared: &Shared,
    tasks: &mut JoinSet<Result<()>>,
    aborted: &mut watch::Receiver<bool>,
    tell: &(dyn Fn(&Status) + Sync),
    stop: impl Future<Output = ()>,
) -> Result<Ended, Box<MigrateError>> {
    let mut stop = std::pin::pin!(stop);
    let mut phases = shared.phases();
    let mut ticks = interval(TELL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(Ended::Stopped),
            true = async { aborted.wait_for(|aborted| *aborted).await.is_ok() } => return Ok(Ended::Aborted),
            true = async { phases.wait_for(|phase| *phase == Phase::Done).await.is_ok() } => {
                tell(&status::running(shared).await);
                shared.answered(ANSWER_WAIT).await;
                return Ok(Ended::CutOver);
            }
            Some(ended) = tasks.join_next() => match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(Box::new(error)),
                Err(error) => return Err(Box::new(MigrateError::Ended(error.to_string()))),
            },
            _ = ticks.tick() => tell(&status::running(shared).await),
        }
    }
}

/// Where a run begins.
struct Begun {
    meta: Meta,
    counts: AllCounts,
    position: Position,
    taken_up_to: Option<mongodb::bson::Timestamp>,
    ranges: Vec<Range>,
}

async fn begin(source: &Source, target: &dyn MigrationTarget, recopy: bool) -> Result<Begun> {
    let known = Meta::load(target).await?;
    let name = source.name().await?;
    let meta = match known {
        Some(meta) if meta.phase == Phase::Done => {
            return Err(MigrateError::refused("run: this migration is done; `mw migrate finish` ends it"));
        }
        Some(meta) if meta.phase != Phase::Aborted => {
            if meta.source != name {
                let why = format!("run: the target holds the migration of {}, not of {name}", meta.source);
                return Err(MigrateError::Refused(why));
            }
            meta
        }
        _ => {
            if !target.is_empty().await? {
                return Err(MigrateError::refused(
                    "run: the target is not empty, and holds no migration: name an empty one with --data or --set",
                ));
            }
            Meta { phase: Phase::Copy, source: name, blocked: false, verified_up_to: None }
        }
    };
    let mut ranges = Range::load_all(target).await?;
    let position = state::load_position(target).await?;
    let mut counts = AllCounts::load(target).await?;
    if let (Some((position, taken_up_to)), false, false) = (position, ranges.is_empty(), recopy) {
        return Ok(Begun { meta, counts, position, taken_up_to, ranges });
    }
    // The stream begins before the first document is read. A crash in here leaves no ranges, and the next run begins again.
    let meta = Meta { phase: Phase::Copy, verified_up_to: None, ..meta };
    let position = Position::At(source.now().await?);
    target.remove_states(state::RANGES.to_vec()).await?;
    target.apply(vec![meta.change()?, state::position_change(&position, None)?]).await?;
    let (divided, totals) = copy::divide(source).await?;
    for (counts, total) in counts.0.iter_mut().zip(totals) {
        counts.total = total;
        counts.copied = 0;
    }
    target.apply(vec![counts.change()?]).await?;
    copy::store(target, &divided).await?;
    ranges = divided;
    Ok(Begun { meta, counts, position, taken_up_to: None, ranges })
}

/// Takes everything, in the order of the queue.
async fn take_all(shared: Arc<Shared>, mut taker: Taker, mut queue: mpsc::Receiver<Work>) -> Result<()> {
    while let Some(work) = queue.recv().await {
        // The target is the shop now: what its programs write there is newer.
        if shared.phase() == Phase::Done {
            return std::future::pending().await;
        }
        match work {
            Work::Ready(reading) => take(&shared, &mut taker, &reading).await?,
            Work::Later(reading) => {
                let reading = reading.await.map_err(|error| MigrateError::Ended(error.to_string()))??;
                take(&shared, &mut taker, &reading).await?;
                shared.pending.fetch_sub(1, Ordering::SeqCst);
            }
            Work::Again(keys) => {
                let number = shared.readings.of_changes();
                let documents = read(&shared, &keys, None).await?;
                take(&shared, &mut taker, &Reading { documents, number, of: Of::Again }).await?;
            }
            Work::Barrier(reached) => {
                let _ = reached.send(());
            }
            Work::Copying(true) => taker.is_copying = true,
            Work::Copying(false) => taker.end_copy(),
            Work::Mismatched(mismatched) => {
                for (counts, mismatched) in taker.counts_mut().0.iter_mut().zip(mismatched) {
                    counts.mismatched = mismatched;
                }
                shared.set_counts(*taker.counts());
            }
        }
    }
    Ok(())
}

async fn take(shared: &Shared, taker: &mut Taker, reading: &Reading) -> Result<()> {
    let mut wait = Duration::from_millis(50);
    while let Err(error) = taker.take(reading).await {
        if !error.is_passing() {
            return Err(error);
        }
        tracing::warn!(%error, "take documents: trying again");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(5));
    }
    if let Of::Changes { time: Some(time), .. } = reading.of {
        shared.set_taken_up_to(time);
    }
    shared.set_counts(*taker.counts());
    Ok(())
}

/// Copies what is left, then verifies until both sides are equal.
async fn lead(shared: Arc<Shared>, ranges: Vec<Range>, repair: bool) -> Result<()> {
    if ranges.iter().any(|range| !range.done) {
        shared.send(Work::Copying(true)).await?;
        copy::copy(&shared, ranges).await?;
        shared.send(Work::Copying(false)).await?;
    }
    if shared.phase() == Phase::Copy {
        shared.update_meta(|meta| meta.phase = Phase::Follow).await?;
    }
    loop {
        match verify(&shared, repair).await {
            // A difference stays for the operator to see and to repair.
            Ok(_) => return std::future::pending().await,
            Err(error) if error.is_passing() || matches!(error, MigrateError::Refused(_)) => {
                tracing::warn!(%error, "verify: trying again");
                tokio::time::sleep(VERIFY_AGAIN).await;
            }
            Err(error) => return Err(error),
        }
    }
}

async fn watch_oplog(shared: Arc<Shared>) -> Result<()> {
    loop {
        *lock(&shared.oplog_hours) = shared.source.oplog_hours().await;
        tokio::time::sleep(OPLOG_EVERY).await;
    }
}

/// Removes everything that the migration wrote.
async fn clear(shared: &Shared) -> Result<()> {
    if shared.meta().await.blocked {
        retry("let the source's programs write", || shared.source.block_writes(false)).await?;
    }
    drop_copy(&*shared.target).await
}

/// Removes everything that a migration wrote, which no process runs.
pub async fn clear_target(target: &dyn MigrationTarget) -> Result<()> {
    take_over(target, "abort").await?;
    let cleared = drop_copy(target).await;
    target.end_run().await;
    cleared
}

async fn drop_copy(target: &dyn MigrationTarget) -> Result<()> {
    let meta = Meta::load(target)
        .await?
        .ok_or_else(|| MigrateError::refused("abort: the target holds no migration"))?;
    // A crash after this write leaves documents and state; the repeated abort removes them, and no run goes on from them.
    let aborted = Meta { phase: Phase::Aborted, blocked: false, verified_up_to: None, ..meta };
    target.apply(vec![aborted.change()?]).await?;
    target.clear().await?;
    for prefix in state::WORKING.into_iter().chain([state::REJECTED, state::COUNTS, state::POSITION]) {
        target.remove_states(prefix.to_vec()).await?;
    }
    Ok(())
}

/// Ends a migration that is done: lets the source's programs write again and removes what is no longer needed.
pub async fn finish(source: &Source, target: &dyn MigrationTarget) -> Result<()> {
    take_over(target, "finish").await?;
    let finished = finish_alone(source, target).await;
    target.end_run().await;
    finished
}

async fn finish_alone(source: &Source, target: &dyn MigrationTarget) -> Result<()> {
    let meta = Meta::load(target)
        .await?
        .ok_or_else(|| MigrateError::refused("finish: the target holds no migration"))?;
    if meta.phase != Phase::Done {
        let why = format!(
            "finish: the phase is {}; only a migration that is done can be finished",
            meta.phase.as_str()
        );
        return Err(MigrateError::Refused(why));
    }
    if meta.blocked {
        retry("let the source's programs write", || source.block_writes(false)).await?;
    }
    // A crash before this write leaves the block recorded, and the repeated command lifts it again.
    target.apply(vec![Meta { blocked: false, ..meta }.change()?]).await?;
    for prefix in state::WORKING.into_iter().chain([state::REJECTED, state::POSITION]) {
        target.remove_states(prefix.to_vec()).await?;
    }
    Ok(())
}
