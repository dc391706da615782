//! Backups and the stock audit in JSON.

use std::path::PathBuf;

use mw_domain::stock::Delta;
use mw_domain::{GeoZone, Level, ProductId};
use mw_store::backup::{BackupProgress, BackupState, BackupStatus};
use mw_store::stock::{Audit, Drift};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::scalars::At;
use super::schema;

const KEEP_DEFAULT: u32 = 3;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StartBackup)]
pub(crate) struct BackupBody {
    /// An absolute path on the machine of the service: a new or empty directory, or one with earlier backups.
    #[schema(value_type = String)]
    pub(crate) to: PathBuf,
    /// How many backups stay in the directory, this one included.
    #[serde(default = "keep_default")]
    #[schema(minimum = 1, default = 3)]
    pub(crate) keep: u32,
    /// Without it the call is a dry run: the response shows the last backup, and none starts.
    #[serde(default)]
    pub(crate) confirm: bool,
}

const fn keep_default() -> u32 {
    KEEP_DEFAULT
}

/// The last backup that was started since the process runs.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Backup)]
pub(crate) struct BackupView {
    /// `none`, `running`, `done` or `failed`.
    #[schema(value_type = String)]
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Time>)]
    started_at: Option<At>,
    /// Table files of the backup, and how many are done.
    tables: u64,
    tables_done: u64,
    /// Bytes of the tables that are done.
    bytes: u64,
    /// Tables that no earlier backup in the directory has.
    new_tables: u64,
    new_bytes: u64,
    /// Counts up in the directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    /// The backup has this many commits or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit_sequence: Option<u64>,
    /// No later commit is in the backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Time>)]
    taken_at: Option<At>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl BackupView {
    pub(crate) fn new(status: Option<BackupStatus>) -> Self {
        let Some(BackupStatus { to, started_at, state }) = status else {
            return Self { state: "none", ..Self::default() };
        };
        let view = match state {
            BackupState::Running(progress) => Self { state: "running", ..Self::at(progress) },
            BackupState::Done(summary) => Self {
                state: "done",
                number: Some(summary.number),
                commit_sequence: Some(summary.commit_sequence),
                taken_at: Some(At(summary.taken_at)),
                ..Self::at(summary.progress)
            },
            BackupState::Failed(error) => Self { state: "failed", error: Some(error), ..Self::default() },
        };
        Self { to: Some(to.display().to_string()), started_at: Some(At(started_at)), ..view }
    }

    fn at(progress: BackupProgress) -> Self {
        Self {
            tables: progress.tables as u64,
            tables_done: progress.tables_done as u64,
            bytes: progress.bytes,
            new_tables: progress.new_tables as u64,
            new_bytes: progress.new_bytes,
            ..Self::default()
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StockAudit)]
pub(crate) struct AuditView<'a> {
    /// Stock levels that were recomputed.
    levels: u64,
    /// Movements in their ledgers.
    movements: u64,
    /// Of the movements, those that other programs made on a database that they share with the service.
    external: u64,
    /// Levels that their ledger or the open holds do not explain.
    drifts: Vec<DriftView<'a>>,
}

impl<'a> AuditView<'a> {
    pub(crate) fn new(audit: &'a Audit) -> Self {
        let drifts = audit.drifts.iter().map(DriftView::new).collect();
        Self { levels: audit.levels, movements: audit.movements, external: audit.external, drifts }
    }

    /// An estimate of the bytes of the JSON.
    pub(crate) fn size(&self) -> usize {
        128 + self.drifts.len() * 256
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StockDrift)]
struct DriftView<'a> {
    #[schema(value_type = schema::Name)]
    product_id: &'a str,
    #[schema(value_type = schema::Name)]
    geo_zone: &'a str,
    recorded: UnitsView,
    /// The sum of the ledger.
    ledger: UnitsView,
    /// Units of open holds and of orders that wait for payment.
    held: u64,
}

impl<'a> DriftView<'a> {
    fn new(drift: &'a Drift) -> Self {
        let Drift { product_id, geo_zone, recorded, ledger, held } = drift;
        let (product_id, geo_zone): (&ProductId, &GeoZone) = (product_id, geo_zone);
        Self {
            product_id: product_id.as_str(),
            geo_zone: geo_zone.as_str(),
            recorded: (*recorded).into(),
            ledger: (*ledger).into(),
            held: *held,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StockUnits)]
struct UnitsView {
    on_hand: i64,
    reserved: i64,
}

impl From<Level> for UnitsView {
    fn from(level: Level) -> Self {
        Self { on_hand: level.on_hand.cast_signed(), reserved: level.reserved.cast_signed() }
    }
}

impl From<Delta> for UnitsView {
    fn from(delta: Delta) -> Self {
        Self { on_hand: delta.on_hand, reserved: delta.reserved }
    }
}
