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
const BEATS_PER_PLANS: u32 = 10;
const AT_ONCE: usize = 16;

/// Runs until the store is dropped.
pub(crate) async fn run(store: Weak<CassandraStore>) {
    let mut ticks = tokio::time::interval(BEAT);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut count = 0_u32;
    loop {
        ticks.tick().await;
        count = count.wrapping_add(1);
        let Some(store) = store.upgrade() else { return };
        if let Err(error) = store.intents.beat(&store.cql).await {
            tracing::warn!(%error, "show that this process lives");
        }
        if let Err(error) = store.recover_dead().await {
            tracing::warn!(%error, "finish what another process left");
        }
        Box::pin(store.recover_left()).await;
        if count.is_multiple_of(BEATS_PER_PLANS)
            && let Err(error) = store.plans.refresh(&store.cql).await
        {
            tracing::warn!(%error, "read the bucket plans again");
        }
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
        for other in silent {
            self.recover_process(&other).await?;
        }
        Ok(())
    }

    async fn recover_process(&self, other: &Other) -> Result<()> {
        for slot in other.slots() {
            let mut from = PagingState::start();
            loop {
                let (intents, next) = self.intents.of_other(&self.cql, other, slot, from).await?;
                let ends: Vec<_> = intents.iter().map(|intent| self.finish(intent)).collect();
                let mut ends = stream::iter(ends).buffer_unordered(AT_ONCE);
                while let Some(end) = ends.next().await {
                    end?;
                }
                let Some(next) = next else { break };
                from = next;
            }
            self.intents.drop_slot(&self.cql, other, slot).await?;
        }
        self.intents.forget(&self.cql, other).await
    }

    /// Tries again what failed in this process.
    async fn recover_left(&self) {
        for intent in self.intents.take_left(LEFT_FOR) {
            match Box::pin(self.finish(&intent)).await {
                Ok(()) => self.intents.end(&self.cql, intent).await,
                Err(error) => {
                    tracing::debug!(%error, kind = ?intent.kind, "finish what was left");
                    self.intents.leave(intent);
                }
            }
        }
    }

    /// Brings one begun thing to its end.
    async fn finish(&self, intent: &Intent) -> Result<()> {
        match intent.kind {
            Kind::Order => self.recover_order(&intent.payload).await,
            Kind::Status => self.recover_step(&intent.payload).await,
            Kind::Merge => self.finish_merge(intent.op_id, &intent.payload).await,
            Kind::Login => self.finish_login(intent.op_id, &intent.payload).await,
            Kind::Product => self.finish_product(&intent.payload).await,
            Kind::Import => self.finish_import(&intent.payload).await,
        }
    }
}
