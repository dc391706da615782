//! Cases of order lists: of a user, of a zone, of a period, and the sales report.

use mw_domain::{Money, Order, OrderStatus, Period, Timestamp};

use super::fixtures::{
    DAY, Fixture, HOUR, at, bad_positions, demands, priced_product, refusal, user_id, walk_every_way, zone,
};
use crate::Refusal;
use crate::orders::{Basket, PlaceOrder, Sales};

const ALL_TIME: Period = Period::ALL;

const fn period(from: Timestamp, to: Timestamp) -> Period {
    Period { from, to }
}

async fn order_in(fixture: &Fixture, user: &str, of_zone: &str, quantity: u32, now: Timestamp) -> Order {
    let command = PlaceOrder {
        geo_zone: zone(of_zone),
        ..fixture.ordering(user, Basket::Lines(demands(&[("a", quantity)])), now)
    };
    fixture.store.place_order(command).await.unwrap().value
}

async fn two_zones(fixture: &Fixture) {
    fixture.put(priced_product("a", 150)).await;
    for name in ["north", "south"] {
        fixture.on_hand("a", name, 10_000, at(0)).await.unwrap();
    }
}

async fn of_user(fixture: &Fixture, user: &str, period: Period) -> Vec<Order> {
    let user = user_id(user);
    walk_every_way(async |request| fixture.store.user_orders(&user, period, request).await).await
}

async fn of_zone(fixture: &Fixture, name: Option<&str>, period: Period) -> Vec<Order> {
    let zone = name.map(zone);
    walk_every_way(async |request| fixture.store.orders(zone.as_ref(), period, request).await).await
}

pub(super) async fn lists_are_newest_first_over_many_days(fixture: Fixture) {
    two_zones(&fixture).await;
    let (mut mine, mut north, mut all) = (Vec::new(), Vec::new(), Vec::new());
    // Over two months, some on one day, some of one instant: the latter are ordered by id.
    for number in 0..24 {
        let now = at((number / 2) * 5 * DAY + (number / 4) * HOUR);
        let user = if number % 3 == 0 { "v" } else { "u" };
        let in_zone = if number % 4 == 1 { "south" } else { "north" };
        let order = order_in(&fixture, user, in_zone, 1, now).await;
        if user == "u" {
            mine.insert(0, order.clone());
        }
        if in_zone == "north" {
            north.insert(0, order.clone());
        }
        all.insert(0, order);
    }
    assert_eq!(of_user(&fixture, "u", ALL_TIME).await, mine);
    assert_eq!(of_user(&fixture, "unknown", ALL_TIME).await, []);
    let long = period(at(-DAY), at(100 * DAY));
    assert_eq!(of_zone(&fixture, Some("north"), long).await, north);
    assert_eq!(of_zone(&fixture, None, long).await, all);
    assert_eq!(of_zone(&fixture, Some("west"), long).await, []);
}

pub(super) async fn a_period_has_its_start_and_not_its_end(fixture: Fixture) {
    two_zones(&fixture).await;
    let mut ids = Vec::new();
    for seconds in [0, 1, DAY, DAY + 1, 2 * DAY] {
        ids.push(order_in(&fixture, "u", "north", 1, at(seconds)).await.order_id);
    }
    let between = [
        (period(at(0), at(DAY)), &ids[0..2]),
        (period(at(1), at(2 * DAY)), &ids[1..4]),
        (period(at(1), at(2 * DAY + 1)), &ids[1..5]),
        (period(at(DAY + 1), at(DAY + 1)), &[]),
        (period(at(DAY + 1), at(DAY + 1).plus_millis(1)), &ids[3..4]),
        (period(at(DAY), at(0)), &[]),
    ];
    for (period, expected) in between {
        let expected: Vec<_> = expected.iter().rev().copied().collect();
        let found = |orders: Vec<Order>| orders.iter().map(|order| order.order_id).collect::<Vec<_>>();
        assert_eq!(found(of_user(&fixture, "u", period).await), expected, "{period:?}");
        assert_eq!(found(of_zone(&fixture, None, period).await), expected, "{period:?}");
        assert_eq!(found(of_zone(&fixture, Some("north"), period).await), expected, "{period:?}");
    }
    let day = Period::day(at(DAY).date());
    assert_eq!(of_zone(&fixture, None, day).await.len(), 2);
}

pub(super) async fn lists_show_orders_as_they_are_now(fixture: Fixture) {
    two_zones(&fixture).await;
    let order = order_in(&fixture, "u", "north", 1, at(0)).await;
    let paid = fixture.status(order.order_id, OrderStatus::Paid, at(5)).await.unwrap();
    assert_eq!(of_user(&fixture, "u", ALL_TIME).await, std::slice::from_ref(&paid));
    let day = Period::day(at(0).date());
    assert_eq!(of_zone(&fixture, Some("north"), day).await, std::slice::from_ref(&paid));
    assert_eq!(of_zone(&fixture, None, day).await, [paid]);
}

pub(super) async fn sales_count_what_was_paid_and_stayed_so(fixture: Fixture) {
    use OrderStatus::{Cancelled, Delivered, Paid, Returned, Shipped};
    two_zones(&fixture).await;
    let ways: [&[OrderStatus]; 7] = [
        &[],
        &[Cancelled],
        &[Paid],
        &[Paid, Cancelled],
        &[Paid, Shipped],
        &[Paid, Shipped, Delivered],
        &[Paid, Shipped, Delivered, Returned],
    ];
    for (quantity, way) in (1..).zip(ways) {
        let order = order_in(&fixture, "u", "north", quantity, at(0)).await;
        for to in way {
            // A later day: a sale counts on the day of the order's creation.
            fixture.status(order.order_id, *to, at(3 * DAY)).await.unwrap();
        }
    }
    let week = period(at(-DAY), at(6 * DAY));
    let expected = Sales {
        date: at(0).date(),
        geo_zone: zone("north"),
        orders: 3,
        units: 3 + 5 + 6,
        revenue: Money::from_minor(150 * (3 + 5 + 6)),
    };
    assert_eq!(fixture.store.sales(None, week).await, Ok(vec![expected]));
}

pub(super) async fn sales_are_by_date_then_zone(fixture: Fixture) {
    two_zones(&fixture).await;
    let sold = [(0, "south", 1), (0, "north", 2), (1, "north", 3), (1, "north", 4), (3, "south", 5)];
    for (day, in_zone, quantity) in sold {
        let order = order_in(&fixture, "u", in_zone, quantity, at(day * DAY)).await;
        fixture.status(order.order_id, OrderStatus::Paid, at(day * DAY)).await.unwrap();
    }
    let row = |day: i64, name, orders, units: u32| Sales {
        date: at(day * DAY).date(),
        geo_zone: zone(name),
        orders,
        units: u64::from(units),
        revenue: Money::from_minor(150 * i64::from(units)),
    };
    let rows = [row(0, "north", 1, 2), row(0, "south", 1, 1), row(1, "north", 2, 7), row(3, "south", 1, 5)];
    let week = period(at(-DAY), at(6 * DAY));
    assert_eq!(fixture.store.sales(None, week).await, Ok(rows.to_vec()));
    let south = fixture.store.sales(Some(&zone("south")), week).await;
    assert_eq!(south, Ok(vec![rows[1].clone(), rows[3].clone()]));
    assert_eq!(fixture.store.sales(Some(&zone("west")), week).await, Ok(vec![]));
    let whole_day = fixture.store.sales(None, Period::day(at(DAY).date())).await;
    assert_eq!(whole_day, Ok(vec![rows[2].clone()]));
}

pub(super) async fn sales_of_a_part_of_a_day_count_that_part(fixture: Fixture) {
    two_zones(&fixture).await;
    for (hour, quantity) in [(0, 1), (1, 2), (2, 4), (3, 8)] {
        let order = order_in(&fixture, "u", "north", quantity, at(hour * HOUR)).await;
        fixture.status(order.order_id, OrderStatus::Paid, at(4 * HOUR)).await.unwrap();
    }
    let units = async |from, to| {
        let rows = fixture.store.sales(None, period(from, to)).await.unwrap();
        rows.iter().map(|row| row.units).sum::<u64>()
    };
    assert_eq!(units(at(HOUR), at(3 * HOUR)).await, 2 + 4);
    assert_eq!(units(at(HOUR).plus_millis(1), at(DAY)).await, 4 + 8);
    assert_eq!(units(at(-2 * DAY), at(2 * HOUR)).await, 1 + 2);
    assert_eq!(units(at(-2 * DAY), at(2 * DAY)).await, 15);
    assert_eq!(units(at(4 * HOUR), at(2 * DAY)).await, 0);
    assert_eq!(units(at(2 * DAY), at(-2 * DAY)).await, 0);
}

pub(super) async fn bad_positions_in_orders_are_refused(fixture: Fixture) {
    two_zones(&fixture).await;
    order_in(&fixture, "u", "north", 1, at(0)).await;
    let day = Period::day(at(0).date());
    for page in bad_positions() {
        let store = &fixture.store;
        let of_user = store.user_orders(&user_id("u"), ALL_TIME, page.clone()).await;
        assert_eq!(refusal(of_user), Refusal::InvalidCursor);
        let north = store.orders(Some(&zone("north")), day, page.clone()).await;
        assert_eq!(refusal(north), Refusal::InvalidCursor);
        let all = store.orders(None, day, page).await;
        assert_eq!(refusal(all), Refusal::InvalidCursor);
    }
}
