//! Nodes and repair of the cluster. A change is a dry run unless it is confirmed.

use std::borrow::Cow;

use axum::extract::State;
use http::StatusCode;
use mw_shop::operations::Run;

use super::partitions::operations;
use crate::app::App;
use crate::extract::{Caller, Json, JsonOptional, Path, RepairedTable};
use crate::response::{self, ApiResult};
use crate::store_error::OrProblem;
use crate::wire::cluster::{
    ConfirmBody, NodeListView, RepairChangeView, RepairListView, RepairRunView, RunBody, WindowListView,
};

/// An estimate of the bytes of one item in JSON.
const SIZE: usize = 288;

/// Nodes of the cluster
///
/// Every node is asked itself.
#[utoipa::path(get, path = "/v1/operations/nodes", tag = "operations", operation_id = "list_nodes",
    responses((status = 200, body = NodeListView)))]
pub(crate) async fn nodes(State(app): State<App>) -> ApiResult {
    let nodes = operations(&app)?.nodes().await.or_problem(&app)?;
    response::ok(64 + nodes.len() * SIZE, &NodeListView::new(nodes))
}

/// Repair of all tables
#[utoipa::path(get, path = "/v1/operations/repair", tag = "operations", operation_id = "list_repairs",
    responses((status = 200, body = RepairListView)))]
pub(crate) async fn list(State(app): State<App>) -> ApiResult {
    let report = operations(&app)?.repairs().await.or_problem(&app)?;
    response::ok(128 + report.tables.len() * SIZE, &RepairListView::new(report))
}

/// Repair of a table
///
/// With the last repair of it that this process was asked for.
#[utoipa::path(get, path = "/v1/operations/repair/{table}", tag = "operations", operation_id = "read_repair",
    responses((status = 200, body = RepairRunView)), extensions(("x-problems" = json!(["repair_not_found"]))))]
pub(crate) async fn read(
    State(app): State<App>,
    Path(RepairedTable(table)): Path<RepairedTable>,
) -> ApiResult {
    let repair = operations(&app)?.repair_of(&table).await.or_problem(&app)?;
    response::ok(2 * SIZE, &RepairRunView::new(repair))
}

/// Blackout windows
#[utoipa::path(get, path = "/v1/operations/repair/windows", tag = "operations", operation_id = "list_blackout_windows",
    responses((status = 200, body = WindowListView)))]
pub(crate) async fn windows(State(app): State<App>) -> ApiResult {
    let windows = operations(&app)?.blackout_windows().or_problem(&app)?;
    response::ok(64 + windows.len() * 64, &WindowListView::new(windows))
}

/// Repair tables now
///
/// A dry run unless `confirm` is true. The repair goes on after the response; read `/v1/operations/repair/{table}` for its end.
#[utoipa::path(post, path = "/v1/operations/repair/run", tag = "operations", operation_id = "run_repair",
    request_body = RunBody, responses((status = 200, description = "A dry run", body = RepairChangeView),
        (status = 202, description = "Begun", body = RepairChangeView)),
    extensions(("x-problems" = json!(["repair_not_found"]))))]
pub(crate) async fn run(State(app): State<App>, caller: Caller, Json(body): Json<RunBody>) -> ApiResult {
    let operations = operations(&app)?;
    let RunBody { tables, confirm } = body;
    let names = tables.join(", ");
    if !confirm {
        operations.check_repair(&tables).or_problem(&app)?;
        let text = Cow::Owned(format!("would repair {names}"));
        return response::ok(SIZE, &RepairChangeView { done: false, text });
    }
    operations.start_repair(tables, caller.0).or_problem(&app)?;
    let text = Cow::Owned(format!("repairing {names}"));
    response::json(StatusCode::ACCEPTED, SIZE, &RepairChangeView { done: true, text })
}

/// Pause auto-repair
///
/// On every node, until it is resumed. A dry run unless `confirm` is true.
#[utoipa::path(post, path = "/v1/operations/repair/pause", tag = "operations", operation_id = "pause_repair",
    request_body = ConfirmBody, responses((status = 200, body = RepairChangeView)),
    extensions(("x-optional-body" = json!(true))))]
pub(crate) async fn pause(
    State(app): State<App>,
    caller: Caller,
    JsonOptional(body): JsonOptional<ConfirmBody>,
) -> ApiResult {
    set_paused(&app, true, caller, &body).await
}

/// Resume auto-repair
///
/// On every node. A dry run unless `confirm` is true.
#[utoipa::path(post, path = "/v1/operations/repair/resume", tag = "operations", operation_id = "resume_repair",
    request_body = ConfirmBody, responses((status = 200, body = RepairChangeView)),
    extensions(("x-optional-body" = json!(true))))]
pub(crate) async fn resume(
    State(app): State<App>,
    caller: Caller,
    JsonOptional(body): JsonOptional<ConfirmBody>,
) -> ApiResult {
    set_paused(&app, false, caller, &body).await
}

async fn set_paused(app: &App, is_paused: bool, caller: Caller, body: &ConfirmBody) -> ApiResult {
    let run = if body.confirm { Run::Confirmed } else { Run::Dry };
    let text = operations(app)?.set_repair_paused(is_paused, run, caller.0).await.or_problem(app)?;
    response::ok(SIZE, &RepairChangeView { done: body.confirm, text: Cow::Owned(text) })
}
