//! The JSON of nodes and repair. `mw nodes` and `mw repair` print the same.

use std::borrow::Cow;

use mw_shop::operations::RequestedRepair;
use mw_store::cluster::{BlackoutWindow, NodeInfo, RepairReport, TableRepair};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The nodes of the cluster, by data centre and address.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Nodes)]
pub struct NodeListView {
    pub items: Vec<NodeView>,
}

/// What a node that is down cannot say is null.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Node)]
pub struct NodeView {
    pub address: String,
    pub data_center: String,
    pub rack: String,
    pub up: bool,
    #[schema(required)]
    pub load_bytes: Option<u64>,
    pub tokens: usize,
    /// Version of the schema that it has.
    #[schema(required)]
    pub schema: Option<String>,
    /// Files of hints that the other nodes keep for it.
    #[schema(required)]
    pub hints: Option<u64>,
    /// Its clock against that of the service: positive where it is ahead.
    #[schema(required)]
    pub clock_ms: Option<i64>,
}

impl From<NodeInfo> for NodeView {
    fn from(node: NodeInfo) -> Self {
        Self {
            address: node.address,
            data_center: node.data_center,
            rack: node.rack,
            up: node.up,
            load_bytes: node.load_bytes,
            tokens: node.tokens,
            schema: node.schema.map(|version| version.to_string()),
            hints: node.hints,
            clock_ms: node.clock_ms,
        }
    }
}

impl NodeListView {
    pub fn new(nodes: Vec<NodeInfo>) -> Self {
        Self { items: nodes.into_iter().map(NodeView::from).collect() }
    }
}

/// How the repair of every table stands.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Repairs)]
pub struct RepairListView {
    pub items: Vec<RepairView>,
    /// Whether an operator has paused auto-repair.
    pub paused: bool,
    /// What cannot be known, and why.
    pub notes: Vec<String>,
}

/// How the repair of a table stands.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TableRepair)]
pub struct RepairView {
    pub table: String,
    /// How often the policy has it repaired.
    pub interval_s: u64,
    #[schema(required)]
    pub last_whole_repair: Option<String>,
    /// The last whole repair and `gc_grace`: later, deleted rows may come back.
    #[schema(required)]
    pub deadline: Option<String>,
    /// Whether auto-repair, or a repair that this process was asked for, runs now.
    pub running: bool,
    /// Of the newest run of each node.
    pub failed_ranges: u64,
    pub skipped_ranges: u64,
    /// `ok`, `late`, `missed`, or `unknown`: no whole repair is known.
    #[schema(value_type = String)]
    pub verdict: &'static str,
}

impl From<TableRepair> for RepairView {
    fn from(repair: TableRepair) -> Self {
        Self {
            table: repair.table,
            interval_s: repair.interval.as_secs(),
            last_whole_repair: repair.last_whole_repair.map(|at| at.to_string()),
            deadline: repair.deadline.map(|at| at.to_string()),
            running: repair.running,
            failed_ranges: repair.failed_ranges,
            skipped_ranges: repair.skipped_ranges,
            verdict: repair.state.name(),
        }
    }
}

impl RepairListView {
    pub fn new(report: RepairReport) -> Self {
        let RepairReport { tables, paused, notes } = report;
        Self { items: tables.into_iter().map(RepairView::from).collect(), paused, notes }
    }
}

/// How the repair of a table stands, and the last one that this process was asked for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TableRepairRun)]
pub(crate) struct RepairRunView {
    #[serde(flatten)]
    repair: RepairView,
    #[schema(required)]
    requested: Option<RequestedView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RequestedRepair)]
struct RequestedView {
    /// `running`, `complete`, or `incomplete`: it does not count.
    #[schema(value_type = String)]
    state: &'static str,
    started_at: String,
    #[schema(required)]
    finished_at: Option<String>,
    text: String,
}

impl RepairRunView {
    pub(crate) fn new((repair, requested): (TableRepair, Option<RequestedRepair>)) -> Self {
        let requested = requested.map(|run| RequestedView {
            state: match (run.finished_at, run.complete) {
                (None, _) => "running",
                (Some(_), true) => "complete",
                (Some(_), false) => "incomplete",
            },
            started_at: run.started_at.to_string(),
            finished_at: run.finished_at.map(|at| at.to_string()),
            text: run.text,
        });
        Self { repair: repair.into(), requested }
    }
}

/// The windows in which auto-repair pauses.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BlackoutWindows)]
pub struct WindowListView {
    pub items: Vec<WindowView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BlackoutWindow)]
pub struct WindowView {
    /// As it is configured, in UTC.
    pub window: String,
    /// Whether it is open now.
    pub open: bool,
}

impl WindowListView {
    pub fn new(windows: Vec<BlackoutWindow>) -> Self {
        let view = |BlackoutWindow { window, open }| WindowView { window, open };
        Self { items: windows.into_iter().map(view).collect() }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RunRepair)]
pub(crate) struct RunBody {
    /// Of the tables that `GET /v1/operations/repair` lists.
    pub(crate) tables: Vec<String>,
    /// Without it the call is a dry run.
    #[serde(default)]
    pub(crate) confirm: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Confirm)]
pub(crate) struct ConfirmBody {
    /// Without it the call is a dry run.
    #[serde(default)]
    pub(crate) confirm: bool,
}

/// The result of a change, or of its dry run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RepairChange)]
pub(crate) struct RepairChangeView<'a> {
    /// `false` for a dry run.
    pub(crate) done: bool,
    /// What was done or begun, or would be.
    #[schema(value_type = String)]
    pub(crate) text: Cow<'a, str>,
}
