//! The catalogue: products, and categories by price.

use std::cell::Cell;

use axum::extract::State;
use http::StatusCode;
use mw_domain::{Category, GeoZone, Money, ProductId};
use mw_store::Freshness;
use mw_store::products::{CategoryQuery, Listed};

use crate::app::App;
use crate::conditional::{IfNoneMatch, Tag};
use crate::cursor::Scope;
use crate::docs::{CategoryParams, FreshParam, PageParams};
use crate::error::{Code, Problem};
use crate::extract::{Json, Path, Query};
use crate::response::{self, ApiResult};
use crate::store_error::OrProblem;
use crate::wire::list::{self, List, ListView};
use crate::wire::products::{self, CategoryView, PatchBody, ProductBody, ProductView};

/// Room for `available` and a comma after each product of a listing.
const AVAILABLE_BYTES: usize = 32;

/// A product
#[utoipa::path(get, path = "/v1/products/{product_id}", tag = "products", operation_id = "read_product",
    params(FreshParam), responses((status = 200, body = ProductView), (status = 304, description = "Not modified")),
    extensions(("x-problems" = json!(["product_not_found"]))))]
pub(crate) async fn read(
    State(app): State<App>,
    Path(product_id): Path<ProductId>,
    if_none_match: IfNoneMatch,
    mut query: Query,
) -> ApiResult {
    let freshness = freshness(&mut query)?;
    query.finish()?;
    let product = app.shop.product(&product_id, freshness).await.or_problem(&app)?;
    let product =
        product.ok_or_else(|| Problem::new(Code::ProductNotFound, format!("no product {product_id}")))?;
    let (json, tag) = app.encoded_products.with_json(&product, |json, tag| (json.clone(), tag));
    Ok(if_none_match.respond(tag, json))
}

fn freshness(query: &mut Query) -> Result<Freshness, Problem> {
    Ok(if query.flag("fresh")? { Freshness::Latest } else { Freshness::StaleOk })
}

/// Create or replace a product
///
/// As a whole: an absent field is empty.
#[utoipa::path(put, path = "/v1/products/{product_id}", tag = "products", operation_id = "put_product",
    request_body = ProductBody,
    responses((status = 200, description = "Replaced", body = ProductView),
        (status = 201, description = "Created", body = ProductView)),
    extensions(("x-problems" = json!(["currency_mismatch"]))))]
pub(crate) async fn put(
    State(app): State<App>,
    Path(product_id): Path<ProductId>,
    Json(body): Json<ProductBody>,
) -> ApiResult {
    let currency = app.shop.currency();
    let draft = body.draft(product_id, currency)?;
    let put = app.shop.put_product(draft).await.or_problem(&app)?;
    let view = ProductView::new(&put.product, &currency);
    let status = if put.created { StatusCode::CREATED } else { StatusCode::OK };
    response::json(status, view.size(), &view)
}

/// Change some fields of a product
///
/// An absent field stays; `attributes` are replaced as a whole.
#[utoipa::path(patch, path = "/v1/products/{product_id}", tag = "products", operation_id = "patch_product",
    request_body = PatchBody, responses((status = 200, body = ProductView)),
    extensions(("x-problems" = json!(["product_not_found", "currency_mismatch"]))))]
pub(crate) async fn patch(
    State(app): State<App>,
    Path(product_id): Path<ProductId>,
    Json(body): Json<PatchBody>,
) -> ApiResult {
    let currency = app.shop.currency();
    let patch = body.patch(currency)?;
    let product = app.shop.patch_product(&product_id, patch).await.or_problem(&app)?;
    let view = ProductView::new(&product, &currency);
    response::ok(view.size(), &view)
}

/// Remove a product from the catalogue
///
/// Its stock levels stay.
#[utoipa::path(delete, path = "/v1/products/{product_id}", tag = "products", operation_id = "delete_product",
    responses((status = 204)), extensions(("x-problems" = json!(["product_not_found"]))))]
pub(crate) async fn delete(State(app): State<App>, Path(product_id): Path<ProductId>) -> ApiResult {
    app.shop.delete_product(&product_id).await.or_problem(&app)?;
    Ok(response::no_content())
}

/// A category by price
///
/// By price, then id; `desc` is the exact reverse. With `geo_zone` each item carries `available` there.
#[utoipa::path(get, path = "/v1/products", tag = "products", operation_id = "list_products",
    params(CategoryParams, FreshParam, PageParams),
    responses((status = 200, body = List<ProductView>), (status = 304, description = "Not modified")))]
pub(crate) async fn list(State(app): State<App>, if_none_match: IfNoneMatch, mut query: Query) -> ApiResult {
    let freshness = freshness(&mut query)?;
    let (category, scope) = category_query(&mut query)?;
    let page = query.page(&scope)?;
    let page = app.shop.category(&category, freshness, page).await.or_problem(&app)?;
    // A cell, because the tag is made while the page is written.
    let tag = Cell::new(Tag::new().and(u64::from(page.next.is_some())));
    // Products of a category are alike: the first one tells how much room the page takes.
    let json_bytes = |listed: &Listed| app.encoded_products.with_json(&listed.product, |json, _| json.len());
    let size = page.items.len() * (page.items.first().map_or(0, json_bytes) + AVAILABLE_BYTES);
    let body = list::write(size, &page, &scope, |out, listed| {
        app.encoded_products.with_json(&listed.product, |json, product| {
            tag.set(tag.get().and_tag(product).and(listed.available.unwrap_or(u64::MAX)));
            products::write_listed(out, json, listed.available);
        });
    });
    Ok(if_none_match.respond(tag.get(), body))
}

fn category_query(query: &mut Query) -> Result<(CategoryQuery, Scope), Problem> {
    let category = CategoryQuery {
        category: query.required("category", Category::parse)?,
        min_price: query.optional("min_price", Money::parse)?,
        max_price: query.optional("max_price", Money::parse)?,
        descending: query.optional("order", order)?.unwrap_or(false),
        geo_zone: query.optional("geo_zone", GeoZone::parse)?,
        in_stock: query.flag("in_stock")?,
    };
    if category.in_stock && category.geo_zone.is_none() {
        return Err(Problem::parameter("geo_zone", "is required with in_stock"));
    }
    if let (Some(min), Some(max)) = (category.min_price, category.max_price)
        && min > max
    {
        return Err(Problem::parameter("max_price", "must not be below min_price"));
    }
    let bound = |price: Option<Money>| price.map_or(-1, Money::as_minor).to_be_bytes();
    let scope = Scope::of("category")
        .with(category.category.as_str())
        .with(bound(category.min_price))
        .with(bound(category.max_price))
        .with([u8::from(category.descending), u8::from(category.in_stock)])
        .with(category.geo_zone.as_ref().map_or("", GeoZone::as_str));
    Ok((category, scope))
}

/// Whether the order is descending.
fn order(text: &str) -> Result<bool, &'static str> {
    match text {
        "asc" => Ok(false),
        "desc" => Ok(true),
        _ => Err("must be asc or desc"),
    }
}

/// The categories that have products
///
/// By name.
#[utoipa::path(get, path = "/v1/categories", tag = "products", operation_id = "list_categories",
    params(FreshParam, PageParams), responses((status = 200, body = List<CategoryView>)))]
pub(crate) async fn categories(State(app): State<App>, mut query: Query) -> ApiResult {
    // Categories are always read at full consistency; the parameter is accepted because every other listing has it.
    freshness(&mut query)?;
    let scope = Scope::of("categories");
    let page = query.page(&scope)?;
    let page = app.shop.categories(page).await.or_problem(&app)?;
    response::ok(64 + page.items.len() * 64, &ListView::new(&page, &scope, CategoryView::from))
}
