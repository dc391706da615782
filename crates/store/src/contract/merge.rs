//! Cases of merging a guest's cart into a user's.

use mw_domain::limits::{LINES_MAX, QUANTITY_MAX};
use mw_domain::{CartStatus, MergeChange, MergeMode};

use super::fixtures::{
    DAY, Fixture, abandoning, at, guest, product_id, quantities, refusal, user, walk_every_way,
};
use crate::carts::{Merge, Merged};
use crate::{PageRequest, Refusal};

fn change(name: &str, from: u32, to: u32) -> MergeChange {
    MergeChange { product_id: product_id(name), from, to }
}

pub(super) async fn each_mode_decides_what_is_in_both(fixture: Fixture) {
    let modes = [(MergeMode::Sum, 7), (MergeMode::Max, 5), (MergeMode::Guest, 2), (MergeMode::User, 5)];
    for (number, (mode, expected)) in modes.into_iter().enumerate() {
        let name = format!("x{number}");
        let (own, of_guest) = (user(&name), guest(&name));
        let before = fixture.set_all(&own, &[("both", 5), ("own", 1)], at(0)).await.unwrap();
        fixture.set_all(&of_guest, &[("both", 2), ("new", 4)], at(0)).await;
        let merged = fixture.merge(&name, &name, mode, at(9)).await;
        let cart = merged.cart.unwrap();
        assert_eq!(quantities(&cart), [("both", expected), ("new", 4), ("own", 1)], "{mode:?}");
        let mut changes = vec![change("both", 5, expected), change("new", 0, 4)];
        changes.retain(|change| change.from != change.to);
        assert_eq!(merged.changes, changes, "{mode:?}");
        assert_eq!(cart.cart_id, before.cart_id);
        assert!(cart.version > before.version);
        assert_eq!((cart.updated_at, cart.expires_at), (at(9), at(9 + 30 * DAY)));
        assert_eq!(fixture.active(&own, at(10)).await, Some(cart));
    }
}

pub(super) async fn a_merge_closes_the_guests_cart(fixture: Fixture) {
    let own = fixture.set(&user("u"), "a", 1, at(0)).await;
    let open = fixture.set(&guest("s"), "b", 2, at(1)).await;
    fixture.merge("u", "s", MergeMode::Sum, at(2)).await;
    assert_eq!(fixture.active(&guest("s"), at(2)).await, None);
    let carts = fixture.store.carts(&guest("s"), at(2), PageRequest::first(5)).await.unwrap().items;
    assert_eq!(carts.len(), 1);
    assert_eq!(
        (carts[0].cart_id, carts[0].status, carts[0].merged_into),
        (open.cart_id, CartStatus::Abandoned, Some(own.cart_id))
    );
    assert_eq!(carts[0].expires_at, at(2 + DAY));
    assert!(carts[0].version > open.version);
    assert_eq!(quantities(&carts[0]), [("b", 2)]);
}

pub(super) async fn a_merge_opens_a_cart_for_a_user_without_one(fixture: Fixture) {
    fixture.set_all(&guest("s"), &[("a", 1), ("b", 2)], at(0)).await;
    let command = fixture.merging("u", "s", MergeMode::User, at(5));
    let new_cart_id = command.new_cart_id;
    let merged = fixture.store.merge(command).await.unwrap().value;
    let cart = merged.cart.unwrap();
    assert_eq!((cart.cart_id, cart.owner.clone()), (new_cart_id, user("u")));
    assert_eq!(quantities(&cart), [("a", 1), ("b", 2)]);
    assert_eq!(cart.created_at, at(5));
    assert_eq!(merged.changes, [change("a", 0, 1), change("b", 0, 2)]);
}

pub(super) async fn a_repeated_merge_changes_nothing(fixture: Fixture) {
    fixture.set(&user("u"), "a", 1, at(0)).await;
    fixture.set(&guest("s"), "a", 2, at(0)).await;
    let first = fixture.merge("u", "s", MergeMode::Sum, at(1)).await;
    let again = fixture.merge("u", "s", MergeMode::Sum, at(2)).await;
    assert_eq!((&again.cart, again.changes), (&first.cart, vec![]));
    let of_another = fixture.merge("v", "s", MergeMode::Sum, at(3)).await;
    assert_eq!(of_another, Merged { cart: None, changes: vec![] });
}

pub(super) async fn a_later_cart_of_the_guest_is_merged_again(fixture: Fixture) {
    fixture.set(&guest("s"), "a", 2, at(0)).await;
    let first = fixture.merge("u", "s", MergeMode::Sum, at(1)).await.cart.unwrap();
    fixture.set(&guest("s"), "a", 3, at(2)).await;
    let merged = fixture.merge("u", "s", MergeMode::Sum, at(3)).await;
    assert_eq!(merged.changes, [change("a", 2, 5)]);
    assert!(merged.cart.unwrap().version > first.version);
}

pub(super) async fn without_guest_lines_nothing_is_merged(fixture: Fixture) {
    let own = fixture.set(&user("u"), "a", 1, at(0)).await;
    let unmoved = Merged { cart: Some(own), changes: vec![] };
    assert_eq!(fixture.merge("u", "absent", MergeMode::Sum, at(1)).await, unmoved);

    fixture.set(&guest("emptied"), "a", 1, at(1)).await;
    fixture.remove(&guest("emptied"), "a", at(1)).await;
    assert_eq!(fixture.merge("u", "emptied", MergeMode::Sum, at(2)).await, unmoved);
    assert!(fixture.active(&guest("emptied"), at(2)).await.is_some(), "an empty guest cart stays open");

    fixture.set(&guest("gave-up"), "b", 1, at(1)).await;
    let gave_up = abandoning(&guest("gave-up"), at(1));
    fixture.store.abandon(gave_up).await.unwrap();
    assert_eq!(fixture.merge("u", "gave-up", MergeMode::Sum, at(2)).await, unmoved);

    let merged = fixture.merge("unknown", "absent", MergeMode::Sum, at(2)).await;
    assert_eq!(merged.cart, None);
}

pub(super) async fn an_expired_cart_is_neither_merged_nor_merged_into(fixture: Fixture) {
    fixture.set(&guest("s"), "a", 1, at(0)).await;
    let late = fixture.merge("u", "s", MergeMode::Sum, at(DAY)).await;
    assert_eq!(late.cart, None);

    let old = fixture.set(&user("u"), "old", 1, at(0)).await;
    fixture.set(&guest("t"), "new", 1, old.expires_at).await;
    let merged = fixture.merge("u", "t", MergeMode::Sum, old.expires_at).await;
    let cart = merged.cart.unwrap();
    assert_ne!(cart.cart_id, old.cart_id);
    assert_eq!(quantities(&cart), [("new", 1)]);
}

pub(super) async fn a_merge_that_changes_no_line_closes_the_guests_cart(fixture: Fixture) {
    let own = fixture.set(&user("u"), "a", 5, at(0)).await;
    fixture.set(&guest("s"), "a", 5, at(0)).await;
    let merged = fixture.merge("u", "s", MergeMode::Max, at(1)).await;
    assert_eq!((merged.cart, merged.changes), (Some(own), vec![]));
    assert_eq!(fixture.active(&guest("s"), at(1)).await, None);
}

pub(super) async fn the_version_of_a_merge_is_the_users(fixture: Fixture) {
    fixture.set_all(&guest("s"), &[("a", 1), ("b", 1)], at(0)).await;
    let expecting = |expected, now| Merge {
        expected_version: Some(expected),
        ..fixture.merging("u", "s", MergeMode::Sum, now)
    };
    let refused = refusal(fixture.store.merge(expecting(2, at(1))).await);
    assert_eq!(refused, Refusal::CartVersion { current: None });
    let own = fixture.set(&user("u"), "c", 1, at(1)).await;
    let refused = refusal(fixture.store.merge(expecting(0, at(2))).await);
    assert_eq!(refused, Refusal::CartVersion { current: Some(own.clone()) });
    assert!(fixture.active(&guest("s"), at(2)).await.is_some(), "nothing was done");
    let merged = fixture.store.merge(expecting(own.version, at(3))).await.unwrap().value;
    assert!(merged.cart.unwrap().version > own.version);
    let refused = refusal(fixture.store.merge(expecting(own.version, at(4))).await);
    assert!(matches!(refused, Refusal::CartVersion { current: Some(_) }), "also where there is no guest");
}

pub(super) async fn a_sum_is_capped(fixture: Fixture) {
    fixture.set(&user("u"), "a", QUANTITY_MAX - 1, at(0)).await;
    fixture.set(&guest("s"), "a", 5, at(0)).await;
    let merged = fixture.merge("u", "s", MergeMode::Sum, at(1)).await;
    assert_eq!(merged.changes, [change("a", QUANTITY_MAX - 1, QUANTITY_MAX)]);
}

pub(super) async fn at_a_hundred_lines_the_guests_oldest_are_dropped(fixture: Fixture) {
    for number in 0..LINES_MAX - 2 {
        fixture.set(&user("u"), &format!("p{number}"), 1, at(0)).await;
    }
    for (seconds, name) in (1..).zip(["oldest", "older", "p3", "newer", "newest"]) {
        fixture.set(&guest("s"), name, 2, at(seconds)).await;
    }
    let merged = fixture.merge("u", "s", MergeMode::Sum, at(9)).await;
    assert_eq!(merged.cart.unwrap().lines.len(), LINES_MAX);
    assert_eq!(merged.changes, [change("newer", 0, 2), change("newest", 0, 2), change("p3", 1, 3)]);
}

pub(super) async fn a_merge_is_in_the_users_history(fixture: Fixture) {
    fixture.set_all(&user("u"), &[("a", 1), ("kept", 1)], at(0)).await;
    fixture.set_all(&guest("s"), &[("c", 3), ("a", 2), ("b", 4)], at(0)).await;
    let cart = fixture.merge("u", "s", MergeMode::Sum, at(5)).await.cart.unwrap();
    let own = user("u");
    let history =
        walk_every_way(async |request| fixture.store.cart_changes(&own, at(6), request).await).await;
    let rows: Vec<(&str, u32)> =
        history.iter().map(|change| (change.product_id.as_str(), change.quantity)).collect();
    assert_eq!(rows, [("a", 3), ("b", 4), ("c", 3), ("kept", 1), ("a", 1)]);
    assert!(history.iter().take(3).all(|change| change.version == cart.version), "one change");
    assert!(history.iter().all(|change| change.cart_id == cart.cart_id));
    let of_guest = guest("s");
    let history =
        walk_every_way(async |request| fixture.store.cart_changes(&of_guest, at(6), request).await).await;
    assert_eq!(history.len(), 3, "the guest's own changes stay as they were");
}
