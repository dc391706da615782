//! Cases of a category by price.

use mw_domain::products::ProductPatch;
use mw_domain::{Money, Product, Timestamp};

use super::fixtures::{
    Fixture, HOLD, at, bad_positions, category, just_before, priced_product, product_id, refusal,
    walk_every_way, zone,
};
use crate::products::{CategoryQuery, Listed};
use crate::{Freshness, Refusal};

fn phones() -> CategoryQuery {
    CategoryQuery {
        category: category("phones"),
        min_price: None,
        max_price: None,
        descending: false,
        geo_zone: None,
        in_stock: false,
    }
}

async fn list(fixture: &Fixture, query: &CategoryQuery, now: Timestamp) -> Vec<Listed> {
    walk_every_way(async |request| fixture.store.category(query, Freshness::Latest, now, request).await).await
}

async fn names(fixture: &Fixture, query: &CategoryQuery) -> Vec<String> {
    let listed = list(fixture, query, at(1)).await;
    listed.into_iter().map(|item| item.product.product_id.to_string()).collect()
}

/// Several products at one price, one at 0, one at the largest price.
async fn fill_category(fixture: &Fixture) {
    let prices = [
        ("d", 500),
        ("b", 500),
        ("b1", 500),
        ("c", 0),
        ("a", 20_000),
        ("e", Money::MAX.as_minor()),
        ("f", 499),
        ("g", 501),
    ];
    for (name, minor) in prices {
        fixture.put(priced_product(name, minor)).await;
    }
    let other = Product { category: category("phones and more"), ..priced_product("x", 500) };
    fixture.put(other).await;
}

pub(super) async fn a_category_is_listed_by_price_then_id(fixture: Fixture) {
    assert_eq!(names(&fixture, &phones()).await, [""; 0]);
    fill_category(&fixture).await;
    assert_eq!(names(&fixture, &phones()).await, ["c", "f", "b", "b1", "d", "g", "a", "e"]);
    let listed = list(&fixture, &phones(), at(1)).await;
    assert_eq!(
        listed[0],
        Listed { product: priced_product("c", 0).into(), available: None },
        "whole products"
    );
}

pub(super) async fn descending_is_the_exact_reverse(fixture: Fixture) {
    fill_category(&fixture).await;
    for (min_price, max_price) in [(None, None), (Some(499), Some(500)), (Some(500), None)] {
        let rising = CategoryQuery {
            min_price: min_price.map(Money::from_minor),
            max_price: max_price.map(Money::from_minor),
            ..phones()
        };
        let falling = CategoryQuery { descending: true, ..rising.clone() };
        let mut expected = names(&fixture, &rising).await;
        expected.reverse();
        assert_eq!(names(&fixture, &falling).await, expected);
    }
}

pub(super) async fn price_bounds_are_inclusive(fixture: Fixture) {
    fill_category(&fixture).await;
    let between = |min: i64, max: i64| CategoryQuery {
        min_price: Some(Money::from_minor(min)),
        max_price: Some(Money::from_minor(max)),
        ..phones()
    };
    assert_eq!(names(&fixture, &between(500, 500)).await, ["b", "b1", "d"]);
    assert_eq!(names(&fixture, &between(0, 0)).await, ["c"]);
    assert_eq!(names(&fixture, &between(499, 501)).await, ["f", "b", "b1", "d", "g"]);
    assert_eq!(names(&fixture, &between(502, 19_999)).await, [""; 0]);
    assert_eq!(names(&fixture, &between(600, 500)).await, [""; 0]);
    assert_eq!(names(&fixture, &between(20_000, Money::MAX.as_minor())).await, ["a", "e"]);
}

pub(super) async fn a_changed_product_moves_in_the_listing(fixture: Fixture) {
    for (name, minor) in [("a", 100), ("b", 200), ("c", 300)] {
        fixture.put(priced_product(name, minor)).await;
    }
    let patch = ProductPatch { price: Some(Money::from_minor(250)), ..ProductPatch::default() };
    fixture.store.patch_product(&product_id("a"), patch, at(1)).await.unwrap();
    assert_eq!(names(&fixture, &phones()).await, ["b", "a", "c"]);
    fixture.put(priced_product("c", 50)).await;
    assert_eq!(names(&fixture, &phones()).await, ["c", "b", "a"]);

    let moved = Product { category: category("cables"), ..priced_product("b", 200) };
    fixture.put(moved).await;
    fixture.store.delete_product(&product_id("c"), at(1)).await.unwrap();
    assert_eq!(names(&fixture, &phones()).await, ["a"]);
    let cables = CategoryQuery { category: category("cables"), ..phones() };
    assert_eq!(names(&fixture, &cables).await, ["b"]);
}

pub(super) async fn with_a_zone_each_item_says_what_is_available(fixture: Fixture) {
    for (name, minor) in [("a", 100), ("b", 200), ("c", 300), ("d", 400)] {
        fixture.put(priced_product(name, minor)).await;
    }
    fixture.on_hand("a", "north", 5, at(0)).await.unwrap();
    fixture.on_hand("b", "south", 7, at(0)).await.unwrap();
    fixture.on_hand("c", "north", 2, at(0)).await.unwrap();
    fixture.order("u", &[("a", 1), ("c", 2)], at(1)).await.unwrap();
    let north = CategoryQuery { geo_zone: Some(zone("north")), ..phones() };
    let available: Vec<Option<u64>> =
        list(&fixture, &north, at(2)).await.iter().map(|item| item.available).collect();
    assert_eq!(available, [Some(4), Some(0), Some(0), Some(0)]);

    let in_stock = CategoryQuery { in_stock: true, ..north };
    assert_eq!(names(&fixture, &in_stock).await, ["a"]);
    let backwards = CategoryQuery { descending: true, ..in_stock.clone() };
    assert_eq!(names(&fixture, &backwards).await, ["a"]);
    let nowhere = CategoryQuery { geo_zone: None, ..in_stock };
    assert_eq!(names(&fixture, &nowhere).await.len(), 4, "no zone: no effect");
}

pub(super) async fn an_expired_hold_is_available_in_a_listing(fixture: Fixture) {
    fixture.stocked("a", 5).await;
    fixture.reserve(&[("a", 5)], at(0)).await.unwrap();
    let in_stock = CategoryQuery { geo_zone: Some(zone("north")), in_stock: true, ..phones() };
    assert_eq!(list(&fixture, &in_stock, just_before(at(HOLD))).await, []);
    let listed = list(&fixture, &in_stock, at(HOLD)).await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].available, Some(5));
}

pub(super) async fn a_long_category_with_little_in_stock_is_read_to_its_end(fixture: Fixture) {
    for number in 0..40 {
        let name = format!("p{number:02}");
        fixture.put(priced_product(&name, 100 + number % 7)).await;
        if number % 13 == 0 {
            fixture.on_hand(&name, "north", 1, at(0)).await.unwrap();
        }
    }
    let in_stock = CategoryQuery { geo_zone: Some(zone("north")), in_stock: true, ..phones() };
    assert_eq!(names(&fixture, &in_stock).await, ["p00", "p39", "p26", "p13"]);
    let listed = names(&fixture, &phones()).await;
    assert_eq!(listed.len(), 40);
}

pub(super) async fn bad_positions_in_a_category_are_refused(fixture: Fixture) {
    fixture.put(priced_product("a", 100)).await;
    for page in bad_positions() {
        let listed = fixture.store.category(&phones(), Freshness::Latest, at(1), page).await;
        assert_eq!(refusal(listed), Refusal::InvalidCursor);
    }
}
