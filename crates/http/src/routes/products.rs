//! The catalogue: cards, categories by price.

use axum::extract::State;
use bytes::Bytes;
use http::StatusCode;
use mw_domain::{Category, GeoZone, Money, ProductId};
use mw_store::Freshness;
use mw_store::products::{CategoryQuery, Listed};

use crate::answer::{self, Answer};
use crate::app::App;
use crate::cursor::Scope;
use crate::docs::{CategoryParams, FreshParam, PageParams};
use crate::error::{Code, Problem};
use crate::extract::{Json, Path, Query};
use crate::refusal::OrProblem;
use crate::wire::list::{self, List, ListView};
use crate::wire::products::{self, CategoryView, PatchBody, ProductBody, ProductView};

/// A product's card
#[utoipa::path(get, path = "/v1/products/{product_id}", tag = "products", operation_id = "read_product",
    params(FreshParam), responses((status = 200, body = ProductView)),
    extensions(("x-problems" = json!(["product_not_found"]))))]
pub(crate) async fn read(
    State(app): State<App>,
    Path(product_id): Path<ProductId>,
    mut query: Query,
) -> Answer {
    let freshness = freshness(&mut query)?;
    query.finish()?;
    let product = app.shop.store.product(&product_id, freshness).await.or_problem(&app)?;
    let product =
        product.ok_or_else(|| Problem::new(Code::ProductNotFound, format!("no product {product_id}")))?;
    Ok(answer::ready(Bytes::copy_from_slice(products::shown(&product, app.shop.settings.currency))))
}

fn freshness(query: &mut Query) -> Result<Freshness, Problem> {
    Ok(if query.flag("fresh")? { Freshness::Full } else { Freshness::Showcase })
}

/// Write a product's card
///
/// As a whole: what is absent is empty.
#[utoipa::path(put, path = "/v1/products/{product_id}", tag = "products", operation_id = "put_product",
    request_body = ProductBody,
    responses((status = 200, description = "Replaced", body = ProductView),
        (status = 201, description = "Created", body = ProductView)),
    extensions(("x-problems" = json!(["currency_mismatch"]))))]
pub(crate) async fn put(
    State(app): State<App>,
    Path(product_id): Path<ProductId>,
    Json(body): Json<ProductBody>,
) -> Answer {
    let currency = app.shop.settings.currency;
    let product = body.product(product_id, currency, app.shop.now())?;
    let put = app.shop.store.put_product(product).await.or_problem(&app)?;
    let view = ProductView::new(&put.product, &currency);
    let status = if put.created { StatusCode::CREATED } else { StatusCode::OK };
    answer::json(status, view.size(), &view)
}

/// Change some of a product's card
///
/// What is absent stays; `attributes` are replaced as a whole.
#[utoipa::path(patch, path = "/v1/products/{product_id}", tag = "products", operation_id = "patch_product",
    request_body = PatchBody, responses((status = 200, body = ProductView)),
    extensions(("x-problems" = json!(["product_not_found", "currency_mismatch"]))))]
pub(crate) async fn patch(
    State(app): State<App>,
    Path(product_id): Path<ProductId>,
    Json(body): Json<PatchBody>,
) -> Answer {
    let currency = app.shop.settings.currency;
    let patch = body.patch(currency)?;
    let product = app.shop.store.patch_product(&product_id, patch, app.shop.now()).await.or_problem(&app)?;
    let view = ProductView::new(&product, &currency);
    answer::ok(view.size(), &view)
}

/// Take a product out of the catalogue
///
/// Its stock figures stay.
#[utoipa::path(delete, path = "/v1/products/{product_id}", tag = "products", operation_id = "delete_product",
    responses((status = 204)), extensions(("x-problems" = json!(["product_not_found"]))))]
pub(crate) async fn delete(State(app): State<App>, Path(product_id): Path<ProductId>) -> Answer {
    app.shop.store.delete_product(&product_id).await.or_problem(&app)?;
    Ok(answer::no_content())
}

/// A category by price
///
/// By price, then id; `desc` is the exact reverse. With `geo_zone` each item carries `available` there.
#[utoipa::path(get, path = "/v1/products", tag = "products", operation_id = "list_products",
    params(CategoryParams, FreshParam, PageParams), responses((status = 200, body = List<ProductView>)))]
pub(crate) async fn list(State(app): State<App>, mut query: Query) -> Answer {
    let freshness = freshness(&mut query)?;
    let (asked, scope) = category_query(&mut query)?;
    let page = query.page(&scope)?;
    let page = app.shop.store.category(&asked, freshness, app.shop.now(), page).await.or_problem(&app)?;
    let currency = app.shop.settings.currency;
    let size: usize = page.items.iter().map(|it| products::shown(&it.product, currency).len() + 32).sum();
    let write = |out: &mut Vec<u8>, listed: &Listed| products::write_listed(out, listed, currency);
    Ok(answer::ready(list::write(size, &page, &scope, write)))
}

fn category_query(query: &mut Query) -> Result<(CategoryQuery, Scope), Problem> {
    let asked = CategoryQuery {
        category: query.required("category", Category::parse)?,
        min_price: query.optional("min_price", Money::parse)?,
        max_price: query.optional("max_price", Money::parse)?,
        descending: query.optional("order", order)?.unwrap_or(false),
        geo_zone: query.optional("geo_zone", GeoZone::parse)?,
        in_stock: query.flag("in_stock")?,
    };
    if asked.in_stock && asked.geo_zone.is_none() {
        return Err(Problem::parameter("geo_zone", "is required with in_stock"));
    }
    if let (Some(min), Some(max)) = (asked.min_price, asked.max_price)
        && min > max
    {
        return Err(Problem::parameter("max_price", "is below min_price"));
    }
    let bound = |price: Option<Money>| price.map_or(-1, Money::as_minor).to_be_bytes();
    let scope = Scope::of("category")
        .with(asked.category.as_str())
        .with(bound(asked.min_price))
        .with(bound(asked.max_price))
        .with([u8::from(asked.descending), u8::from(asked.in_stock)])
        .with(asked.geo_zone.as_ref().map_or("", GeoZone::as_str));
    Ok((asked, scope))
}

/// Whether the order is the reverse one.
fn order(text: &str) -> Result<bool, &'static str> {
    match text {
        "asc" => Ok(false),
        "desc" => Ok(true),
        _ => Err("is asc or desc"),
    }
}

/// The categories that have products
///
/// By name.
#[utoipa::path(get, path = "/v1/categories", tag = "products", operation_id = "list_categories",
    params(FreshParam, PageParams), responses((status = 200, body = List<CategoryView>)))]
pub(crate) async fn categories(State(app): State<App>, mut query: Query) -> Answer {
    // Categories are always read at full consistency; the flag is taken because every listing of the showcase has it.
    freshness(&mut query)?;
    let scope = Scope::of("categories");
    let page = query.page(&scope)?;
    let page = app.shop.store.categories(page).await.or_problem(&app)?;
    answer::ok(64 + page.items.len() * 64, &ListView::new(&page, &scope, CategoryView::from))
}
