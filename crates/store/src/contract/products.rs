//! Cases of cards: putting, patching, deleting, importing.

use mw_domain::limits::NAME_CHARS_MAX;
use mw_domain::product::ProductPatch;
use mw_domain::{Attributes, Money, Product};

use super::given::{
    Desk, at, bad_positions, card, category, product_id, refusal, shown, walk_every_way, zone,
};
use crate::products::{Card, ImportProduct, Imported};
use crate::{Freshness, Refusal};

async fn read(desk: &Desk, name: &str) -> Option<Product> {
    let id = product_id(name);
    let full = desk.store.product(&id, Freshness::Full).await.unwrap();
    shown(&full, async || desk.store.product(&id, Freshness::Showcase).await.unwrap()).await;
    full.map(Card::into_product)
}

async fn categories(desk: &Desk) -> Vec<String> {
    let categories = walk_every_way(async |request| desk.store.categories(request).await).await;
    categories.iter().map(ToString::to_string).collect()
}

fn in_category(name: &str, of: &str) -> Product {
    Product { category: category(of), ..card(name, 100) }
}

fn import(desk: &Desk, product: Product, stock: &[(&str, u64)], seconds: i64) -> ImportProduct {
    ImportProduct {
        product,
        stock: stock.iter().map(|(name, on_hand)| (zone(name), *on_hand)).collect(),
        op: desk.uuid(),
        now: at(seconds),
        once: None,
    }
}

pub(super) async fn a_card_is_created_and_replaced_whole(desk: Desk) {
    assert_eq!(read(&desk, "a").await, None);
    let first = card("a", 100);
    let put = desk.store.put_product(first.clone()).await.unwrap();
    assert_eq!((&put.product, put.created), (&first, true));
    assert_eq!(read(&desk, "a").await, Some(first));

    let second = Product {
        name: "Другой".to_owned(),
        description: "long".repeat(100),
        attributes: Attributes::default(),
        created_at: at(50),
        updated_at: at(50),
        ..card("a", 250)
    };
    let put = desk.store.put_product(second.clone()).await.unwrap();
    let expected = Product { created_at: at(0), ..second };
    assert_eq!((&put.product, put.created), (&expected, false));
    assert_eq!(read(&desk, "a").await, Some(expected));
}

pub(super) async fn a_patch_replaces_what_it_names(desk: Desk) {
    desk.put(card("a", 100)).await;
    let patch = ProductPatch {
        price: Some(Money::from_minor(175)),
        attributes: Some([("size".to_owned(), "xl".to_owned())].into()),
        ..ProductPatch::default()
    };
    let patched = desk.store.patch_product(&product_id("a"), patch, at(7)).await.unwrap();
    let expected = Product {
        price: Money::from_minor(175),
        attributes: [("size".to_owned(), "xl".to_owned())].into(),
        updated_at: at(7),
        ..card("a", 100)
    };
    assert_eq!(patched, expected);
    assert_eq!(read(&desk, "a").await, Some(expected));
}

pub(super) async fn a_bad_patch_is_refused_whole(desk: Desk) {
    desk.put(card("a", 100)).await;
    let patch = ProductPatch {
        name: Some("x".repeat(NAME_CHARS_MAX + 1)),
        price: Some(Money::from_minor(1)),
        ..ProductPatch::default()
    };
    let refused = refusal(desk.store.patch_product(&product_id("a"), patch.clone(), at(1)).await);
    assert!(matches!(&refused, Refusal::InvalidField { field, .. } if field == "name"), "{refused:?}");
    assert_eq!(read(&desk, "a").await, Some(card("a", 100)));
    let unknown = desk.store.patch_product(&product_id("b"), patch, at(1)).await;
    assert_eq!(refusal(unknown), Refusal::ProductNotFound(product_id("b")));
}

pub(super) async fn a_deleted_card_leaves_its_stock(desk: Desk) {
    desk.stocked("a", 5).await;
    desk.store.delete_product(&product_id("a")).await.unwrap();
    assert_eq!(read(&desk, "a").await, None);
    assert_eq!(desk.level("a", "north", at(1)).await, (5, 0));
    let again = desk.store.delete_product(&product_id("a")).await;
    assert_eq!(refusal(again), Refusal::ProductNotFound(product_id("a")));
    let put = desk.store.put_product(card("a", 300)).await.unwrap();
    assert!(put.created);
    assert_eq!(desk.level("a", "north", at(2)).await, (5, 0));
    desk.audit_closes().await;
}

pub(super) async fn categories_appear_and_disappear_with_their_products(desk: Desk) {
    assert_eq!(categories(&desk).await, [""; 0]);
    for (name, of) in
        [("a", "Телефоны"), ("b", "phones"), ("c", "phones 2"), ("d", "cables"), ("e", "phones")]
    {
        desk.put(in_category(name, of)).await;
    }
    assert_eq!(categories(&desk).await, ["cables", "phones", "phones 2", "Телефоны"]);
    desk.put(in_category("d", "phones")).await;
    desk.store.delete_product(&product_id("c")).await.unwrap();
    assert_eq!(categories(&desk).await, ["phones", "Телефоны"]);
    let patch = ProductPatch { category: Some(category("cables")), ..ProductPatch::default() };
    desk.store.patch_product(&product_id("a"), patch, at(1)).await.unwrap();
    assert_eq!(categories(&desk).await, ["cables", "phones"]);
    for name in ["a", "b", "d"] {
        desk.store.delete_product(&product_id(name)).await.unwrap();
    }
    assert_eq!(categories(&desk).await, ["phones"], "one of them is left");
}

pub(super) async fn an_import_brings_a_card_with_its_stock(desk: Desk) {
    let done = desk
        .store
        .import_product(import(&desk, card("a", 100), &[("north", 7), ("south", 0)], 1))
        .await
        .unwrap();
    assert_eq!((done.value, done.replayed), (Imported { product_id: product_id("a"), created: true }, false));
    assert_eq!(read(&desk, "a").await, Some(card("a", 100)));
    assert_eq!(desk.level("a", "north", at(2)).await, (7, 0));
    assert_eq!(desk.level("a", "south", at(2)).await, (0, 0));

    desk.order("u", &[("a", 3)], at(3)).await.unwrap();
    let later = Product { created_at: at(9), updated_at: at(9), ..card("a", 200) };
    let done = desk.store.import_product(import(&desk, later.clone(), &[("north", 4)], 9)).await.unwrap();
    assert!(!done.value.created);
    let expected = Product { created_at: at(0), ..later };
    assert_eq!(read(&desk, "a").await, Some(expected));
    assert_eq!(desk.level("a", "north", at(10)).await, (4, 3));
    assert_eq!(desk.level("a", "south", at(10)).await, (0, 0), "not named: it stays");
    desk.audit_closes().await;
}

pub(super) async fn imports_of_one_instant_are_each_in_the_ledger(desk: Desk) {
    for on_hand in [7, 7, 2, 9] {
        let command = import(&desk, card("a", 100), &[("north", on_hand)], 1);
        desk.store.import_product(command).await.unwrap();
        assert_eq!(desk.level("a", "north", at(1)).await, (on_hand, 0));
        desk.audit_closes().await;
    }
}

pub(super) async fn an_import_below_what_is_reserved_is_refused_whole(desk: Desk) {
    desk.store.import_product(import(&desk, card("a", 100), &[("north", 7), ("south", 1)], 0)).await.unwrap();
    desk.order("u", &[("a", 5)], at(1)).await.unwrap();
    let command = import(&desk, card("a", 999), &[("south", 50), ("north", 4)], 2);
    let refused = refusal(desk.store.import_product(command).await);
    let Refusal::StockBelowReserved { current } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((current.geo_zone, current.level.on_hand, current.level.reserved), (zone("north"), 7, 5));
    assert_eq!(read(&desk, "a").await, Some(card("a", 100)));
    assert_eq!(desk.level("a", "north", at(3)).await, (7, 5));
    assert_eq!(desk.level("a", "south", at(3)).await, (1, 0));
    let unknown = import(&desk, card("b", 1), &[("north", 1)], 2);
    desk.store.import_product(unknown).await.unwrap();
    desk.audit_closes().await;
}

pub(super) async fn bad_positions_in_categories_are_refused(desk: Desk) {
    desk.put(card("a", 100)).await;
    for page in bad_positions() {
        assert_eq!(refusal(desk.store.categories(page).await), Refusal::InvalidCursor);
    }
}
