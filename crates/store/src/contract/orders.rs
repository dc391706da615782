//! Cases of placing orders: an order is in every view or in none.

use mw_domain::orders::EventKind;
use mw_domain::{
    CartStatus, Money, Order, OrderEvent, OrderLine, OrderStatus, Period, Product, Shortage, Timestamp,
};

use super::fixtures::{
    DAY, Fixture, HOLD, LIFETIME, PAYMENT_WINDOW, at, demands, priced_product, product_id, quantities,
    refusal, user, user_id, whole_cart, zone,
};
use crate::orders::{Basket, PlaceOrder};
use crate::{PageRequest, Refusal};

/// How many orders each view shows: of the user, of the zone, of all.
async fn counts(fixture: &Fixture, user: &str, of_zone: &str) -> (usize, usize, usize) {
    let (store, page) = (&fixture.store, || PageRequest::first(100));
    let of_user = store.user_orders(&user_id(user), Period::ALL, page()).await.unwrap();
    let month = Period { from: at(-15 * DAY), to: at(15 * DAY) };
    let zone = zone(of_zone);
    let in_zone = store.orders(Some(&zone), month, page()).await.unwrap();
    let all = store.orders(None, month, page()).await.unwrap();
    (of_user.items.len(), in_zone.items.len(), all.items.len())
}

fn line(name: &str, minor: i64, quantity: u32) -> OrderLine {
    OrderLine {
        product_id: product_id(name),
        name: format!("The {name}"),
        price: Money::from_minor(minor),
        quantity,
    }
}

pub(super) async fn an_order_is_whole_in_every_view(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    fixture.stocked("b", 10).await;
    fixture.put(priced_product("b", 250)).await;
    let command = PlaceOrder {
        delivery_address: Some("Невский 1".to_owned()),
        payment_method: Some("card".to_owned()),
        expected_total: Some(Money::from_minor(850)),
        ..fixture.ordering("u", Basket::Lines(demands(&[("b", 3), ("a", 1)])), at(5))
    };
    let expected = Order {
        order_id: command.order_id,
        user_id: user_id("u"),
        status: OrderStatus::Created,
        geo_zone: zone("north"),
        lines: vec![line("b", 250, 3), line("a", 100, 1)],
        total: Money::from_minor(850),
        delivery_address: Some("Невский 1".to_owned()),
        payment_method: Some("card".to_owned()),
        created_at: at(5),
        updated_at: at(5),
        version: 1,
        pay_by: at(5 + PAYMENT_WINDOW),
    };
    let done = fixture.store.place_order(command).await.unwrap();
    assert_eq!((&done.value, done.replayed), (&expected, false));

    let id = expected.order_id;
    assert_eq!(fixture.store.order(id).await, Ok(Some(expected.clone())));
    let created =
        OrderEvent { at: at(5), kind: EventKind::Created, from: None, to: OrderStatus::Created, note: None };
    assert_eq!(fixture.store.order_events(id).await, Ok(Some(vec![created])));
    assert_eq!(counts(&fixture, "u", "north").await, (1, 1, 1));
    assert_eq!(counts(&fixture, "v", "south").await, (0, 0, 1));
    assert_eq!(fixture.level("a", "north", at(6)).await, (10, 1));
    assert_eq!(fixture.level("b", "north", at(6)).await, (10, 3));
    fixture.audit_closes().await;
}

pub(super) async fn an_order_keeps_the_prices_of_its_moment(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let order = fixture.order("u", &[("a", 2)], at(1)).await.unwrap();
    let dearer = Product { name: "New name".to_owned(), ..priced_product("a", 900) };
    fixture.put(dearer).await;
    assert_eq!(fixture.store.order(order.order_id).await, Ok(Some(order.clone())));
    fixture.store.delete_product(&product_id("a"), at(1)).await.unwrap();
    assert_eq!(fixture.store.order(order.order_id).await, Ok(Some(order)));
}

pub(super) async fn an_unknown_order_is_none(fixture: Fixture) {
    let unknown = mw_domain::OrderId::new(fixture.uuid());
    assert_eq!(fixture.store.order(unknown).await, Ok(None));
    assert_eq!(fixture.store.order_events(unknown).await, Ok(None));
}

/// The refusal of an order; checks that it left no row and no held unit.
async fn refused(fixture: &Fixture, command: PlaceOrder) -> Refusal {
    let (id, now) = (command.order_id, command.now);
    let name = command.user_id.clone();
    let before = fixture.active(&user(name.as_str()), now).await;
    let why = refusal(fixture.store.place_order(command).await);
    assert_eq!(fixture.store.order(id).await, Ok(None));
    assert_eq!(fixture.store.order_events(id).await, Ok(None));
    assert_eq!(counts(fixture, name.as_str(), "north").await, (0, 0, 0));
    assert_eq!(fixture.active(&user(name.as_str()), now).await, before);
    assert_eq!(fixture.level("a", "north", now).await, (10, 0));
    assert_eq!(fixture.store.cancel_unpaid(at(9 * DAY), "late", 10).await, Ok(0));
    fixture.audit_closes().await;
    why
}

pub(super) async fn a_refused_order_leaves_nothing_behind(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    fixture.stocked("b", 1).await;
    let place = |lines: &[(&str, u32)]| fixture.ordering("u", Basket::Lines(demands(lines)), at(1));
    let short = refused(&fixture, place(&[("a", 2), ("b", 2)])).await;
    let shortage =
        |name, requested, available| Shortage { product_id: product_id(name), requested, available };
    assert_eq!(short, Refusal::OutOfStock(vec![shortage("b", 2, 1)]));
    let short = refused(&fixture, place(&[("b", 2), ("a", 11)])).await;
    let both = vec![shortage("b", 2, 1), shortage("a", 11, 10)];
    assert_eq!(short, Refusal::OutOfStock(both));
    let unknown = refused(&fixture, place(&[("a", 11), ("x", 1), ("y", 1)])).await;
    assert_eq!(unknown, Refusal::ProductNotFound(product_id("x")));
    let elsewhere = PlaceOrder { geo_zone: zone("south"), ..place(&[("a", 1)]) };
    let elsewhere = refused(&fixture, elsewhere).await;
    assert_eq!(elsewhere, Refusal::OutOfStock(vec![shortage("a", 1, 0)]));
}

pub(super) async fn refusals_come_in_their_order(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    fixture.put(priced_product("dear", Money::MAX.as_minor())).await;
    let expecting = |lines: &[(&str, u32)], minor| PlaceOrder {
        expected_total: Some(Money::from_minor(minor)),
        ..fixture.ordering("u", Basket::Lines(demands(lines)), at(1))
    };
    let why = refused(&fixture, expecting(&[("dear", 2), ("unknown", 1)], 1)).await;
    assert_eq!(why, Refusal::ProductNotFound(product_id("unknown")));
    let why = refused(&fixture, expecting(&[("dear", 2)], 1)).await;
    assert!(matches!(why, Refusal::InvalidField { .. }), "{why:?}");
    let why = refused(&fixture, expecting(&[("a", 1), ("dear", 1)], 1)).await;
    assert!(matches!(why, Refusal::InvalidField { .. }), "{why:?}");
    let why = refused(&fixture, expecting(&[("a", 11)], 1_000)).await;
    let current = Money::from_minor(1_100);
    assert_eq!(why, Refusal::PriceChanged { current }, "before the stock");
    let why = refused(&fixture, expecting(&[("a", 11)], 1_100)).await;
    assert!(matches!(why, Refusal::OutOfStock(_)), "{why:?}");
}

pub(super) async fn a_checkout_orders_exactly_the_cart(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    fixture.stocked("b", 10).await;
    let cart = fixture.set_all(&user("u"), &[("b", 2), ("a", 3)], at(1)).await.unwrap();
    let order = fixture.checkout("u", at(5)).await.unwrap();
    assert_eq!(order.lines, [line("a", 100, 3), line("b", 100, 2)]);
    assert_eq!(order.total, Money::from_minor(500));
    assert_eq!(fixture.active(&user("u"), at(5)).await, None);
    let carts = fixture.store.carts(&user("u"), at(5), PageRequest::first(5)).await.unwrap().items;
    assert_eq!(carts.len(), 1);
    let closed = &carts[0];
    assert_eq!(
        (closed.cart_id, closed.status, closed.order_id),
        (cart.cart_id, CartStatus::Ordered, Some(order.order_id))
    );
    assert_eq!(closed.expires_at, at(5 + 30 * DAY));
    assert!(closed.version > cart.version);
    assert_eq!(quantities(closed), [("a", 3), ("b", 2)]);
    assert_eq!(counts(&fixture, "u", "north").await, (1, 1, 1));

    assert_eq!(refusal(fixture.checkout("u", at(6)).await), Refusal::CartEmpty, "the second of two");
    let next = fixture.set(&user("u"), "a", 1, at(7)).await;
    assert_ne!(next.cart_id, cart.cart_id);
    fixture.audit_closes().await;
}

pub(super) async fn a_checkout_needs_a_cart_with_lines(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let checkout = |seconds| fixture.ordering("u", whole_cart(), at(seconds));
    assert_eq!(refused(&fixture, checkout(0)).await, Refusal::CartEmpty);
    fixture.set(&user("u"), "a", 1, at(0)).await;
    fixture.remove(&user("u"), "a", at(1)).await;
    assert_eq!(refused(&fixture, checkout(2)).await, Refusal::CartEmpty);
    fixture.set(&user("u"), "a", 1, at(3)).await;
    assert_eq!(refused(&fixture, checkout(3 + 30 * DAY)).await, Refusal::CartEmpty, "expired");
}

pub(super) async fn a_refused_checkout_leaves_the_cart(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let cart = fixture.set(&user("u"), "a", 11, at(0)).await;
    let why = refused(&fixture, fixture.ordering("u", whole_cart(), at(1))).await;
    assert!(matches!(why, Refusal::OutOfStock(_)), "{why:?}");
    let expecting = |expected| {
        let basket = Basket::Cart { expected_version: Some(expected), lifetime: LIFETIME };
        fixture.ordering("u", basket, at(1))
    };
    for wrong in [0, cart.version + 1] {
        let why = refused(&fixture, expecting(wrong)).await;
        let current = Some(cart.clone());
        assert_eq!(why, Refusal::CartVersion { current }, "before anything else");
    }
    let of_unknown = PlaceOrder { user_id: user_id("unknown"), ..expecting(1) };
    assert_eq!(refused(&fixture, of_unknown).await, Refusal::CartVersion { current: None });
    let changed = fixture.set(&user("u"), "a", 10, at(2)).await;
    let done = fixture.store.place_order(expecting(changed.version)).await.unwrap();
    assert_eq!(done.value.units(), 10);
}

pub(super) async fn an_order_takes_the_units_of_expired_holds(fixture: Fixture) {
    fixture.stocked("a", 5).await;
    fixture.reserve(&[("a", 5)], at(0)).await.unwrap();
    assert!(fixture.order("u", &[("a", 5)], at(HOLD - 1)).await.is_err());
    fixture.order("u", &[("a", 5)], at(HOLD)).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(HOLD)).await, (5, 5));
    fixture.audit_closes().await;
}

pub(super) async fn an_order_of_a_hundred_lines_is_whole(fixture: Fixture) {
    let names: Vec<String> = (0..100).map(|number| format!("p{number}")).collect();
    for name in &names {
        fixture.stocked(name, 2).await;
    }
    let mut lines: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 2)).collect();
    lines.reverse();
    let order = fixture.order("u", &lines, at(1)).await.unwrap();
    assert_eq!((order.lines.len(), order.total), (100, Money::from_minor(20_000)));
    let kept: Vec<&str> = order.lines.iter().map(|line| line.product_id.as_str()).collect();
    let listed: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
    assert_eq!(kept, listed, "in the order they were listed");
    assert_eq!(fixture.store.order(order.order_id).await, Ok(Some(order.clone())));
    cancelled_gives_back(&fixture, &order, at(2)).await;
}

async fn cancelled_gives_back(fixture: &Fixture, order: &Order, now: Timestamp) {
    fixture.status(order.order_id, OrderStatus::Cancelled, now).await.unwrap();
    for line in &order.lines {
        assert_eq!(fixture.level(line.product_id.as_str(), "north", now).await, (2, 0));
    }
    fixture.audit_closes().await;
}
