//! Which process runs the migration: a row that lightweight transactions decide. Another process takes over when that one has
//! left or its heartbeat stands still.
//!
//! Nothing depends on how long a process was paused: a batch has effects only if its process still is the one after the batch was
//! logged, and a batch that is logged is written by the process that takes over, too.

use std::time::{Duration, Instant};

use mw_store::{Result, StoreError};
use uuid::Uuid;

use super::log::not_run;
use crate::CassandraStore;
use crate::driver::certainty::CasResult;

const PART: &str = "run";
const KEY: &[u8] = b"process";
/// A process that has failed is known as failed by then.
const WAIT_MAX: Duration = Duration::from_secs(12);
const PAUSE: Duration = Duration::from_millis(250);

impl CassandraStore {
    /// Becomes the process that runs the migration; `false` where another one lives and is it.
    pub(super) async fn take_run(&self) -> Result<bool> {
        let started = Instant::now();
        let own = self.intents.process();
        loop {
            let holder = self.read_run().await?;
            if holder == Some(own) {
                return Ok(true);
            }
            let peers = self.intents.peers(&self.cql).await?;
            let lives = holder.is_some_and(|holder| peers.alive.iter().any(|peer| peer.process == holder));
            // A lost result is resolved by the next read.
            if !lives && self.set_run(Some(own), holder).await? == CasResult::Applied {
                return Ok(true);
            }
            if lives && started.elapsed() > WAIT_MAX {
                return Ok(false);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(super) async fn leave_run(&self) {
        // A crash before it leaves the last batch in the log: that of the cutover has rows of the state alone.
        if let Err(error) = self.close_log().await {
            tracing::debug!(%error, "empty the log of the migration: the next run writes its batch again");
        }
        if let Err(error) = self.set_run(None, Some(self.intents.process())).await {
            tracing::debug!(%error, "leave the migration: another process takes over when this one has ended");
        }
    }

    /// Fails where another process runs the migration now.
    pub(super) async fn check_run(&self) -> Result<()> {
        if self.read_run().await? == Some(self.intents.process()) { Ok(()) } else { Err(not_run()) }
    }

    pub(super) async fn read_run(&self) -> Result<Option<Uuid>> {
        let row: Option<(Option<Vec<u8>>,)> =
            self.cql.first(&self.migration().await?.read_run, (PART, KEY)).await?;
        let Some(process) = row.and_then(|(value,)| value) else { return Ok(None) };
        let corrupt = |_| StoreError::Corrupt("the process that runs the migration".to_owned());
        Uuid::from_slice(&process).map(Some).map_err(corrupt)
    }

    async fn set_run(&self, process: Option<Uuid>, before: Option<Uuid>) -> Result<CasResult> {
        let bytes = |process: Option<Uuid>| process.map(|process| process.as_bytes().to_vec());
        let values = (bytes(process), PART, KEY, bytes(before));
        self.cql.cas(&self.migration().await?.set_run, values).await
    }
}
