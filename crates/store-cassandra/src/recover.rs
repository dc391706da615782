//! What runs beside the requests of every process: it shows that the process lives, finishes what a dead one left and
//! what failed here on the way, and reads the bucket plans again.
//!
//! Several processes may recover the same: every step can be taken twice and counts once.

use std::sync::Weak;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use mw_store::Result;
use scylla::response::PagingState;

use crate::CassandraStore;
use crate::intents::{Intent, Kind, Other};

/// Between two beats.
const BEAT: Duration = Duration::from_secs(1);
/// A process whose beat stands still for so long is taken for dead. Together with a round or two of work this keeps what
/// it left under ten seconds old.
const SILENCE: Duration = Duration::from_secs(5);
/// What failed here is tried again after this time.
const LEFT_FOR: Duration = Duration::from_secs(1);
/// Between two looks at the bucket plans.
const PLANS: Duration = Duration::from_secs(10);
/// Intents that are brought to their end at the same time.
const AT_ONCE: usize = 32;

/// Runs until the store is dropped. Beats do not wait for the work: a process with much to finish would be taken for dead.
pub(crate) async fn run(store: Weak<CassandraStore>) {
    let beats = repeat(&store, BEAT, async |store| {
        if let Err(error) = store.intents.beat(&store.cql).await {
            tracing::warn!(%error, "show that this process lives");
        }
    });
    let work = repeat(&store, BEAT, async |store| {
        if let Err(error) = store.recover_dead().await {
            tracing::warn!(%error, "finish what another process left");
        }
        store.recover_left().await;
    });
    let plans = repeat(&store, PLANS, async |store| {
        if let Err(error) = store.plans.refresh(&store.cql).await {
            tracing::warn!(%error, "read the bucket plans again");
        }
    });
    tokio::join!(beats, work, plans);
}

async fn repeat(store: &Weak<CassandraStore>, every: Duration, work: impl AsyncFn(&CassandraStore)) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(store) = store.upgrade() else { return };
        work(&store).await;
    }
}

impl CassandraStore {
    /// Finishes what processes left that do not live any more.
    async fn recover_dead(&self) -> Result<()> {
        let (mut alive, silent) = self.intents.others(&self.cql, SILENCE).await?;
        alive.push(self.intents.process());
        alive.sort_unstable();
        let rank = alive.iter().position(|process| *process == self.intents.process());
        self.due.divide(
            u32::try_from(rank.unwrap_or_default()).unwrap_or_default(),
            u32::try_from(alive.len()).unwrap_or(1),
        );
        let mut first = Ok(());
        for other in silent {
            // What one of them left may be past help, which is no reason to leave the others.
            first = first.and(self.recover_process(&other).await);
        }
        first
    }

    /// Finishes what a process left, and forgets the process when nothing is left of it.
    async fn recover_process(&self, other: &Other) -> Result<()> {
        let mut first = Ok(());
        for slot in other.slots() {
            first = first.and(self.recover_slot(other, slot).await);
        }
        first?;
        self.intents.forget(&self.cql, other).await
    }

    /// Finishes what can be finished; the error is of the first that could not.
    async fn recover_slot(&self, other: &Other, slot: i64) -> Result<()> {
        let mut first = Ok(());
        let mut from = PagingState::start();
        loop {
            let (intents, next) = self.intents.of_other(&self.cql, other, slot, from).await?;
            let ends: Vec<_> =
                intents.iter().map(|intent| Box::pin(self.finish_of_other(other, intent))).collect();
            let mut ends = stream::iter(ends).buffer_unordered(AT_ONCE);
            while let Some(end) = ends.next().await {
                first = first.and(end);
            }
            let Some(next) = next else { return first };
            from = next;
        }
    }

    /// Finishes one thing and removes it, also where others of its slot cannot be finished: done again much later, it would no
    /// longer find what it did before.
    async fn finish_of_other(&self, other: &Other, intent: &Intent) -> Result<()> {
        self.finish(intent).await?;
        self.intents.end_of_other(&self.cql, other, intent).await
    }

    /// Tries again what failed in this process.
    async fn recover_left(&self) {
        let left = self.intents.take_left(LEFT_FOR);
        stream::iter(left).for_each_concurrent(AT_ONCE, |intent| Box::pin(self.finish_left(intent))).await;
    }

    async fn finish_left(&self, intent: Intent) {
        let finished = if intent.is_void() { Ok(()) } else { self.finish(&intent).await };
        match finished {
            Ok(()) => self.intents.end(&self.cql, intent).await,
            Err(error) => {
                tracing::debug!(%error, kind = ?intent.kind, "finish what was left");
                self.intents.leave(intent);
            }
        }
    }

    /// Brings one begun thing to its end.
    async fn finish(&self, intent: &Intent) -> Result<()> {
        match intent.kind {
            Kind::Order => self.recover_order(&intent.payload).await,
            Kind::Status => self.recover_step(intent.op_id, &intent.payload).await,
            Kind::Merge => self.finish_merge(intent.op_id, &intent.payload).await,
            Kind::Login => self.finish_login(intent.op_id, &intent.payload).await,
            Kind::Product => self.finish_product(intent.op_id, &intent.payload).await,
            Kind::Import => self.finish_import(&intent.payload).await,
        }
    }
}
