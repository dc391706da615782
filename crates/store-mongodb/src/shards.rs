//! What operators do with shards: how even they are, which calls reach how many of them, what to change, and the commands
//! that change it. On a replica set the reports show its only place, and the commands refuse.

mod action;
mod advise;
mod counts;
mod key_values;
mod report;
mod sketch;
pub mod targeting;

pub use action::{Action, ActionError, BalancerWindow, KeyRange};
pub use advise::{Advice, KeyAdvice, advise};
pub use counts::{CallCounts, CountsSnapshot, flush_forever};
pub use key_values::KeyValues;
pub use report::{
    Balancer, CollectionReport, Hot, MemberReport, ShardPart, ShardReport, TargetingRow, report,
};

use mongodb::bson::doc;

use crate::collections::IndexSpec;

/// One document per command that changed the shards.
pub const AUDIT_LOG: &str = "audit_log";
/// Counts of calls, hot products and categories: one document per process.
pub const CALL_COUNTS: &str = "call_counts";

pub(crate) fn indexes() -> Vec<IndexSpec> {
    vec![
        IndexSpec::plain(AUDIT_LOG, "at", doc! { "at": -1 }),
        IndexSpec::ttl(CALL_COUNTS, "purge_at", "purge_at"),
    ]
}
