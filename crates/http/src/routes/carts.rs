//! Carts of users and of guests. The routes of both owners share these handlers; the document is written for the user's.

use axum::extract::State;
use http::StatusCode;
use mw_domain::{Owner, ProductId, UserId};

use crate::app::App;
use crate::cursor::Scope;
use crate::docs::{IdempotencyKey, IfMatchVersion, PageParams, RequiredIdempotencyKey};
use crate::extract::{IfMatch, Json, KeyRequiredJson, KeyedJson, KeyedJsonOptional, Path, Query};
use crate::response::{self, ApiResult};
use crate::store_error::OrProblem;
use crate::wire::carts::{
    CartChangeView, CartView, LineBody, MergeBody, MergeChangeView, MergedView, NoFields,
};
use crate::wire::list::{List, ListView};
use crate::wire::orders::{CheckoutBody, OrderView};

/// The active cart
///
/// Where there is none: `"cart_id":null,"version":0,"lines":[]`.
#[utoipa::path(get, path = "/v1/users/{user_id}/cart", tag = "carts", operation_id = "read_cart",
    responses((status = 200, body = CartView)))]
pub(crate) async fn read(State(app): State<App>, Path(owner): Path<Owner>) -> ApiResult {
    let cart = app.shop.active_cart(&owner).await.or_problem(&app)?;
    respond(&CartView::of(cart.as_ref(), &owner))
}

fn respond(view: &CartView<'_>) -> ApiResult {
    response::ok(view.size(), view)
}

/// Add or replace a line
///
/// Creates the cart where there is none. The product is not looked up before checkout.
#[utoipa::path(put, path = "/v1/users/{user_id}/cart/lines/{product_id}", tag = "carts", operation_id = "set_line",
    params(IfMatchVersion), request_body = LineBody, responses((status = 200, body = CartView)),
    extensions(("x-problems" = json!(["cart_too_large"]))))]
pub(crate) async fn set_line(
    State(app): State<App>,
    Path((owner, product_id)): Path<(Owner, ProductId)>,
    IfMatch(expected_version): IfMatch,
    Json(LineBody { quantity }): Json<LineBody>,
) -> ApiResult {
    let cart = app.shop.set_line(owner, product_id, quantity, expected_version).await.or_problem(&app)?;
    respond(&CartView::from(&cart))
}

/// Remove a line
///
/// A line that does not exist is no error.
#[utoipa::path(delete, path = "/v1/users/{user_id}/cart/lines/{product_id}", tag = "carts",
    operation_id = "remove_line", params(IfMatchVersion), responses((status = 200, body = CartView)))]
pub(crate) async fn remove_line(
    State(app): State<App>,
    Path((owner, product_id)): Path<(Owner, ProductId)>,
    IfMatch(expected_version): IfMatch,
) -> ApiResult {
    let cart = app.shop.remove_line(owner.clone(), product_id, expected_version).await.or_problem(&app)?;
    respond(&CartView::of(cart.as_ref(), &owner))
}

/// Abandon the active cart
#[utoipa::path(post, path = "/v1/users/{user_id}/cart/abandon", tag = "carts", operation_id = "abandon_cart",
    params(IfMatchVersion, IdempotencyKey), responses((status = 200, body = CartView)),
    extensions(("x-problems" = json!(["cart_empty"]))))]
pub(crate) async fn abandon(
    State(app): State<App>,
    Path(owner): Path<Owner>,
    IfMatch(expected_version): IfMatch,
    KeyedJsonOptional { key, body: NoFields {} }: KeyedJsonOptional<NoFields>,
) -> ApiResult {
    let done = app.shop.abandon_cart(owner, expected_version, key).await.or_problem(&app)?;
    let view = CartView::from(&done.value);
    response::done(StatusCode::OK, done.replayed, view.size(), &view)
}

/// Merge a guest's cart into the user's
///
/// The user's cart keeps its `cart_id` and gets the union of the lines; for a product in both, `mode` decides. The guest's
/// cart becomes `abandoned` with `merged_into`. Done once per guest cart, however often it is sent: a repeat changes
/// nothing. A quantity stops at 10 000; at 100 lines the user's own are kept and the guest's oldest dropped.
#[utoipa::path(post, path = "/v1/users/{user_id}/cart/merge", tag = "carts", operation_id = "merge_carts",
    params(IfMatchVersion, IdempotencyKey), request_body = MergeBody, responses((status = 200, body = MergedView)))]
pub(crate) async fn merge(
    State(app): State<App>,
    Path(user_id): Path<UserId>,
    IfMatch(expected_version): IfMatch,
    KeyedJson { key, body }: KeyedJson<MergeBody>,
) -> ApiResult {
    let mode = body.mode.unwrap_or_default().into();
    let owner = Owner::User(user_id.clone());
    let merged = app.shop.merge_carts(user_id, body.session_id, mode, expected_version, key).await;
    let done = merged.or_problem(&app)?;
    let view = MergedView {
        cart: CartView::of(done.value.cart.as_ref(), &owner),
        changes: done.value.changes.iter().map(MergeChangeView::from).collect(),
    };
    response::done(StatusCode::OK, done.replayed, view.cart.size() + view.changes.len() * 80, &view)
}

/// Order exactly what the cart holds
///
/// The cart becomes `ordered`. Of two at once one wins and the other gets `cart_empty`.
#[utoipa::path(post, path = "/v1/users/{user_id}/cart/checkout", tag = "carts", operation_id = "checkout",
    params(IfMatchVersion, RequiredIdempotencyKey), request_body = CheckoutBody,
    responses((status = 201, body = OrderView)),
    extensions(("x-problems" = json!(
        ["cart_empty", "product_not_found", "price_changed", "out_of_stock", "currency_mismatch"]))))]
pub(crate) async fn checkout(
    State(app): State<App>,
    Path(user_id): Path<UserId>,
    IfMatch(expected_version): IfMatch,
    KeyRequiredJson { key, body }: KeyRequiredJson<CheckoutBody>,
) -> ApiResult {
    let currency = app.shop.currency();
    let draft = body.draft(user_id, currency)?;
    let done = app.shop.checkout(draft, expected_version, key).await.or_problem(&app)?;
    let view = OrderView::new(&done.value, &currency);
    response::done(StatusCode::CREATED, done.replayed, view.size(), &view)
}

fn scope(list: &str, owner: &Owner) -> Scope {
    let kind = match owner {
        Owner::User(_) => "user",
        Owner::Session(_) => "session",
    };
    Scope::of(list).with(kind).with(owner.id())
}

/// All carts of the owner
///
/// Newest first: active, ordered and abandoned, until they expire.
#[utoipa::path(get, path = "/v1/users/{user_id}/carts", tag = "carts", operation_id = "list_carts",
    params(PageParams), responses((status = 200, body = List<CartView>)))]
pub(crate) async fn list(State(app): State<App>, Path(owner): Path<Owner>, query: Query) -> ApiResult {
    let scope = scope("carts", &owner);
    let page = query.page(&scope)?;
    let page = app.shop.carts(&owner, page).await.or_problem(&app)?;
    response::ok(64 + page.items.len() * 1_024, &ListView::new(&page, &scope, CartView::from))
}

/// The owner's line changes of 30 days
///
/// Newest first.
#[utoipa::path(get, path = "/v1/users/{user_id}/cart/history", tag = "carts", operation_id = "cart_history",
    params(PageParams), responses((status = 200, body = List<CartChangeView>)))]
pub(crate) async fn history(State(app): State<App>, Path(owner): Path<Owner>, query: Query) -> ApiResult {
    let scope = scope("cart changes", &owner);
    let page = query.page(&scope)?;
    let page = app.shop.cart_changes(&owner, page).await.or_problem(&app)?;
    response::ok(64 + page.items.len() * 160, &ListView::new(&page, &scope, CartChangeView::from))
}
