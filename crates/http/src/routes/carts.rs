//! Carts of users and of guests. The paths of both owners lead here; the document shows the user's.

use axum::extract::State;
use http::StatusCode;
use mw_domain::{Owner, ProductId, UserId};
use mw_store::carts::{Abandon, RemoveLine, SetLine};

use crate::answer::{self, Answer};
use crate::app::App;
use crate::cursor::Scope;
use crate::docs::{IdempotencyKey, IfMatchVersion, PageParams, RequiredIdempotencyKey};
use crate::extract::{IfMatch, Json, Keyed, KeyedOptional, Path, Query, RequiredKeyed};
use crate::refusal::OrProblem;
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
pub(crate) async fn read(State(app): State<App>, Path(owner): Path<Owner>) -> Answer {
    let cart = app.shop.store.active_cart(&owner, app.shop.now()).await.or_problem(&app)?;
    show(&CartView::of(cart.as_ref(), &owner))
}

fn show(view: &CartView<'_>) -> Answer {
    answer::ok(view.size(), view)
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
) -> Answer {
    let command = SetLine {
        owner,
        product_id,
        quantity,
        new_cart_id: app.shop.ids.cart(),
        expected_version,
        lifetime: app.shop.settings.carts,
        now: app.shop.now(),
    };
    let cart = app.shop.store.set_line(command).await.or_problem(&app)?;
    show(&CartView::from(&cart))
}

/// Remove a line
///
/// A line that is not there is fine.
#[utoipa::path(delete, path = "/v1/users/{user_id}/cart/lines/{product_id}", tag = "carts",
    operation_id = "remove_line", params(IfMatchVersion), responses((status = 200, body = CartView)))]
pub(crate) async fn remove_line(
    State(app): State<App>,
    Path((owner, product_id)): Path<(Owner, ProductId)>,
    IfMatch(expected_version): IfMatch,
) -> Answer {
    let command = RemoveLine {
        owner: owner.clone(),
        product_id,
        expected_version,
        lifetime: app.shop.settings.carts,
        now: app.shop.now(),
    };
    let cart = app.shop.store.remove_line(command).await.or_problem(&app)?;
    show(&CartView::of(cart.as_ref(), &owner))
}

/// Abandon the active cart
#[utoipa::path(post, path = "/v1/users/{user_id}/cart/abandon", tag = "carts", operation_id = "abandon_cart",
    params(IfMatchVersion, IdempotencyKey), responses((status = 200, body = CartView)),
    extensions(("x-problems" = json!(["cart_empty"]))))]
pub(crate) async fn abandon(
    State(app): State<App>,
    Path(owner): Path<Owner>,
    IfMatch(expected_version): IfMatch,
    KeyedOptional { once, body: NoFields {} }: KeyedOptional<NoFields>,
) -> Answer {
    let lifetime = app.shop.settings.carts;
    let command = Abandon { owner, expected_version, lifetime, now: app.shop.now(), once };
    let done = app.shop.store.abandon(command).await.or_problem(&app)?;
    let view = CartView::from(&done.value);
    answer::done(StatusCode::OK, done.replayed, view.size(), &view)
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
    Keyed { once, body }: Keyed<MergeBody>,
) -> Answer {
    let mode = body.mode.unwrap_or_default().into();
    let owner = Owner::User(user_id.clone());
    let done =
        app.shop.merge(user_id, body.session_id, mode, expected_version, once).await.or_problem(&app)?;
    let view = MergedView {
        cart: CartView::of(done.value.cart.as_ref(), &owner),
        changes: done.value.changes.iter().map(MergeChangeView::from).collect(),
    };
    answer::done(StatusCode::OK, done.replayed, view.cart.size() + view.changes.len() * 80, &view)
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
    RequiredKeyed { once, body }: RequiredKeyed<CheckoutBody>,
) -> Answer {
    let currency = app.shop.settings.currency;
    let terms = body.terms(user_id, currency)?;
    let done = app.shop.checkout(terms, expected_version, once).await.or_problem(&app)?;
    let view = OrderView::new(&done.value, &currency);
    answer::done(StatusCode::CREATED, done.replayed, view.size(), &view)
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
pub(crate) async fn list(State(app): State<App>, Path(owner): Path<Owner>, query: Query) -> Answer {
    let scope = scope("carts", &owner);
    let page = query.page(&scope)?;
    let page = app.shop.store.carts(&owner, app.shop.now(), page).await.or_problem(&app)?;
    answer::ok(64 + page.items.len() * 1_024, &ListView::new(&page, &scope, CartView::from))
}

/// The owner's line changes of 30 days
///
/// Newest first.
#[utoipa::path(get, path = "/v1/users/{user_id}/cart/history", tag = "carts", operation_id = "cart_history",
    params(PageParams), responses((status = 200, body = List<CartChangeView>)))]
pub(crate) async fn history(State(app): State<App>, Path(owner): Path<Owner>, query: Query) -> Answer {
    let scope = scope("cart changes", &owner);
    let page = query.page(&scope)?;
    let page = app.shop.store.cart_changes(&owner, app.shop.now(), page).await.or_problem(&app)?;
    answer::ok(64 + page.items.len() * 160, &ListView::new(&page, &scope, CartChangeView::from))
}
