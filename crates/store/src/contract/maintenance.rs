//! Cases of readiness and of purging expired rows.

use mw_domain::MergeMode;

use super::fixtures::{DAY, Fixture, KEY_LIFE, abandoning, at, demands, guest, identity, user};
use crate::PageRequest;
use crate::orders::{Basket, PlaceOrder};

pub(super) async fn a_fresh_store_is_ready(fixture: Fixture) {
    assert_eq!(fixture.store.ready().await, Ok(crate::Readiness::default()));
    assert_eq!(fixture.store.is_empty().await, Ok(true));
    assert_eq!(fixture.store.purge_expired(at(0), 100).await, Ok(0));
}

/// Purges a few rows at a time until none is expired.
async fn clean_all(fixture: &Fixture, seconds: i64) -> usize {
    let mut removed = 0;
    for _ in 0..1_000 {
        let count = fixture.store.purge_expired(at(seconds), 3).await.unwrap();
        assert!(count <= 3, "{count} at once");
        removed += count;
        if count == 0 {
            return removed;
        }
    }
    panic!("cleaning finds no end");
}

pub(super) async fn purging_changes_nothing_a_reader_sees(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    for number in 0..5 {
        fixture.set(&guest(&format!("s{number}")), "a", 1, at(number)).await;
    }
    let own = fixture.set(&user("u"), "a", 1, at(0)).await;
    fixture.merge("u", "s1", MergeMode::Sum, at(10)).await;
    let keyed = |seconds| PlaceOrder {
        identity: Some(identity("k", 1, at(seconds))),
        ..fixture.ordering("u", Basket::Lines(demands(&[("a", 2)])), at(seconds))
    };
    let order = fixture.store.place_order(keyed(20)).await.unwrap().value;
    clean_all(&fixture, 30).await;
    assert!(fixture.active(&guest("s0"), at(30)).await.is_some());
    assert!(fixture.store.place_order(keyed(30)).await.unwrap().replayed);

    let later = DAY + 100;
    clean_all(&fixture, later).await;
    let cart = fixture.active(&user("u"), at(later)).await.unwrap();
    assert_eq!((cart.cart_id, cart.lines[0].quantity), (own.cart_id, 2));
    let page = PageRequest::first(10);
    let history = fixture.store.cart_changes(&user("u"), at(later), page.clone()).await;
    assert_eq!(history.unwrap().items.len(), 2, "history outlives carts");
    let history = fixture.store.cart_changes(&guest("s0"), at(later), page.clone()).await;
    assert_eq!(history.unwrap().items.len(), 1);

    let last = KEY_LIFE + 40 * DAY;
    clean_all(&fixture, last).await;
    let kept = fixture.store.order(order.order_id).await;
    assert_eq!(kept, Ok(Some(order)), "orders never expire");
    assert_eq!(fixture.level("a", "north", at(last)).await, (10, 2));
    let idle = fixture.store.idle_carts(at(last), at(last), page).await;
    assert_eq!(idle.unwrap().items, []);
    fixture.audit_closes().await;
}

pub(super) async fn purging_never_loses_the_units_of_a_hold(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    fixture.reserve(&[("a", 4)], at(0)).await.unwrap();
    // The hold expired long ago, but `expire_reservations` has not run.
    let late = 90 * DAY;
    clean_all(&fixture, late).await;
    assert_eq!(fixture.level("a", "north", at(late)).await, (10, 0));
    fixture.audit_closes().await;
    fixture.reserve(&[("a", 10)], at(late)).await.unwrap();
    fixture.store.expire_reservations(at(late), 10).await.unwrap();
    clean_all(&fixture, late).await;
    assert_eq!(fixture.level("a", "north", at(late)).await, (10, 10));
    fixture.audit_closes().await;
}

pub(super) async fn carts_of_one_owner_are_purged_a_page_at_a_time(fixture: Fixture) {
    for number in 0..30 {
        fixture.set(&user("u"), "a", 1, at(number)).await;
        fixture.store.abandon(abandoning(&user("u"), at(number))).await.unwrap();
    }
    let idle = async |seconds| {
        let page = PageRequest::first(7);
        fixture.store.idle_carts(at(seconds), at(seconds), page).await.unwrap().items.len()
    };
    assert_eq!(idle(100).await, 7, "a page however many carts the owner has");
    let late = 400 * DAY;
    clean_all(&fixture, late).await;
    assert_eq!(idle(late).await, 0);
    let page = PageRequest::first(50);
    assert_eq!(fixture.store.carts(&user("u"), at(late), page).await.unwrap().items, []);
}
