//! Partitions and bucket plans of the running shop, and the audit log. A change is a dry run unless it is confirmed.

use axum::extract::State;
use mw_domain::time::Date;
use mw_shop::operations::{Operations, PlanChange, RankBy, Run};
use mw_store::audit::AuditEntry;
use serde::Serialize;

use crate::app::App;
use crate::error::{Code, Problem};
use crate::extract::{Caller, Json, Query};
use crate::response::{self, ApiResult};
use crate::store_error::OrProblem;
use crate::wire::partitions::{
    BadInstant, ChangedPlanView, EndPlanBody, PartitionListView, PlanListView, PlanView, SetPlanBody,
};

/// An estimate of the bytes of one item in JSON.
const SIZE: usize = 320;
const TEXT_MAX: usize = 256;

pub(super) fn operations(app: &App) -> Result<&Operations, Problem> {
    app.operations
        .as_ref()
        .ok_or_else(|| Problem::new(Code::RouteNotFound, "this process serves no operations"))
}

fn text(text: &str) -> Result<String, &'static str> {
    if text.len() <= TEXT_MAX { Ok(text.to_owned()) } else { Err("is too long") }
}

/// Hot and wide partitions
///
/// Query: `table`, `by` (`rate` or `bytes`). Rates are lower bounds of the last window, merged over all processes.
#[utoipa::path(get, path = "/v1/operations/partitions", tag = "operations", operation_id = "list_partitions",
    params(("table" = Option<String>, Query), ("by" = Option<String>, Query, description = "rate or bytes")),
    responses((status = 200, body = PartitionListView)))]
pub(crate) async fn list(State(app): State<App>, mut query: Query) -> ApiResult {
    let table = query.optional("table", text)?;
    let by = query.optional("by", |by| match by {
        "rate" => Ok(RankBy::Rate),
        "bytes" => Ok(RankBy::Bytes),
        _ => Err("must be rate or bytes"),
    })?;
    query.finish()?;
    let operations = operations(&app)?;
    let by = by.unwrap_or(RankBy::Rate);
    let partitions = operations.top_partitions(table.as_deref(), by).await.or_problem(&app)?;
    response::ok(64 + partitions.len() * SIZE, &PartitionListView::new(partitions, operations.now()))
}

/// Bucket plans
#[utoipa::path(get, path = "/v1/operations/partitions/plans", tag = "operations", operation_id = "list_bucket_plans",
    params(("table" = Option<String>, Query), ("key" = Option<String>, Query)),
    responses((status = 200, body = PlanListView)))]
pub(crate) async fn plans(State(app): State<App>, mut query: Query) -> ApiResult {
    let (table, key) = (query.optional("table", text)?, query.optional("key", text)?);
    query.finish()?;
    let operations = operations(&app)?;
    let plans = operations.bucket_plans().await.or_problem(&app)?;
    let selected = (table.as_deref(), key.as_deref());
    let view = PlanListView::new(&plans, operations.bucketed_tables(), selected, operations.now());
    response::ok(512 + plans.len() * SIZE, &view)
}

/// Set a bucket plan
///
/// A dry run unless `confirm` is true.
#[utoipa::path(post, path = "/v1/operations/partitions/plans", tag = "operations", operation_id = "set_bucket_plan",
    request_body = SetPlanBody, responses((status = 200, body = ChangedPlanView)))]
pub(crate) async fn set_plan(
    State(app): State<App>,
    caller: Caller,
    Json(body): Json<SetPlanBody>,
) -> ApiResult {
    change(&app, caller, body.into_change()).await
}

/// End a bucket plan
///
/// The default of the table applies again. A dry run unless `confirm` is true.
#[utoipa::path(post, path = "/v1/operations/partitions/plans/end", tag = "operations", operation_id = "end_bucket_plan",
    request_body = EndPlanBody, responses((status = 200, body = ChangedPlanView)),
    extensions(("x-problems" = json!(["partition_not_found"]))))]
pub(crate) async fn end_plan(
    State(app): State<App>,
    caller: Caller,
    Json(body): Json<EndPlanBody>,
) -> ApiResult {
    change(&app, caller, body.into_change()).await
}

async fn change(app: &App, caller: Caller, change: Result<(PlanChange, Run), BadInstant>) -> ApiResult {
    let operations = operations(app)?;
    let (change, run) = change
        .map_err(|BadInstant| Problem::field("from", "must be a time such as 2027-01-01T09:00:00+03:00"))?;
    let plan = operations.change_plan(change, run, caller.0).await.or_problem(app)?;
    let view = PlanView::new(&plan, std::slice::from_ref(&plan), operations.now());
    response::ok(SIZE, &ChangedPlanView { done: run == Run::Confirmed, plan: view })
}

/// The audit log
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = AuditLog)]
pub(crate) struct AuditView {
    items: Vec<AuditEntryView>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = AuditEntry)]
struct AuditEntryView {
    at: String,
    /// The name of the token, never its secret.
    token: String,
    address: String,
    action: String,
    result: String,
}

/// What operators changed
///
/// Query: `day`, in UTC; today where it is not sent.
#[utoipa::path(get, path = "/v1/operations/audit", tag = "operations", operation_id = "read_audit_log",
    params(("day" = Option<String>, Query, description = "such as 2026-11-27")), responses((status = 200, body = AuditView)))]
pub(crate) async fn audit(State(app): State<App>, mut query: Query) -> ApiResult {
    let day = query.optional("day", Date::parse)?;
    query.finish()?;
    let operations = operations(&app)?;
    let day = day.unwrap_or_else(|| operations.now().date());
    let entries = operations.audit_entries(day).await.or_problem(&app)?;
    let view = |entry: AuditEntry| AuditEntryView {
        at: entry.at.to_string(),
        token: entry.operator.token,
        address: entry.operator.address,
        action: entry.action,
        result: entry.result,
    };
    response::ok(64 + entries.len() * SIZE, &AuditView { items: entries.into_iter().map(view).collect() })
}
