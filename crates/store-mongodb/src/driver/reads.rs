//! Where a read outside of a transaction goes. Every read waits for what the majority has, so nothing that it shows is
//! rolled back after an election.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mongodb::ServerType;
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mw_store::Freshness;
use tokio::task::JoinHandle;

use crate::policy::lag::{Fresh, Lags};
use crate::policy::{Call, Policy, Preference, Written};

/// How often members are asked for their lag.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The choice of a server for each read.
#[derive(Debug)]
pub(crate) struct Reads {
    policy: Policy,
    is_sharded: bool,
    lags: Arc<Lags>,
    /// `None` where every call reads on the primary.
    asking: Option<JoinHandle<()>>,
    started: Instant,
    /// When this process last wrote, by [`Written`], in milliseconds since its start plus one; 0: never.
    last_writes: [AtomicU64; 4],
}

impl Reads {
    /// Also starts to ask the members for their lag, where a call may read on a secondary.
    pub(crate) fn new(policy: Policy, lags: Lags, is_sharded: bool) -> Self {
        let lags = Arc::new(lags);
        let asking = policy.has_stale_reads().then(|| tokio::spawn(ask_forever(Arc::clone(&lags))));
        let (started, last_writes) = (Instant::now(), [const { AtomicU64::new(0) }; 4]);
        Self { policy, is_sharded, lags, asking, started, last_writes }
    }

    pub(crate) const fn is_sharded(&self) -> bool {
        self.is_sharded
    }

    /// The servers that may answer a read of a product.
    pub(crate) fn criteria(&self, freshness: Freshness) -> SelectionCriteria {
        self.criteria_for(Call::Product, freshness)
    }

    /// The servers that may answer a call of this freshness.
    pub(crate) fn criteria_for(&self, call: Call, freshness: Freshness) -> SelectionCriteria {
        match freshness {
            Freshness::Latest => primary(),
            Freshness::StaleOk => self.criteria_of(call),
        }
    }

    /// The servers that may answer a call.
    pub(crate) fn criteria_of(&self, call: Call) -> SelectionCriteria {
        let policy = self.policy.of(call);
        if policy.preference == Preference::Primary || self.wrote_within(call, policy.max_staleness) {
            return primary();
        }
        match self.lags.fresh(policy.max_staleness, self.is_sharded) {
            Fresh::None => primary(),
            Fresh::BehindMongos => ReadPreference::SecondaryPreferred { options: Option::default() }.into(),
            Fresh::Members(members) => SelectionCriteria::Predicate(Arc::new(move |server| {
                server.server_type() == ServerType::RsSecondary && members.contains(server.address())
            })),
        }
    }

    /// The read concern of the active cart. Between shards a merge commits one cart after the other: only a linearizable read
    /// waits for the second one, so that no reader sees the same units in both.
    pub(crate) fn cart_concern(&self) -> ReadConcern {
        if self.is_sharded { ReadConcern::linearizable() } else { ReadConcern::majority() }
    }

    /// Notes a write of this process: it must be seen by the reads that follow.
    pub(crate) fn wrote(&self, what: Written) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Some(last) = self.last_writes.get(what as usize) {
            last.store(now.saturating_add(1), Ordering::Relaxed);
        }
    }

    fn wrote_within(&self, call: Call, time: Duration) -> bool {
        let last =
            self.last_writes.get(call.own_writes() as usize).map_or(0, |it| it.load(Ordering::Relaxed));
        last > 0 && self.started.elapsed() < Duration::from_millis(last) + time
    }

    pub(crate) async fn close(&self) {
        self.stop_asking();
        self.lags.close().await;
    }

    fn stop_asking(&self) {
        if let Some(asking) = &self.asking {
            asking.abort();
        }
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        self.stop_asking();
    }
}

fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

async fn ask_forever(lags: Arc<Lags>) {
    loop {
        if let Err(error) = lags.poll().await {
            tracing::debug!(%error, "ask the members for their lag: stale reads go to the primary");
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
