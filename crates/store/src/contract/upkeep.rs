//! Cases of what an engine does for itself.

use mw_domain::MergeMode;

use super::given::{DAY, Desk, KEY_LIFE, at, demands, guest, once, user};
use crate::PageRequest;
use crate::orders::{Basket, PlaceOrder};

pub(super) async fn a_fresh_store_is_ready(desk: Desk) {
    assert_eq!(desk.store.ready().await, Ok(()));
    assert_eq!(desk.store.is_empty().await, Ok(true));
    assert_eq!(desk.store.clean(at(0), 100).await, Ok(0));
}

/// Cleans until there is nothing more, a few rows at a time.
async fn clean_all(desk: &Desk, seconds: i64) -> usize {
    let mut removed = 0;
    for _ in 0..1_000 {
        let count = desk.store.clean(at(seconds), 3).await.unwrap();
        assert!(count <= 3, "{count} at once");
        removed += count;
        if count == 0 {
            return removed;
        }
    }
    panic!("cleaning finds no end");
}

pub(super) async fn cleaning_changes_nothing_a_reader_sees(desk: Desk) {
    desk.stocked("a", 10).await;
    for number in 0..5 {
        desk.set(&guest(&format!("s{number}")), "a", 1, at(number)).await;
    }
    let own = desk.set(&user("u"), "a", 1, at(0)).await;
    desk.merge("u", "s1", MergeMode::Sum, at(10)).await;
    let keyed = |seconds| PlaceOrder {
        once: Some(once("k", 1, at(seconds))),
        ..desk.ordering("u", Basket::Lines(demands(&[("a", 2)])), at(seconds))
    };
    let order = desk.store.place_order(keyed(20)).await.unwrap().value;
    clean_all(&desk, 30).await;
    assert!(desk.active(&guest("s0"), at(30)).await.is_some());
    assert!(desk.store.place_order(keyed(30)).await.unwrap().replayed);

    let later = DAY + 100;
    clean_all(&desk, later).await;
    let cart = desk.active(&user("u"), at(later)).await.unwrap();
    assert_eq!((cart.cart_id, cart.lines[0].quantity), (own.cart_id, 2));
    let page = PageRequest::first(10);
    let history = desk.store.cart_changes(&user("u"), at(later), page.clone()).await;
    assert_eq!(history.unwrap().items.len(), 2, "history outlives carts");
    let history = desk.store.cart_changes(&guest("s0"), at(later), page.clone()).await;
    assert_eq!(history.unwrap().items.len(), 1);

    let last = KEY_LIFE + 40 * DAY;
    clean_all(&desk, last).await;
    let kept = desk.store.order(order.order_id).await;
    assert_eq!(kept, Ok(Some(order)), "orders never expire");
    assert_eq!(desk.level("a", "north", at(last)).await, (10, 2));
    let idle = desk.store.idle_carts(at(last), at(last), page).await;
    assert_eq!(idle.unwrap().items, []);
    desk.audit_closes().await;
}

pub(super) async fn cleaning_never_loses_the_units_of_a_hold(desk: Desk) {
    desk.stocked("a", 10).await;
    desk.reserve(&[("a", 4)], at(0)).await.unwrap();
    // Long over, but nobody has settled it.
    let late = 90 * DAY;
    clean_all(&desk, late).await;
    assert_eq!(desk.level("a", "north", at(late)).await, (10, 0));
    desk.audit_closes().await;
    desk.reserve(&[("a", 10)], at(late)).await.unwrap();
    desk.store.settle_expired(at(late), 10).await.unwrap();
    clean_all(&desk, late).await;
    assert_eq!(desk.level("a", "north", at(late)).await, (10, 10));
    desk.audit_closes().await;
}
