//! Cases of products: putting, patching, deleting, importing.

use std::sync::Arc;

use mw_domain::limits::NAME_CHARS_MAX;
use mw_domain::products::ProductPatch;
use mw_domain::{Attributes, Money, Product};

use super::fixtures::{
    Fixture, at, bad_positions, category, eventually, priced_product, product_id, refusal, walk_every_way,
    zone,
};
use crate::products::{ImportProduct, Imported};
use crate::{Freshness, Refusal};

async fn read(fixture: &Fixture, name: &str) -> Option<Product> {
    let id = product_id(name);
    let full = fixture.store.product(&id, Freshness::Latest).await.unwrap();
    eventually(&full, async || fixture.store.product(&id, Freshness::StaleOk).await.unwrap()).await;
    full.map(Arc::unwrap_or_clone)
}

async fn categories(fixture: &Fixture) -> Vec<String> {
    let categories = walk_every_way(async |request| fixture.store.categories(request).await).await;
    categories.iter().map(ToString::to_string).collect()
}

fn in_category(name: &str, of: &str) -> Product {
    Product { category: category(of), ..priced_product(name, 100) }
}

fn import(fixture: &Fixture, product: Product, stock: &[(&str, u64)], seconds: i64) -> ImportProduct {
    ImportProduct {
        product,
        stock: stock.iter().map(|(name, on_hand)| (zone(name), *on_hand)).collect(),
        op: fixture.uuid(),
        now: at(seconds),
        identity: None,
    }
}

pub(super) async fn a_product_is_created_and_replaced_whole(fixture: Fixture) {
    assert_eq!(read(&fixture, "a").await, None);
    let first = priced_product("a", 100);
    let put = fixture.store.put_product(first.clone()).await.unwrap();
    assert_eq!((&put.product, put.created), (&first, true));
    assert_eq!(read(&fixture, "a").await, Some(first));

    let second = Product {
        name: "Другой".to_owned(),
        description: "long".repeat(100),
        attributes: Attributes::default(),
        created_at: at(50),
        updated_at: at(50),
        ..priced_product("a", 250)
    };
    let put = fixture.store.put_product(second.clone()).await.unwrap();
    let expected = Product { created_at: at(0), ..second };
    assert_eq!((&put.product, put.created), (&expected, false));
    assert_eq!(read(&fixture, "a").await, Some(expected));
}

pub(super) async fn a_patch_replaces_what_it_names(fixture: Fixture) {
    fixture.put(priced_product("a", 100)).await;
    let patch = ProductPatch {
        price: Some(Money::from_minor(175)),
        attributes: Some([("size".to_owned(), "xl".to_owned())].into()),
        ..ProductPatch::default()
    };
    let patched = fixture.store.patch_product(&product_id("a"), patch, at(7)).await.unwrap();
    let expected = Product {
        price: Money::from_minor(175),
        attributes: [("size".to_owned(), "xl".to_owned())].into(),
        updated_at: at(7),
        ..priced_product("a", 100)
    };
    assert_eq!(patched, expected);
    assert_eq!(read(&fixture, "a").await, Some(expected));
}

pub(super) async fn a_bad_patch_is_refused_whole(fixture: Fixture) {
    fixture.put(priced_product("a", 100)).await;
    let patch = ProductPatch {
        name: Some("x".repeat(NAME_CHARS_MAX + 1)),
        price: Some(Money::from_minor(1)),
        ..ProductPatch::default()
    };
    let refused = refusal(fixture.store.patch_product(&product_id("a"), patch.clone(), at(1)).await);
    assert!(matches!(&refused, Refusal::InvalidField { field, .. } if field == "name"), "{refused:?}");
    assert_eq!(read(&fixture, "a").await, Some(priced_product("a", 100)));
    let unknown = fixture.store.patch_product(&product_id("b"), patch, at(1)).await;
    assert_eq!(refusal(unknown), Refusal::ProductNotFound(product_id("b")));
}

pub(super) async fn a_deleted_product_leaves_its_stock(fixture: Fixture) {
    fixture.stocked("a", 5).await;
    fixture.store.delete_product(&product_id("a"), at(1)).await.unwrap();
    assert_eq!(read(&fixture, "a").await, None);
    assert_eq!(fixture.level("a", "north", at(1)).await, (5, 0));
    let again = fixture.store.delete_product(&product_id("a"), at(1)).await;
    assert_eq!(refusal(again), Refusal::ProductNotFound(product_id("a")));
    let put = fixture.store.put_product(priced_product("a", 300)).await.unwrap();
    assert!(put.created);
    assert_eq!(fixture.level("a", "north", at(2)).await, (5, 0));
    fixture.audit_closes().await;
}

pub(super) async fn categories_appear_and_disappear_with_their_products(fixture: Fixture) {
    assert_eq!(categories(&fixture).await, [""; 0]);
    for (name, of) in
        [("a", "Телефоны"), ("b", "phones"), ("c", "phones 2"), ("d", "cables"), ("e", "phones")]
    {
        fixture.put(in_category(name, of)).await;
    }
    assert_eq!(categories(&fixture).await, ["cables", "phones", "phones 2", "Телефоны"]);
    fixture.put(in_category("d", "phones")).await;
    fixture.store.delete_product(&product_id("c"), at(1)).await.unwrap();
    assert_eq!(categories(&fixture).await, ["phones", "Телефоны"]);
    let patch = ProductPatch { category: Some(category("cables")), ..ProductPatch::default() };
    fixture.store.patch_product(&product_id("a"), patch, at(1)).await.unwrap();
    assert_eq!(categories(&fixture).await, ["cables", "phones"]);
    for name in ["a", "b", "d"] {
        fixture.store.delete_product(&product_id(name), at(1)).await.unwrap();
    }
    assert_eq!(categories(&fixture).await, ["phones"], "one of them is left");
}

pub(super) async fn an_import_brings_a_product_with_its_stock(fixture: Fixture) {
    let done = fixture
        .store
        .import_product(import(&fixture, priced_product("a", 100), &[("north", 7), ("south", 0)], 1))
        .await
        .unwrap();
    assert_eq!((done.value, done.replayed), (Imported { product_id: product_id("a"), created: true }, false));
    assert_eq!(read(&fixture, "a").await, Some(priced_product("a", 100)));
    assert_eq!(fixture.level("a", "north", at(2)).await, (7, 0));
    assert_eq!(fixture.level("a", "south", at(2)).await, (0, 0));

    fixture.order("u", &[("a", 3)], at(3)).await.unwrap();
    let later = Product { created_at: at(9), updated_at: at(9), ..priced_product("a", 200) };
    let done =
        fixture.store.import_product(import(&fixture, later.clone(), &[("north", 4)], 9)).await.unwrap();
    assert!(!done.value.created);
    let expected = Product { created_at: at(0), ..later };
    assert_eq!(read(&fixture, "a").await, Some(expected));
    assert_eq!(fixture.level("a", "north", at(10)).await, (4, 3));
    assert_eq!(fixture.level("a", "south", at(10)).await, (0, 0), "not named: it stays");
    fixture.audit_closes().await;
}

pub(super) async fn imports_of_one_instant_are_each_in_the_ledger(fixture: Fixture) {
    for on_hand in [7, 7, 2, 9] {
        let command = import(&fixture, priced_product("a", 100), &[("north", on_hand)], 1);
        fixture.store.import_product(command).await.unwrap();
        assert_eq!(fixture.level("a", "north", at(1)).await, (on_hand, 0));
        fixture.audit_closes().await;
    }
}

pub(super) async fn an_import_below_what_is_reserved_is_refused_whole(fixture: Fixture) {
    fixture
        .store
        .import_product(import(&fixture, priced_product("a", 100), &[("north", 7), ("south", 1)], 0))
        .await
        .unwrap();
    fixture.order("u", &[("a", 5)], at(1)).await.unwrap();
    let command = import(&fixture, priced_product("a", 999), &[("south", 50), ("north", 4)], 2);
    let refused = refusal(fixture.store.import_product(command).await);
    let Refusal::StockBelowReserved { current } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((current.geo_zone, current.level.on_hand, current.level.reserved), (zone("north"), 7, 5));
    assert_eq!(read(&fixture, "a").await, Some(priced_product("a", 100)));
    assert_eq!(fixture.level("a", "north", at(3)).await, (7, 5));
    assert_eq!(fixture.level("a", "south", at(3)).await, (1, 0));
    let unknown = import(&fixture, priced_product("b", 1), &[("north", 1)], 2);
    fixture.store.import_product(unknown).await.unwrap();
    fixture.audit_closes().await;
}

pub(super) async fn bad_positions_in_categories_are_refused(fixture: Fixture) {
    fixture.put(priced_product("a", 100)).await;
    for page in bad_positions() {
        assert_eq!(refusal(fixture.store.categories(page).await), Refusal::InvalidCursor);
    }
}
