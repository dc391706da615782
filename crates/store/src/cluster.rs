//! The nodes of a cluster and the repair of its replicas: what operators see and steer on an engine that has them.

use std::fmt;
use std::time::Duration;

use mw_domain::Timestamp;
use uuid::Uuid;

use crate::error::Result;

/// A node, and what it says of itself. What a node that is down cannot say is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    pub address: String,
    pub data_center: String,
    pub rack: String,
    pub up: bool,
    pub load_bytes: Option<u64>,
    pub tokens: usize,
    pub schema: Option<Uuid>,
    /// Files of hints that the other nodes keep for it.
    pub hints: Option<u64>,
    /// Its clock against that of this machine: positive where it is ahead.
    pub clock_ms: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairState {
    Ok,
    /// The interval of the policy has passed, the deadline has not.
    Late,
    /// The deadline has passed.
    Missed,
    /// No whole repair is known.
    Unknown,
}

impl RepairState {
    pub const ALL: [Self; 4] = [Self::Ok, Self::Late, Self::Missed, Self::Unknown];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Late => "late",
            Self::Missed => "missed",
            Self::Unknown => "unknown",
        }
    }
}

/// How the repair of a table stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableRepair {
    pub table: String,
    pub interval: Duration,
    pub last_whole_repair: Option<Timestamp>,
    pub deadline: Option<Timestamp>,
    pub running: bool,
    pub failed_ranges: u64,
    pub skipped_ranges: u64,
    pub state: RepairState,
}

/// How the repair of all tables stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    pub tables: Vec<TableRepair>,
    /// Whether an operator has paused auto-repair.
    pub paused: bool,
    /// What cannot be known, and why.
    pub notes: Vec<String>,
}

/// How the repair of a table ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairOutcome {
    /// No range failed or was skipped on any node: only then the repair counts.
    pub complete: bool,
    /// What was done, for people.
    pub text: String,
}

/// A window in which auto-repair pauses, as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlackoutWindow {
    pub window: String,
    /// Whether it is open now.
    pub open: bool,
}

/// The nodes and the repair of one cluster.
#[async_trait::async_trait]
pub trait ClusterControl: fmt::Debug + Send + Sync {
    /// Every node, by data centre and address.
    async fn nodes(&self) -> Result<Vec<NodeInfo>>;

    async fn repairs(&self, now: Timestamp) -> Result<RepairReport>;

    fn blackout_windows(&self, now: Timestamp) -> Vec<BlackoutWindow>;

    /// Refuses a table that does not exist, or that the policy does not repair.
    fn check_repaired(&self, table: &str) -> Result<()>;

    /// Repairs a table on every node, and waits for the end.
    async fn repair(&self, table: &str) -> Result<RepairOutcome>;

    /// Pauses or resumes auto-repair on every node. Returns what was done, for people.
    async fn set_repair_paused(&self, is_paused: bool) -> Result<String>;
}
