//! Recovery: what runs beside the requests of every process. It writes the heartbeat, finishes the orphaned intents of failed
//! processes and the abandoned intents of this one, and reloads the bucket plans.
//!
//! Several processes may recover the same intent: every step can be taken twice and counts once. A row that cannot be read is
//! skipped and reported once.

pub(crate) mod completed;
pub(crate) mod heartbeat;
pub(crate) mod idempotency;
pub(crate) mod intents;
pub(crate) mod ownership;
pub(crate) mod timers;
pub(crate) mod unreadable;

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use mw_store::{Result, StoreError, request};
use scylla::response::PagingState;

use crate::CassandraStore;
use crate::driver::statements::Cql;
use crate::recovery::completed::CompletedIntents;
use crate::recovery::heartbeat::{HEARTBEAT_INTERVAL, Peer};
use crate::recovery::intents::{Intent, Intents, Kind};

/// An abandoned intent is retried after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Between two reads of the bucket plans.
const PLANS_INTERVAL: Duration = Duration::from_secs(10);
/// Intents that are finished at the same time.
const CONCURRENT_INTENTS: usize = 32;
/// Buckets of a failed process that are read at the same time.
const CONCURRENT_BUCKETS: usize = 4;

/// Runs until the store is dropped. Heartbeats do not wait for the other work: a process with much to finish would seem to
/// have failed.
pub(crate) async fn run(store: Weak<CassandraStore>) {
    let heartbeats = repeat(&store, HEARTBEAT_INTERVAL, async |store| {
        if let Err(error) = store.intents.heartbeat(&store.cql).await {
            tracing::warn!(
                %error,
                "write the heartbeat of this process: without one, other processes take over its work"
            );
        }
    });
    let work = repeat(&store, HEARTBEAT_INTERVAL, async |store| {
        match store.recover_orphaned().await {
            Ok(()) => {}
            // The processes of the selling data centre finish it.
            Err(StoreError::NotServing(reason)) => tracing::debug!(reason, "recover orphaned intents"),
            Err(error) => {
                tracing::warn!(%error, "recover orphaned intents of failed processes: retrying every second");
            }
        }
        store.retry_abandoned().await;
    });
    let bucketing = repeat(&store, PLANS_INTERVAL, async |store| {
        if let Err(error) = store.bucketing.refresh(&store.cql).await {
            tracing::warn!(%error, "reload the bucket plans: plans made since are not known to this process");
        }
    });
    tokio::join!(heartbeats, work, bucketing);
}

/// Removes the completed intents that wait for it: those of one partition are one mutation.
pub(crate) async fn remove_completed(completed: &CompletedIntents, intents: &Intents, cql: &Arc<Cql>) {
    join_all(completed.take().into_iter().map(|intent| intents.complete(cql, intent))).await;
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
    /// Removes the intent of a finished operation soon, together with others. A crash before the removal leaves the intent,
    /// and recovery finds everything of it done.
    pub(crate) fn complete_soon(&self, intent: Intent) {
        let Some(intent) = self.intents.complete_unwritten(intent) else { return };
        let Some(after) = self.completed.add(intent) else { return };
        let (completed, intents) = (Arc::clone(&self.completed), Arc::clone(&self.intents));
        let cql = Arc::clone(&self.cql);
        tokio::spawn(request::scope(request::current(), async move {
            tokio::time::sleep(after).await;
            remove_completed(&completed, &intents, &cql).await;
        }));
    }

    /// Finishes the intents of failed processes. The buckets of their intents are divided among the living processes.
    async fn recover_orphaned(&self) -> Result<()> {
        let peers = self.intents.peers(&self.cql).await?;
        self.keepers.forwarding().update(&peers.alive);
        self.intents.retain_recovered(&peers.failed);
        let mut first_error = Ok(());
        for failed in peers.failed {
            // A process that cannot be recovered does not keep the others from being recovered.
            first_error = first_error.and(self.recover_process(&failed).await);
        }
        first_error
    }

    /// Finishes the intents of a failed process in the buckets that are this process' turn, and deregisters it when it has
    /// had none for long.
    async fn recover_process(&self, failed: &Peer) -> Result<()> {
        let is_turn = |time_bucket: &i64| self.intents.is_turn(failed, *time_bucket);
        let turns: Vec<i64> = failed.time_buckets().filter(is_turn).collect();
        let skipped = self.recover_buckets(failed, &turns).await?;
        if skipped > 0 || !self.intents.may_forget(failed) {
            return Ok(());
        }
        let all: Vec<i64> = failed.time_buckets().collect();
        if self.recover_buckets(failed, &all).await? > 0 {
            return Ok(());
        }
        // A crash here leaves the row of a failed process without intents: the next process finds none and removes the row.
        self.intents.deregister_failed(&self.cql, failed).await
    }

    /// Finishes what can be finished in some buckets; returns how many intents were skipped, or the first error of the rest.
    async fn recover_buckets(&self, failed: &Peer, time_buckets: &[i64]) -> Result<usize> {
        let recoveries: Vec<_> =
            time_buckets.iter().map(|bucket| Box::pin(self.recover_bucket(failed, *bucket))).collect();
        let mut recoveries = stream::iter(recoveries).buffer_unordered(CONCURRENT_BUCKETS);
        let (mut skipped, mut first_error) = (0, Ok(()));
        while let Some(recovered) = recoveries.next().await {
            match recovered {
                Ok(count) => skipped += count,
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        first_error.map(|()| skipped)
    }

    /// Finishes what can be finished; returns how many intents were skipped, or the first error of the rest.
    async fn recover_bucket(&self, failed: &Peer, time_bucket: i64) -> Result<usize> {
        let (mut skipped, mut first_error) = (0, Ok(()));
        let mut from = PagingState::start();
        loop {
            let page = self.intents.orphaned(&self.cql, failed, time_bucket, from).await?;
            skipped += page.skipped;
            let recoveries: Vec<_> =
                page.intents.iter().map(|intent| Box::pin(self.finish_orphaned(failed, intent))).collect();
            let mut recoveries = stream::iter(recoveries).buffer_unordered(CONCURRENT_INTENTS);
            while let Some(recovered) = recoveries.next().await {
                match recovered {
                    Ok(is_finished) => skipped += usize::from(!is_finished),
                    Err(error) => first_error = first_error.and(Err(error)),
                }
            }
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
        first_error?;
        self.intents.recovered(failed, time_bucket);
        Ok(skipped)
    }

    /// Finishes one intent and removes it, also where others of its bucket cannot be finished: finished again much later, it
    /// would no longer find what it did before. `false` for an intent that cannot be read: its row stays.
    async fn finish_orphaned(&self, failed: &Peer, intent: &Intent) -> Result<bool> {
        let row = format!("intent {}", intent.op_id);
        if self.intents.unreadable().skip(&row, self.finish(intent).await)?.is_none() {
            return Ok(false);
        }
        // A crash here leaves the intent of a finished operation: the next process finishes it again, without effect.
        self.intents.complete_orphaned(&self.cql, failed, intent).await?;
        Ok(true)
    }

    /// Retries the intents whose work failed in this process.
    async fn retry_abandoned(&self) {
        let abandoned = self.intents.take_abandoned(RETRY_AFTER);
        stream::iter(abandoned)
            .for_each_concurrent(CONCURRENT_INTENTS, |intent| Box::pin(self.retry(intent)))
            .await;
    }

    /// A crash in here leaves the row of the intent: another process finishes it after the failure timeout.
    async fn retry(&self, intent: Intent) {
        let finished = if intent.is_void() { Ok(()) } else { self.finish(&intent).await };
        match finished {
            Ok(()) => self.intents.complete(&self.cql, intent).await,
            Err(error) => {
                if let StoreError::Corrupt(cause) = &error {
                    self.intents.unreadable().report(&format!("intent {}", intent.op_id), cause);
                }
                tracing::debug!(%error, kind = ?intent.kind, op_id = %intent.op_id, "retry an abandoned intent");
                self.intents.abandon(intent);
            }
        }
    }

    /// Finishes or undoes one operation.
    async fn finish(&self, intent: &Intent) -> Result<()> {
        if intent.kind.moves_stock() {
            self.selling.check_recovery()?;
        }
        match intent.kind {
            Kind::Order => self.recover_order(&intent.payload).await,
            Kind::Status => self.recover_status_change(intent.op_id, &intent.payload).await,
            Kind::Merge => self.recover_merge(intent.op_id, &intent.payload).await,
            Kind::Login => self.recover_login(intent.op_id, &intent.payload).await,
            Kind::Product => self.recover_product(&intent.payload).await,
            Kind::Import => self.recover_import(&intent.payload).await,
            Kind::Reserve => self.recover_reserve(&intent.payload, intent.is_abandoned_here()).await,
            Kind::CloseReservation => self.recover_close(&intent.payload).await,
        }
    }
}
