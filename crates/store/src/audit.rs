//! The audit log: what operators changed, and how it ended. An entry is written after the change; it is never altered.

use std::fmt;

use mw_domain::Timestamp;
use mw_domain::time::Date;

use crate::error::Result;

/// Who makes a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// The name of the token; never its secret.
    pub token: String,
    pub address: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    pub at: Timestamp,
    pub operator: Operator,
    pub action: String,
    /// `done`, or the error.
    pub result: String,
}

#[async_trait::async_trait]
pub trait AuditLog: fmt::Debug + Send + Sync {
    async fn append(&self, entry: AuditEntry) -> Result<()>;

    /// The entries of a day, newest first.
    async fn entries(&self, day: Date, limit: usize) -> Result<Vec<AuditEntry>>;
}
