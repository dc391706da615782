//! What a migration does now, for operators.

use mw_domain::Timestamp;
use mw_store::migration::MigrationTarget;

use crate::error::Result;
use crate::key::Kind;
use crate::shared::{Shared, lock};
use crate::state::{self, AllCounts, Meta, Phase};

/// A target that is further behind cannot be cut over.
const LAG_MAX_MS: i64 = 10_000;
/// Rejected documents that are listed at once.
pub const REJECTED_MAX: usize = 100_000;

#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub phase: Phase,
    pub counts: AllCounts,
    /// `None`: no process follows the source now.
    pub lag_seconds: Option<f64>,
    pub verified_up_to: Option<Timestamp>,
    pub blocked_by: Vec<String>,
    pub oplog_hours: Option<f64>,
}

impl Status {
    pub fn can_cut_over(&self) -> bool {
        self.blocked_by.is_empty()
    }
}

/// A document that could not be taken, or not as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedDocument {
    pub collection: String,
    pub id: String,
    pub reason: String,
    pub advice: String,
    pub blocking: bool,
}

/// The status of a migration that runs in this process.
pub(crate) async fn running(shared: &Shared) -> Status {
    let meta = shared.meta().await;
    let lag_ms = shared.lag_ms();
    Status {
        phase: meta.phase,
        counts: shared.counts(),
        #[expect(clippy::cast_precision_loss, reason = "a lag is far below 2^53 milliseconds")]
        lag_seconds: Some(lag_ms as f64 / 1_000.0),
        verified_up_to: meta.verified_up_to,
        blocked_by: blocked_by(shared, meta.phase, lag_ms, false),
        oplog_hours: *lock(&shared.oplog_hours),
    }
}

/// The status of a migration that no process runs; `None` where there is none.
pub async fn stopped(target: &dyn MigrationTarget) -> Result<Option<Status>> {
    let Some(meta) = Meta::load(target).await? else { return Ok(None) };
    let is_over = matches!(meta.phase, Phase::Done | Phase::Aborted);
    let why = if is_over { "the migration is over" } else { "no process runs it: start `mw migrate run`" };
    Ok(Some(Status {
        phase: meta.phase,
        counts: AllCounts::load(target).await?,
        lag_seconds: None,
        verified_up_to: meta.verified_up_to,
        blocked_by: vec![why.to_owned()],
        oplog_hours: None,
    }))
}

/// Why the migration cannot be cut over now.
pub(crate) fn blocked_by(shared: &Shared, phase: Phase, lag_ms: i64, accept_rejected: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    if phase == Phase::Copy {
        reasons.push("the copy is not done".to_owned());
    } else if phase != Phase::Follow {
        reasons.push(format!("the phase is {}", phase.as_str()));
    }
    if lag_ms > LAG_MAX_MS {
        reasons.push(format!("the target is {} s behind the source", lag_ms / 1_000));
    }
    let verification = lock(&shared.verification);
    match &verification.last {
        _ if verification.is_running => reasons.push("a verification is running".to_owned()),
        None => reasons.push("nothing is verified yet".to_owned()),
        Some(verified) if !verified.is_equal() => {
            let count = verified.differences.len();
            reasons.push(format!(
                "{count} documents differ: see `mw migrate verify`, or mend them with --repair"
            ));
        }
        Some(_) if !shared.knows_changed() => {
            reasons.push(
                "too many documents changed since the last verification: run `mw migrate verify`".to_owned(),
            );
        }
        Some(_) => {}
    }
    drop(verification);
    let counts = shared.counts();
    let rejected: u64 = Kind::ALL.into_iter().map(|kind| counts.of(kind).rejected).sum();
    if rejected > 0 && !accept_rejected {
        reasons.push(format!(
            "{rejected} documents are rejected: see `mw migrate rejected`, or cut over with --accept-rejected"
        ));
    }
    reasons
}

/// The documents that are rejected, blocking or not.
pub async fn rejected(target: &dyn MigrationTarget) -> Result<Vec<RejectedDocument>> {
    let mut found = Vec::new();
    let mut after = None;
    while found.len() < REJECTED_MAX {
        let rows = target.states(state::REJECTED.to_vec(), after.take(), state::ROWS_AT_ONCE).await?;
        let Some((last, _)) = rows.last() else { break };
        after = Some(last.clone());
        for (key, value) in &rows {
            let rejection = state::decode_rejection(value)?;
            let Some(key) = state::read_rejected_key(key) else { continue };
            found.push(RejectedDocument {
                collection: key.kind.collection().to_owned(),
                id: key.id.text(),
                reason: rejection.reason,
                advice: rejection.advice,
                blocking: rejection.blocking,
            });
        }
    }
    Ok(found)
}
