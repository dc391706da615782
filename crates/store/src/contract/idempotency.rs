//! Cases of idempotency keys: one effect and one outcome, however often the request is sent.

use std::collections::BTreeMap;
use std::fmt::Debug;

use mw_domain::{CartId, MergeMode, OrderStatus, ReservationStatus, Session};

use super::fixtures::{
    Fixture, KEY_LIFE, LIFETIME, SESSION_LIFETIME, abandoning, at, demands, guest, identity, just_before,
    moving, priced_product, product_id, refusal, session_id, user, user_id, zone,
};
use crate::carts::{Abandon, Merge};
use crate::orders::{Basket, PlaceOrder, SetStatus};
use crate::products::ImportProduct;
use crate::sessions::{CreateSession, Login};
use crate::stock::{Adjust, Reserve};
use crate::{Done, Refusal, Result};

fn keyed_order(fixture: &Fixture, key: &str, request: u8, quantity: u32, seconds: i64) -> PlaceOrder {
    PlaceOrder {
        identity: Some(identity(key, request, at(seconds))),
        ..fixture.ordering("u", Basket::Lines(demands(&[("a", quantity)])), at(seconds))
    }
}

/// The first result is no replay, the second is a replay of it.
#[track_caller]
fn same_again<T: PartialEq + Debug>(first: Result<Done<T>>, second: Result<Done<T>>) {
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(!first.replayed && second.replayed, "{first:?} {second:?}");
    assert_eq!(first.value, second.value);
}

pub(super) async fn a_keyed_order_is_placed_once(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let first = keyed_order(&fixture, "k", 1, 2, 1);
    let first = fixture.store.place_order(first).await;
    let placed = first.clone().unwrap().value;
    let again = keyed_order(&fixture, "k", 1, 2, 2);
    let second_id = again.order_id;
    assert_ne!(second_id, placed.order_id);
    same_again(first.clone(), fixture.store.place_order(again).await);
    assert_eq!(fixture.store.order(second_id).await, Ok(None));
    assert_eq!(fixture.level("a", "north", at(3)).await, (10, 2));

    for to in [OrderStatus::Paid, OrderStatus::Cancelled] {
        fixture.status(placed.order_id, to, at(4)).await.unwrap();
        let again = keyed_order(&fixture, "k", 1, 2, 5);
        same_again(first.clone(), fixture.store.place_order(again).await);
    }
    assert_eq!(fixture.level("a", "north", at(6)).await, (10, 0));
    fixture.audit_closes().await;
}

pub(super) async fn a_keyed_checkout_is_done_once(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let version = Some(fixture.set(&user("u"), "a", 2, at(0)).await.version);
    let checkout = |seconds, expected_version| PlaceOrder {
        identity: Some(identity("k", 1, at(seconds))),
        ..fixture.ordering("u", Basket::Cart { expected_version, lifetime: LIFETIME }, at(seconds))
    };
    let first = fixture.store.place_order(checkout(1, version)).await;
    let next = fixture.set(&user("u"), "a", 5, at(2)).await;
    // Neither the version nor the new cart matters: the key is checked first.
    same_again(first, fixture.store.place_order(checkout(3, version)).await);
    assert_eq!(fixture.active(&user("u"), at(4)).await, Some(next));
}

pub(super) async fn a_key_of_another_request_is_refused(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let first = keyed_order(&fixture, "k", 1, 2, 1);
    fixture.store.place_order(first).await.unwrap();
    for quantity in [2, 100] {
        let other = keyed_order(&fixture, "k", 2, quantity, 2);
        let refused = refusal(fixture.store.place_order(other).await);
        assert_eq!(refused, Refusal::KeyReused, "before anything else");
    }
    assert_eq!(fixture.level("a", "north", at(3)).await, (10, 2));
    let other_key = keyed_order(&fixture, "K", 2, 3, 4);
    fixture.store.place_order(other_key).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(5)).await, (10, 5));
}

pub(super) async fn a_refused_request_leaves_its_key_free(fixture: Fixture) {
    fixture.stocked("a", 1).await;
    let short = keyed_order(&fixture, "k", 1, 2, 1);
    assert!(matches!(refusal(fixture.store.place_order(short).await), Refusal::OutOfStock(_)));
    fixture.on_hand("a", "north", 9, at(2)).await.unwrap();
    let done = fixture.store.place_order(keyed_order(&fixture, "k", 1, 2, 3)).await.unwrap();
    assert!(!done.replayed);

    let too_much = Adjust { identity: Some(identity("l", 1, at(4))), ..fixture.adjusting("a", -100, at(4)) };
    assert!(fixture.store.adjust(too_much).await.is_err());
    let other = Adjust { identity: Some(identity("l", 2, at(4))), ..fixture.adjusting("a", 5, at(4)) };
    assert!(fixture.store.adjust(other).await.is_ok(), "free for another request too");
    fixture.audit_closes().await;
}

pub(super) async fn a_key_is_free_again_after_its_time(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let first = keyed_order(&fixture, "k", 1, 2, 0);
    let first = fixture.store.place_order(first).await;
    let seconds = KEY_LIFE - 1;
    same_again(first.clone(), fixture.store.place_order(keyed_order(&fixture, "k", 1, 2, seconds)).await);
    let last = PlaceOrder { now: just_before(at(KEY_LIFE)), ..keyed_order(&fixture, "k", 1, 2, KEY_LIFE) };
    same_again(first, fixture.store.place_order(last).await);
    let other = keyed_order(&fixture, "k", 2, 3, KEY_LIFE);
    let done = fixture.store.place_order(other).await.unwrap();
    assert!(!done.replayed);
    assert_eq!(fixture.level("a", "north", at(KEY_LIFE)).await, (10, 5));
    let of_the_first = keyed_order(&fixture, "k", 1, 2, KEY_LIFE + 1);
    let refused = refusal(fixture.store.place_order(of_the_first).await);
    assert_eq!(refused, Refusal::KeyReused, "the key has a new request now");
}

pub(super) async fn keys_are_one_namespace(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let adjust = Adjust { identity: Some(identity("k", 1, at(1))), ..fixture.adjusting("a", 1, at(1)) };
    fixture.store.adjust(adjust).await.unwrap();
    let order = fixture.store.place_order(keyed_order(&fixture, "k", 2, 1, 2)).await;
    assert_eq!(refusal(order), Refusal::KeyReused);
    let reserve =
        Reserve { identity: Some(identity("k", 3, at(2))), ..fixture.reserving(&[("a", 1)], at(2)) };
    assert_eq!(refusal(fixture.store.reserve(reserve).await), Refusal::KeyReused);
    fixture.set(&user("u"), "a", 1, at(2)).await;
    let abandon = Abandon { identity: Some(identity("k", 4, at(2))), ..abandoning(&user("u"), at(2)) };
    assert_eq!(refusal(fixture.store.abandon(abandon).await), Refusal::KeyReused);
    assert!(fixture.active(&user("u"), at(3)).await.is_some());
    assert_eq!(fixture.level("a", "north", at(3)).await, (11, 0));
}

pub(super) async fn carts_replay_a_key(fixture: Fixture) {
    fixture.set(&user("u"), "a", 1, at(0)).await;
    let abandon = |seconds| Abandon {
        identity: Some(identity("abandon", 1, at(seconds))),
        ..abandoning(&user("u"), at(seconds))
    };
    let first = fixture.store.abandon(abandon(1)).await;
    let next = fixture.set(&user("u"), "b", 2, at(2)).await;
    same_again(first, fixture.store.abandon(abandon(3)).await);
    assert_eq!(fixture.active(&user("u"), at(3)).await, Some(next.clone()));

    fixture.set(&guest("s"), "c", 3, at(4)).await;
    let merge = |seconds| Merge {
        identity: Some(identity("merge", 1, at(seconds))),
        expected_version: Some(next.version),
        ..fixture.merging("u", "s", MergeMode::Sum, at(seconds))
    };
    let first = fixture.store.merge(merge(5)).await;
    assert_eq!(first.as_ref().unwrap().value.changes.len(), 1);
    let second_cart = fixture.set(&guest("s"), "c", 9, at(6)).await;
    same_again(first, fixture.store.merge(merge(7)).await);
    assert_eq!(fixture.active(&guest("s"), at(8)).await, Some(second_cart), "a key is one merge");
}

pub(super) async fn a_merge_of_nothing_is_remembered_too(fixture: Fixture) {
    let merge = |seconds| Merge {
        identity: Some(identity("merge", 1, at(seconds))),
        ..fixture.merging("u", "s", MergeMode::Sum, at(seconds))
    };
    let first = fixture.store.merge(merge(1)).await;
    assert_eq!(first.as_ref().unwrap().value.cart, None);
    let cart = fixture.set(&guest("s"), "c", 3, at(2)).await;
    same_again(first, fixture.store.merge(merge(3)).await);
    assert_eq!(fixture.active(&guest("s"), at(3)).await, Some(cart));
}

pub(super) async fn sessions_replay_a_key(fixture: Fixture) {
    let create = |seconds| CreateSession {
        session: Session {
            session_id: session_id(&format!("s{seconds}")),
            user_id: None,
            geo_zone: None,
            ip: None,
            user_agent: None,
            device_type: None,
            data: BTreeMap::new(),
            created_at: at(seconds),
            last_activity: at(seconds),
            expires_at: at(seconds).plus_millis(SESSION_LIFETIME.ttl_ms),
        },
        id_seed: None,
        now: at(seconds),
        identity: Some(identity("create", 1, at(seconds))),
    };
    let first = fixture.store.create_session(create(1)).await;
    same_again(first.clone(), fixture.store.create_session(create(2)).await);
    assert_eq!(fixture.store.session(&session_id("s2"), at(3)).await, Ok(None));

    fixture.set(&guest("s1"), "a", 1, at(3)).await;
    let login = |seconds| Login {
        session_id: session_id("s1"),
        user_id: user_id("u"),
        mode: MergeMode::Sum,
        new_cart_id: CartId::new(fixture.uuid()),
        session_lifetime: SESSION_LIFETIME,
        cart_lifetime: LIFETIME,
        now: at(seconds),
        identity: Some(identity("login", 1, at(seconds))),
    };
    let logged_in = fixture.store.login(login(4)).await;
    fixture.set(&user("u"), "b", 1, at(5)).await;
    fixture.store.delete_session(&session_id("s1"), at(6)).await.unwrap();
    same_again(logged_in, fixture.store.login(login(7)).await);
    same_again(first, fixture.store.create_session(create(8)).await);
    assert_eq!(fixture.store.session(&session_id("s1"), at(9)).await, Ok(None), "a replay makes nothing");
}

pub(super) async fn stock_replays_a_key(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let adjust = |seconds| Adjust {
        identity: Some(identity("adjust", 1, at(seconds))),
        ..fixture.adjusting("a", -3, at(seconds))
    };
    let first = fixture.store.adjust(adjust(1)).await;
    fixture.on_hand("a", "north", 2, at(2)).await.unwrap();
    same_again(first, fixture.store.adjust(adjust(3)).await);
    assert_eq!(fixture.level("a", "north", at(3)).await, (2, 0));

    let reserve = |seconds| Reserve {
        identity: Some(identity("reserve", 1, at(seconds))),
        ..fixture.reserving(&[("a", 2)], at(seconds))
    };
    let held = fixture.store.reserve(reserve(4)).await;
    let id = held.as_ref().unwrap().value.reservation_id;
    let confirm = async |seconds| {
        let key = Some(identity("confirm", 1, at(seconds)));
        fixture.store.confirm(id, at(seconds), key).await
    };
    let confirmed = confirm(5).await;
    assert_eq!(confirmed.as_ref().unwrap().value.status, ReservationStatus::Confirmed);
    same_again(held, fixture.store.reserve(reserve(6)).await);
    same_again(confirmed, confirm(7).await);
    assert_eq!(fixture.level("a", "north", at(8)).await, (0, 0));
    fixture.audit_closes().await;
}

pub(super) async fn a_status_replays_a_key(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let order = fixture.order("u", &[("a", 3)], at(0)).await.unwrap();
    let step = |key, to, seconds| SetStatus {
        identity: Some(identity(key, 1, at(seconds))),
        expected_version: Some(1),
        ..moving(order.order_id, to, at(seconds))
    };
    let same = fixture.store.set_status(step("same", OrderStatus::Created, 1)).await;
    let paid = fixture.store.set_status(step("pay", OrderStatus::Paid, 2)).await;
    fixture.status(order.order_id, OrderStatus::Shipped, at(3)).await.unwrap();
    same_again(paid, fixture.store.set_status(step("pay", OrderStatus::Paid, 4)).await);
    same_again(same, fixture.store.set_status(step("same", OrderStatus::Created, 5)).await);
    let now = fixture.store.order(order.order_id).await.unwrap().unwrap();
    assert_eq!((now.status, now.version), (OrderStatus::Shipped, 3));
    assert_eq!(fixture.level("a", "north", at(6)).await, (7, 0));
}

pub(super) async fn an_import_line_replays_its_key(fixture: Fixture) {
    let key = |line, seconds| {
        let file = identity("file", 1, at(seconds));
        Some(crate::RequestIdentity { key: file.key.line(line), ..file })
    };
    let import = |name, line, seconds| ImportProduct {
        product: priced_product(name, 100),
        stock: vec![(zone("north"), 5)],
        op: fixture.uuid(),
        now: at(seconds),
        identity: key(line, seconds),
    };
    let first = fixture.store.import_product(import("a", 1, 1)).await;
    assert!(first.as_ref().unwrap().value.created);
    let second = fixture.store.import_product(import("b", 2, 1)).await;
    assert!(!second.unwrap().replayed, "each line has a key of its own");
    fixture.on_hand("a", "north", 1, at(2)).await.unwrap();
    fixture.store.delete_product(&product_id("a"), at(1)).await.unwrap();
    same_again(first, fixture.store.import_product(import("a", 1, 3)).await);
    assert_eq!(fixture.level("a", "north", at(4)).await, (1, 0));
    let found = fixture.store.product(&product_id("a"), crate::Freshness::Latest).await;
    assert_eq!(found, Ok(None));
    fixture.audit_closes().await;
}
