//! Cases of carts: lines, versions, expiry, and the lists of carts and changes.

use mw_domain::limits::LINES_MAX;
use mw_domain::{Cart, CartChange, CartId, CartStatus, MergeMode, Owner};

use super::fixtures::{
    DAY, Fixture, HOUR, LIFETIME, abandoning, at, bad_positions, guest, just_before, quantities, refusal,
    removal, user, walk_every_way,
};
use crate::carts::{RemoveLine, SetLine};
use crate::{PageRequest, Refusal};

pub(super) async fn a_line_is_added_replaced_and_removed(fixture: Fixture) {
    let owner = user("u");
    let first = fixture.set(&owner, "b", 1, at(0)).await;
    assert_eq!(quantities(&first), [("b", 1)]);
    assert_eq!(first.status, CartStatus::Active);
    assert_eq!((first.created_at, first.updated_at, first.expires_at), (at(0), at(0), at(30 * DAY)));
    let second = fixture.set(&owner, "a", 2, at(1)).await;
    let cart = fixture.set(&owner, "b", 7, at(2)).await;
    assert!(0 < first.version && first.version < second.version && second.version < cart.version);
    assert_eq!(quantities(&cart), [("a", 2), ("b", 7)], "by product id");
    assert_eq!(cart.cart_id, first.cart_id);
    assert_eq!((cart.created_at, cart.updated_at), (at(0), at(2)));
    let instants: Vec<_> = cart.lines.iter().map(|line| line.updated_at).collect();
    assert_eq!(instants, [at(1), at(2)]);
    assert_eq!(fixture.active(&owner, at(3)).await, Some(cart.clone()));

    let before = cart.version;
    let cart = fixture.remove(&owner, "b", at(4)).await.unwrap();
    assert_eq!((quantities(&cart), cart.updated_at), (vec![("a", 2)], at(4)));
    assert!(cart.version > before);
    assert_eq!(fixture.active(&owner, at(5)).await, Some(cart));
}

pub(super) async fn a_removed_line_does_not_come_back(fixture: Fixture) {
    let owner = guest("s");
    fixture.set_all(&owner, &[("a", 1), ("b", 2)], at(0)).await;
    fixture.remove(&owner, "a", at(1)).await;
    let cart = fixture.set(&owner, "c", 3, at(2)).await;
    assert_eq!(quantities(&cart), [("b", 2), ("c", 3)]);
}

pub(super) async fn removing_what_is_not_there_changes_nothing(fixture: Fixture) {
    let owner = user("u");
    assert_eq!(fixture.active(&owner, at(0)).await, None);
    assert_eq!(fixture.remove(&owner, "a", at(0)).await, None);
    let cart = fixture.set(&owner, "a", 1, at(1)).await;
    assert_eq!(fixture.remove(&owner, "b", at(9)).await, Some(cart.clone()));
    assert_eq!(fixture.active(&owner, at(9)).await, Some(cart));
}

pub(super) async fn an_emptied_cart_stays_active(fixture: Fixture) {
    let owner = user("u");
    let full = fixture.set(&owner, "a", 1, at(0)).await;
    let empty = fixture.remove(&owner, "a", at(1)).await.unwrap();
    assert_eq!(empty.lines, []);
    assert_eq!(fixture.active(&owner, at(2)).await, Some(empty.clone()));
    let again = fixture.set(&owner, "a", 2, at(3)).await;
    assert_eq!(again.cart_id, full.cart_id);
    assert!(full.version < empty.version && empty.version < again.version);
}

pub(super) async fn a_user_and_a_guest_of_one_name_have_their_own_carts(fixture: Fixture) {
    fixture.set(&user("x"), "a", 1, at(0)).await;
    fixture.set(&guest("x"), "b", 2, at(0)).await;
    fixture.set(&user("xx"), "c", 3, at(0)).await;
    let names = [(user("x"), "a"), (guest("x"), "b"), (user("xx"), "c")];
    for (owner, product) in names {
        let cart = fixture.active(&owner, at(1)).await.unwrap();
        assert_eq!((&cart.owner, cart.lines[0].product_id.as_str()), (&owner, product));
        assert_eq!(cart.lines.len(), 1);
    }
}

pub(super) async fn an_expected_version_guards_a_line(fixture: Fixture) {
    let owner = user("u");
    let expecting =
        |expected, now| SetLine { expected_version: Some(expected), ..fixture.line(&owner, "a", 5, now) };
    let early = refusal(fixture.store.set_line(expecting(1, at(0))).await);
    assert_eq!(early, Refusal::CartVersion { current: None });
    let cart = fixture.store.set_line(expecting(0, at(0))).await.unwrap();
    let first = cart.version;
    for wrong in [0, first - 1, first + 1] {
        let refused = refusal(fixture.store.set_line(expecting(wrong, at(1))).await);
        assert_eq!(refused, Refusal::CartVersion { current: Some(cart.clone()) });
    }
    assert_eq!(fixture.active(&owner, at(1)).await, Some(cart.clone()));
    let cart = fixture.store.set_line(expecting(first, at(2))).await.unwrap();
    let second = cart.version;
    assert!(second > first);

    let removing = |expected| RemoveLine { expected_version: Some(expected), ..removal(&owner, "a", at(3)) };
    let refused = refusal(fixture.store.remove_line(removing(first)).await);
    assert_eq!(refused, Refusal::CartVersion { current: Some(cart) });
    assert!(fixture.store.remove_line(removing(second)).await.unwrap().unwrap().version > second);
}

pub(super) async fn an_expected_version_of_no_cart_is_0(fixture: Fixture) {
    let owner = user("u");
    let removing =
        |expected, now| RemoveLine { expected_version: Some(expected), ..removal(&owner, "a", now) };
    assert_eq!(fixture.store.remove_line(removing(0, at(0))).await, Ok(None));
    let refused = refusal(fixture.store.remove_line(removing(1, at(0))).await);
    assert_eq!(refused, Refusal::CartVersion { current: None });

    let cart = fixture.set(&owner, "a", 1, at(0)).await;
    let gone = removing(cart.version, cart.expires_at);
    assert_eq!(refusal(fixture.store.remove_line(gone).await), Refusal::CartVersion { current: None });
    assert_eq!(fixture.store.remove_line(removing(0, cart.expires_at)).await, Ok(None));
}

pub(super) async fn a_cart_holds_a_hundred_lines(fixture: Fixture) {
    let owner = user("u");
    for number in 0..LINES_MAX {
        fixture.set(&owner, &format!("p{number}"), 1, at(0)).await;
    }
    let more = fixture.line(&owner, "one-more", 1, at(1));
    assert_eq!(refusal(fixture.store.set_line(more.clone()).await), Refusal::CartTooLarge);
    let wrong = SetLine { expected_version: Some(3), ..more.clone() };
    let first = refusal(fixture.store.set_line(wrong).await);
    assert!(matches!(first, Refusal::CartVersion { .. }), "the version comes first");
    let cart = fixture.set(&owner, "p7", 2, at(2)).await;
    assert_eq!(cart.lines.len(), LINES_MAX);
    fixture.remove(&owner, "p7", at(3)).await;
    assert_eq!(fixture.store.set_line(more).await.unwrap().lines.len(), LINES_MAX);
}

pub(super) async fn a_cart_expires_to_the_second(fixture: Fixture) {
    for (owner, life) in [(user("u"), 30 * DAY), (guest("s"), DAY)] {
        let cart = fixture.set(&owner, "a", 1, at(0)).await;
        assert_eq!(cart.expires_at, at(life));
        let last = just_before(at(life));
        assert_eq!(fixture.active(&owner, last).await, Some(cart.clone()));
        assert_eq!(fixture.active(&owner, at(life)).await, None);
        let page = PageRequest::first(5);
        let listed = fixture.store.carts(&owner, last, page.clone()).await.unwrap();
        assert_eq!(listed.items, [cart]);
        let listed = fixture.store.carts(&owner, at(life), page).await.unwrap();
        assert_eq!(listed.items, []);
    }
}

pub(super) async fn a_change_moves_the_expiry(fixture: Fixture) {
    let owner = guest("s");
    fixture.set_all(&owner, &[("a", 1), ("b", 1)], at(0)).await;
    let cart = fixture.remove(&owner, "a", at(23 * HOUR)).await.unwrap();
    assert_eq!(cart.expires_at, at(47 * HOUR));
    assert_eq!(fixture.active(&owner, at(DAY)).await, Some(cart));
}

pub(super) async fn a_change_after_expiry_opens_a_new_cart(fixture: Fixture) {
    let owner = guest("s");
    let old = fixture.set_all(&owner, &[("a", 1), ("b", 1)], at(0)).await.unwrap();
    assert_eq!(fixture.remove(&owner, "a", at(DAY)).await, None);
    let command = SetLine { expected_version: Some(0), ..fixture.line(&owner, "c", 3, at(DAY)) };
    let new_cart_id = command.new_cart_id;
    let new = fixture.store.set_line(command).await.unwrap();
    assert_eq!(new.cart_id, new_cart_id);
    assert_ne!(new.cart_id, old.cart_id);
    assert!(new.version > old.version);
    assert_eq!(quantities(&new), [("c", 3)]);
    assert_eq!((new.created_at, new.expires_at), (at(DAY), at(2 * DAY)));
    assert_eq!(fixture.active(&owner, at(DAY)).await, Some(new));
}

pub(super) async fn time_never_runs_backwards_in_a_cart(fixture: Fixture) {
    let owner = user("u");
    let first = fixture.set(&owner, "a", 1, at(10)).await;
    let cart = fixture.set(&owner, "b", 1, at(4)).await;
    assert_eq!((cart.updated_at, cart.expires_at), (at(10), at(10 + 30 * DAY)));
    assert!(cart.version > first.version);
}

pub(super) async fn an_abandoned_cart_makes_way_for_a_new_one(fixture: Fixture) {
    let owner = user("u");
    let old = fixture.set(&owner, "a", 1, at(0)).await;
    let done = fixture.store.abandon(abandoning(&owner, at(5))).await.unwrap();
    assert!(!done.replayed);
    let abandoned = done.value;
    assert_eq!((abandoned.cart_id, abandoned.status), (old.cart_id, CartStatus::Abandoned));
    assert!(abandoned.version > old.version);
    assert_eq!((abandoned.updated_at, abandoned.expires_at), (at(5), at(5 + 30 * DAY)));
    assert_eq!((abandoned.merged_into, abandoned.order_id), (None, None));
    assert_eq!(quantities(&abandoned), [("a", 1)]);
    assert_eq!(fixture.active(&owner, at(6)).await, None);
    assert_eq!(fixture.remove(&owner, "a", at(6)).await, None);

    let new = fixture.set(&owner, "b", 2, at(6)).await;
    assert_ne!(new.cart_id, old.cart_id);
    assert_eq!(quantities(&new), [("b", 2)]);
    let listed = fixture.store.carts(&owner, at(7), PageRequest::first(10)).await.unwrap();
    assert_eq!(listed.items, [new, abandoned]);
}

pub(super) async fn there_must_be_a_cart_to_abandon(fixture: Fixture) {
    let owner = user("u");
    let nothing = refusal(fixture.store.abandon(abandoning(&owner, at(0))).await);
    assert_eq!(nothing, Refusal::CartEmpty);
    let expecting =
        |expected, now| crate::carts::Abandon { expected_version: Some(expected), ..abandoning(&owner, now) };
    let wrong = refusal(fixture.store.abandon(expecting(1, at(0))).await);
    assert_eq!(wrong, Refusal::CartVersion { current: None }, "the version comes first");
    let nothing = refusal(fixture.store.abandon(expecting(0, at(0))).await);
    assert_eq!(nothing, Refusal::CartEmpty);

    let cart = fixture.set(&owner, "a", 1, at(1)).await;
    let wrong = refusal(fixture.store.abandon(expecting(cart.version + 1, at(2))).await);
    assert_eq!(wrong, Refusal::CartVersion { current: Some(cart.clone()) });
    let expired = refusal(fixture.store.abandon(abandoning(&owner, cart.expires_at)).await);
    assert_eq!(expired, Refusal::CartEmpty);
    let done = fixture.store.abandon(expecting(cart.version, at(2))).await.unwrap();
    assert!(done.value.version > cart.version);
}

pub(super) async fn versions_grow_from_cart_to_cart(fixture: Fixture) {
    fixture.stocked("a", 9).await;
    let owner = user("u");
    let mut last = 0;
    let mut next = |cart: &Cart, step: &str| {
        assert!(last < cart.version && cart.version < 1 << 53, "{step}: {} after {last}", cart.version);
        last = cart.version;
    };
    // All at one instant, and one of them after the clock was set back.
    next(&fixture.set(&owner, "a", 1, at(10)).await, "opened");
    next(&fixture.store.abandon(abandoning(&owner, at(10))).await.unwrap().value, "abandoned");
    next(&fixture.set(&owner, "a", 1, at(10)).await, "opened at the same instant");
    next(&fixture.store.abandon(abandoning(&owner, at(10))).await.unwrap().value, "abandoned again");
    next(&fixture.set(&owner, "a", 1, at(4)).await, "opened by an earlier clock");
    fixture.checkout("u", at(4)).await.unwrap();
    let closed = fixture.store.carts(&owner, at(4), PageRequest::first(9)).await.unwrap().items;
    next(closed.iter().find(|cart| cart.status == CartStatus::Ordered).unwrap(), "ordered");
    fixture.set(&guest("s"), "a", 1, at(4)).await;
    let merged = fixture.merge("u", "s", MergeMode::Sum, at(4)).await;
    let merged = merged.cart.unwrap();
    next(&merged, "opened by a merge");
    next(&fixture.set(&owner, "b", 1, merged.expires_at).await, "opened after an expiry");
}

pub(super) async fn the_version_of_an_earlier_cart_matches_no_later_one(fixture: Fixture) {
    let owner = user("u");
    let mut earlier = Vec::new();
    for quantity in 1..4 {
        let cart = fixture.set(&owner, "a", quantity, at(0)).await;
        for version in &earlier {
            let stale = SetLine { expected_version: Some(*version), ..fixture.line(&owner, "a", 9, at(0)) };
            let refused = refusal(fixture.store.set_line(stale).await);
            assert_eq!(refused, Refusal::CartVersion { current: Some(cart.clone()) });
        }
        let abandoned = fixture.store.abandon(abandoning(&owner, at(0))).await.unwrap().value;
        earlier.extend([cart.version, abandoned.version]);
    }
}

pub(super) async fn carts_are_listed_newest_first_until_they_expire(fixture: Fixture) {
    let owner = user("u");
    let mut made = Vec::new();
    // Several carts of one instant are ordered by id.
    for (number, created) in [0, 0, 0, 5, 9, 9].into_iter().enumerate() {
        fixture.set(&owner, &format!("p{number}"), 1, at(created)).await;
        let done = fixture.store.abandon(abandoning(&owner, at(created))).await.unwrap();
        made.insert(0, done.value);
    }
    let active = fixture.set(&owner, "last", 1, at(10)).await;
    made.insert(0, active);
    fixture.set(&user("another"), "a", 1, at(3)).await;

    let now = at(11);
    let listed = walk_every_way(async |request| fixture.store.carts(&owner, now, request).await).await;
    assert_eq!(listed, made);
    let later = at(30 * DAY + 5);
    let listed = walk_every_way(async |request| fixture.store.carts(&owner, later, request).await).await;
    assert_eq!(listed, made[..3], "those of 9 and 10 s live on");
}

pub(super) async fn every_change_of_a_line_is_in_the_history(fixture: Fixture) {
    let owner = user("u");
    let first = fixture.set(&owner, "a", 1, at(0)).await.cart_id;
    fixture.set(&owner, "b", 2, at(0)).await;
    fixture.set(&owner, "a", 3, at(5)).await;
    fixture.remove(&owner, "a", at(6)).await;
    fixture.remove(&owner, "a", at(7)).await;
    fixture.store.abandon(abandoning(&owner, at(8))).await.unwrap();
    // The first change of another cart may have the same product and instant.
    let second = fixture.set(&owner, "c", 4, at(8)).await.cart_id;
    fixture.set(&guest("s"), "z", 9, at(8)).await;

    let expected = [
        (at(8), second, "c", 4),
        (at(6), first, "a", 0),
        (at(5), first, "a", 3),
        (at(0), first, "b", 2),
        (at(0), first, "a", 1),
    ];
    let history =
        walk_every_way(async |request| fixture.store.cart_changes(&owner, at(9), request).await).await;
    let listed = |change: &CartChange| {
        (change.at, change.cart_id, change.product_id.as_str().to_owned(), change.quantity)
    };
    let expected = expected.map(|(at, cart_id, name, quantity)| (at, cart_id, name.to_owned(), quantity));
    assert_eq!(history.iter().map(listed).collect::<Vec<_>>(), expected);
    assert!(history.is_sorted_by(|newer, older| newer.version > older.version));
}

pub(super) async fn two_carts_of_one_instant_each_have_their_history(fixture: Fixture) {
    let owner = user("u");
    for _ in 0..3 {
        fixture.set(&owner, "a", 1, at(0)).await;
        fixture.store.abandon(abandoning(&owner, at(0))).await.unwrap();
    }
    let history =
        walk_every_way(async |request| fixture.store.cart_changes(&owner, at(1), request).await).await;
    let mut carts: Vec<CartId> = history.iter().map(|change| change.cart_id).collect();
    carts.sort();
    carts.dedup();
    assert_eq!((history.len(), carts.len()), (3, 3));
}

pub(super) async fn history_goes_back_thirty_days(fixture: Fixture) {
    let owner = user("u");
    for day in 0..4 {
        fixture.set(&owner, "a", 1, at(day * DAY)).await;
    }
    let ages = async |now| {
        let page = fixture.store.cart_changes(&owner, now, PageRequest::first(10)).await;
        page.unwrap().items.len()
    };
    assert_eq!(ages(just_before(at(30 * DAY))).await, 4);
    assert_eq!(ages(at(30 * DAY)).await, 3);
    assert_eq!(ages(at(32 * DAY)).await, 1);
    assert_eq!(ages(at(33 * DAY)).await, 0, "also where the cart itself is gone");
}

pub(super) async fn idle_carts_are_active_or_abandoned_and_not_merged(fixture: Fixture) {
    let idle_since = at(100);
    let idle = fixture.set(&user("idle"), "a", 1, idle_since).await;
    fixture.set(&user("busy"), "a", 1, idle_since.plus_millis(1)).await;
    fixture.set(&user("emptied"), "a", 1, at(0)).await;
    let emptied = fixture.remove(&user("emptied"), "a", at(0)).await.unwrap();
    fixture.set(&user("gave-up"), "a", 1, at(0)).await;
    let gave_up = abandoning(&user("gave-up"), at(200));
    let gave_up = fixture.store.abandon(gave_up).await.unwrap().value;
    fixture.set(&guest("merged"), "a", 1, at(0)).await;
    fixture.merge("busy", "merged", MergeMode::Sum, at(150)).await;
    let forgotten = fixture.set(&guest("forgotten"), "a", 1, at(0)).await;
    fixture.stocked("a", 9).await;
    fixture.set(&user("bought"), "a", 1, at(0)).await;
    fixture.checkout("bought", at(50)).await.unwrap();

    let owners = async |now| {
        let mut carts =
            walk_every_way(async |request| fixture.store.idle_carts(idle_since, now, request).await).await;
        carts.sort_by_key(|cart| cart.owner.clone());
        carts
    };
    assert_eq!(owners(at(201)).await, [emptied.clone(), gave_up.clone(), idle.clone(), forgotten.clone()]);
    assert_eq!(owners(forgotten.expires_at).await, [emptied, gave_up.clone(), idle.clone()]);
    assert_eq!(owners(idle.expires_at).await, std::slice::from_ref(&gave_up));
    assert_eq!(owners(gave_up.expires_at).await, []);
}

pub(super) async fn many_idle_carts_are_read_page_by_page(fixture: Fixture) {
    for number in 0..25 {
        let owner = guest(&format!("s{number}"));
        fixture.set(&owner, "a", 1, at(number * 600)).await;
        if number % 5 == 0 {
            fixture.store.abandon(abandoning(&owner, at(number * 600))).await.unwrap();
        }
    }
    let (idle_since, now) = (at(12 * 600), at(25 * 600));
    let mut owners: Vec<Owner> =
        walk_every_way(async |request| fixture.store.idle_carts(idle_since, now, request).await)
            .await
            .into_iter()
            .map(|cart| cart.owner)
            .collect();
    owners.sort();
    let mut expected: Vec<Owner> = (0..25)
        .filter(|number| *number <= 12 || number % 5 == 0)
        .map(|number| guest(&format!("s{number}")))
        .collect();
    expected.sort();
    assert_eq!(owners, expected);
}

pub(super) async fn a_lifetime_comes_with_the_command(fixture: Fixture) {
    let short = mw_domain::carts::CartLifetime { user_ms: 1_500, guest_ms: 500 };
    let command = SetLine { lifetime: short, ..fixture.line(&user("u"), "a", 1, at(0)) };
    let cart = fixture.store.set_line(command).await.unwrap();
    assert_eq!(cart.expires_at, at(0).plus_millis(1_500));
    assert_eq!(fixture.active(&user("u"), at(0).plus_millis(1_499)).await, Some(cart));
    assert_eq!(fixture.active(&user("u"), at(0).plus_millis(1_500)).await, None);
    let command = SetLine { lifetime: LIFETIME, ..fixture.line(&user("v"), "a", 1, at(0)) };
    assert_eq!(fixture.store.set_line(command).await.unwrap().expires_at, at(30 * DAY));
}

pub(super) async fn bad_positions_in_carts_are_refused(fixture: Fixture) {
    let owner = user("u");
    fixture.set_all(&owner, &[("a", 1), ("b", 1)], at(0)).await;
    for page in bad_positions() {
        let store = &fixture.store;
        let carts = store.carts(&owner, at(1), page.clone()).await;
        assert_eq!(refusal(carts), Refusal::InvalidCursor);
        let changes = store.cart_changes(&owner, at(1), page.clone()).await;
        assert_eq!(refusal(changes), Refusal::InvalidCursor);
        let idle = store.idle_carts(at(1), at(1), page).await;
        assert_eq!(refusal(idle), Refusal::InvalidCursor);
    }
}
