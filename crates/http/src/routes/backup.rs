//! Backups and the stock audit of the running shop.

use axum::extract::State;
use http::StatusCode;

use crate::app::App;
use crate::extract::{Caller, Json};
use crate::response::{self, ApiResult};
use crate::store_error::OrProblem;
use crate::wire::backup::{AuditView, BackupBody, BackupView};

/// An estimate of the bytes of a backup's state in JSON.
const SIZE: usize = 384;

/// Start a backup
///
/// A physical copy of the running shop on the machine of the service, incremental against what the directory has. Only the embedded
/// engine takes backups, one at a time. The response says how it stands at once; read this path for its progress and its end.
/// A dry run unless `confirm` is true: then the response shows the last backup. Starting one leaves an entry in the audit log.
#[utoipa::path(post, path = "/v1/operations/backup", tag = "operations", operation_id = "start_backup",
    request_body = BackupBody, responses((status = 200, description = "A dry run", body = BackupView),
        (status = 202, description = "Started", body = BackupView)))]
pub(crate) async fn start(State(app): State<App>, caller: Caller, Json(body): Json<BackupBody>) -> ApiResult {
    let BackupBody { to, keep, confirm } = body;
    if !confirm {
        return status(State(app)).await;
    }
    let action = format!("start backup to {}, keep {keep}", to.display());
    let started = app.shop.start_backup(to, usize::try_from(keep).unwrap_or(usize::MAX)).await;
    if let Some(operations) = &app.operations {
        // A crash here leaves a backup without an audit entry; its folder names the moment.
        operations.record(caller.0, action, &started).await;
    }
    started.or_problem(&app)?;
    let status = app.shop.backup_status().await.or_problem(&app)?;
    response::json(StatusCode::ACCEPTED, SIZE, &BackupView::new(status))
}

/// The last backup since the process runs
#[utoipa::path(get, path = "/v1/operations/backup", tag = "operations", operation_id = "read_backup",
    responses((status = 200, body = BackupView)))]
pub(crate) async fn status(State(app): State<App>) -> ApiResult {
    let status = app.shop.backup_status().await.or_problem(&app)?;
    response::ok(SIZE, &BackupView::new(status))
}

/// Audit the stock
///
/// Recomputes every stock level from its ledger and the open holds, without stopping the shop. It takes time with the size of the
/// shop.
#[utoipa::path(get, path = "/v1/operations/stock/audit", tag = "operations", operation_id = "audit_stock",
    responses((status = 200, body = AuditView)))]
pub(crate) async fn audit(State(app): State<App>) -> ApiResult {
    let audit = app.shop.audit_stock().await.or_problem(&app)?;
    let view = AuditView::new(&audit);
    response::ok(view.size(), &view)
}
