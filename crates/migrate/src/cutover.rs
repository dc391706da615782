//! The cutover: no write at the source, every change taken, the last changes verified, and then the target is the shop.
//!
//! Invariant: the phase `done` in the target is the one instant at which the target takes over. Before it every failure goes
//! back to following; a process that finds the phase `cutover` when it starts does the same.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Result;
use crate::retry::retry;
use crate::shared::Shared;
use crate::state::Phase;
use crate::status::blocked_by;
use crate::verify::{Difference, verify_changed};

/// How a cutover is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cutover {
    /// Beyond it the migration goes back to following.
    pub timeout: Duration,
    /// Whether the migration stops the writes at the source; otherwise its programs are stopped already.
    pub block: bool,
    pub accept_rejected: bool,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CutOver {
    /// The target is the shop. Writes stood still for so long.
    Done { pause: Duration },
    /// It did not begin, for these reasons.
    Refused(Vec<String>),
    /// It went back to following.
    WentBack { why: String, differences: Vec<Difference>, pause: Duration },
}

pub(crate) async fn cut_over(shared: &Arc<Shared>, cutover: Cutover) -> Result<CutOver> {
    let _exclusive = shared.exclusive.lock().await;
    let reasons = blocked_by(shared, shared.phase(), shared.lag_ms(), cutover.accept_rejected);
    if !reasons.is_empty() {
        return Ok(CutOver::Refused(reasons));
    }
    // A crash after this write leaves writes possibly blocked and the phase `cutover`: the next run lets them go on and follows.
    shared
        .update_meta(|meta| {
            meta.phase = Phase::Cutover;
            meta.blocked = cutover.block;
        })
        .await?;
    let started = Instant::now();
    let drained = tokio::time::timeout(cutover.timeout, drain(shared, cutover)).await;
    let (why, differences) = match drained {
        Ok(Ok(differences)) if differences.is_empty() => {
            // From this write on the target is the shop; a crash right before it goes back to following.
            shared.update_meta(|meta| meta.phase = Phase::Done).await?;
            return Ok(CutOver::Done { pause: started.elapsed() });
        }
        Ok(Ok(differences)) => (format!("{} of the last changes differ", differences.len()), differences),
        Ok(Err(error)) => (error.to_string(), Vec::new()),
        Err(_) => (format!("not done within {} s", cutover.timeout.as_secs_f64()), Vec::new()),
    };
    go_back(shared).await?;
    Ok(CutOver::WentBack { why, differences, pause: started.elapsed() })
}

/// Stops the writes, takes what was written, and compares what changed since the last verification.
async fn drain(shared: &Arc<Shared>, cutover: Cutover) -> Result<Vec<Difference>> {
    if cutover.block {
        retry("block the writes of the source", || shared.source.block_writes(true)).await?;
    }
    let time = retry("ask the source for its time", || shared.source.now()).await?;
    shared.wait_taken(time, cutover.timeout).await;
    let changed = shared.changed().unwrap_or_default();
    verify_changed(shared, changed.into_iter().collect()).await
}

/// Lets the source's programs write again, and follows them.
pub(crate) async fn go_back(shared: &Shared) -> Result<()> {
    if shared.meta().await.blocked {
        // A crash before the phase is written leaves both to be done again.
        retry("let the source's programs write", || shared.source.block_writes(false)).await?;
    }
    shared
        .update_meta(|meta| {
            meta.phase = Phase::Follow;
            meta.blocked = false;
        })
        .await
}
