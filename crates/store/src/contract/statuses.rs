//! Cases of order statuses, and of the units that move with them.

use mw_domain::orders::{EventKind, IllegalTransition};
use mw_domain::{Order, OrderEvent, OrderId, OrderStatus};

use super::fixtures::{DAY, Fixture, PAYMENT_WINDOW, at, just_before, moving, product_id, refusal, user_id};
use crate::Refusal;
use crate::orders::SetStatus;

use OrderStatus::{Cancelled, Created, Delivered, Paid, Returned, Shipped};

/// An order of 3 out of 10 units.
async fn placed(fixture: &Fixture) -> Order {
    fixture.stocked("a", 10).await;
    fixture.order("u", &[("a", 3)], at(0)).await.unwrap()
}

/// Moves an order to a status by the shortest path.
async fn walk_to(fixture: &Fixture, order: &Order, status: OrderStatus) {
    let way: &[OrderStatus] = match status {
        Created => &[],
        Paid => &[Paid],
        Shipped => &[Paid, Shipped],
        Delivered => &[Paid, Shipped, Delivered],
        Returned => &[Paid, Shipped, Delivered, Returned],
        Cancelled => &[Cancelled],
    };
    for to in way {
        fixture.status(order.order_id, *to, at(1)).await.unwrap();
    }
}

const fn expected_level(status: OrderStatus) -> (u64, u64) {
    match status {
        Created => (10, 3),
        Paid | Shipped | Delivered => (7, 0),
        Returned | Cancelled => (10, 0),
    }
}

pub(super) async fn units_move_with_every_step(fixture: Fixture) {
    let order = placed(&fixture).await;
    assert_eq!(fixture.level("a", "north", at(0)).await, expected_level(Created));
    for (seconds, to) in (1..).zip([Paid, Shipped, Delivered, Returned]) {
        let moved = fixture.status(order.order_id, to, at(seconds)).await.unwrap();
        assert_eq!((moved.status, moved.updated_at, moved.created_at), (to, at(seconds), at(0)));
        assert_eq!(moved.version, 1 + u64::try_from(seconds).unwrap());
        assert_eq!(fixture.store.order(order.order_id).await, Ok(Some(moved)));
        assert_eq!(fixture.level("a", "north", at(seconds)).await, expected_level(to), "{to}");
        fixture.audit_closes().await;
    }
}

pub(super) async fn cancelling_gives_back_what_is_held_or_taken(fixture: Fixture) {
    let order = placed(&fixture).await;
    fixture.status(order.order_id, Cancelled, at(1)).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(9)).await, (10, 0));
    let paid = fixture.order("u", &[("a", 4)], at(2)).await.unwrap();
    fixture.status(paid.order_id, Paid, at(3)).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(3)).await, (6, 0));
    fixture.status(paid.order_id, Cancelled, at(4)).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(4)).await, (10, 0));
    fixture.audit_closes().await;
}

pub(super) async fn every_other_step_is_refused(fixture: Fixture) {
    for (number, from) in OrderStatus::ALL.into_iter().enumerate() {
        let name = format!("p{number}");
        fixture.stocked(&name, 10).await;
        let order = fixture.order("u", &[(&name, 3)], at(0)).await.unwrap();
        walk_to(&fixture, &order, from).await;
        let before = fixture.store.order(order.order_id).await.unwrap().unwrap();
        assert_eq!(before.status, from);
        for to in OrderStatus::ALL.into_iter().filter(|to| from.step(*to).is_err()) {
            let refused = refusal(fixture.status(order.order_id, to, at(2)).await);
            assert_eq!(refused, Refusal::IllegalTransition(IllegalTransition { from, to }));
        }
        assert_eq!(fixture.store.order(order.order_id).await, Ok(Some(before.clone())));
        assert_eq!(fixture.level(&name, "north", at(2)).await, expected_level(from));

        let same = fixture.status(order.order_id, from, at(3)).await;
        assert_eq!(same, Ok(before), "the status it has: nothing happens");
        let events = fixture.store.order_events(order.order_id).await.unwrap().unwrap();
        assert!(events.iter().all(|event| event.at <= at(1)));
        assert_eq!(fixture.level(&name, "north", at(3)).await, expected_level(from));
    }
    fixture.audit_closes().await;
}

pub(super) async fn events_are_listed_newest_first(fixture: Fixture) {
    let order = placed(&fixture).await;
    fixture.status(order.order_id, Paid, at(1)).await.unwrap();
    let command =
        SetStatus { note: Some("курьер 7".to_owned()), ..moving(order.order_id, Shipped, at(1)) };
    fixture.store.set_status(command).await.unwrap();
    let event = |seconds, from, to, note: Option<&str>| OrderEvent {
        at: at(seconds),
        kind: EventKind::Status,
        from: Some(from),
        to,
        note: note.map(str::to_owned),
    };
    let expected =
        vec![event(1, Paid, Shipped, Some("курьер 7")), event(1, Created, Paid, None), order.created_event()];
    assert_eq!(fixture.store.order_events(order.order_id).await, Ok(Some(expected)));
}

pub(super) async fn an_expected_version_guards_a_step(fixture: Fixture) {
    let order = placed(&fixture).await;
    let expecting =
        |to, expected| SetStatus { expected_version: Some(expected), ..moving(order.order_id, to, at(1)) };
    for wrong in [0, 2] {
        let refused = refusal(fixture.store.set_status(expecting(Delivered, wrong)).await);
        let current = order.clone();
        assert_eq!(refused, Refusal::OrderVersion { current }, "checked before the state machine");
    }
    let same = fixture.store.set_status(expecting(Created, 7)).await;
    assert!(matches!(refusal(same), Refusal::OrderVersion { .. }));
    let paid = fixture.store.set_status(expecting(Paid, 1)).await.unwrap().value;
    assert_eq!((paid.status, paid.version), (Paid, 2));
}

pub(super) async fn another_users_order_is_not_found(fixture: Fixture) {
    let order = placed(&fixture).await;
    let cancel = |name: &str, expected_version| SetStatus {
        of_user: Some(user_id(name)),
        expected_version,
        ..moving(order.order_id, Cancelled, at(1))
    };
    let missing = Refusal::OrderNotFound(order.order_id);
    let refused = refusal(fixture.store.set_status(cancel("v", Some(9))).await);
    assert_eq!(refused, missing, "before the version");
    assert_eq!(fixture.level("a", "north", at(1)).await, (10, 3));
    let done = fixture.store.set_status(cancel("u", None)).await.unwrap();
    assert_eq!(done.value.status, Cancelled);
    let unknown = OrderId::new(fixture.uuid());
    let refused = refusal(fixture.status(unknown, Paid, at(1)).await);
    assert_eq!(refused, Refusal::OrderNotFound(unknown));
}

pub(super) async fn an_order_goes_on_after_its_product_is_deleted(fixture: Fixture) {
    let order = placed(&fixture).await;
    fixture.store.delete_product(&product_id("a"), at(1)).await.unwrap();
    for (seconds, to) in (1..).zip([Paid, Shipped, Delivered, Returned]) {
        fixture.status(order.order_id, to, at(seconds)).await.unwrap();
    }
    assert_eq!(fixture.level("a", "north", at(9)).await, (10, 0));
    fixture.audit_closes().await;
}

pub(super) async fn orders_not_paid_in_time_are_cancelled(fixture: Fixture) {
    let order = placed(&fixture).await;
    let paid = fixture.order("u", &[("a", 1)], at(0)).await.unwrap();
    fixture.status(paid.order_id, Paid, at(1)).await.unwrap();
    let later = fixture.order("u", &[("a", 1)], at(1)).await.unwrap();
    let due = order.pay_by;
    assert_eq!(due, at(PAYMENT_WINDOW));
    let cancel = async |now| fixture.store.cancel_unpaid(now, "too late", 10).await.unwrap();
    assert_eq!(cancel(just_before(due)).await, 0);
    assert_eq!(cancel(due).await, 1);
    assert_eq!(cancel(due).await, 0, "once");

    let cancelled = fixture.store.order(order.order_id).await.unwrap().unwrap();
    assert_eq!((cancelled.status, cancelled.version, cancelled.updated_at), (Cancelled, 2, due));
    let events = fixture.store.order_events(order.order_id).await.unwrap().unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!((events[0].at, events[0].to, events[0].note.as_deref()), (due, Cancelled, Some("too late")));
    assert_eq!(fixture.level("a", "north", due).await, (9, 1));
    assert_eq!(cancel(at(9 * DAY)).await, 1, "the later one");
    let later = fixture.store.order(later.order_id).await.unwrap().unwrap();
    assert_eq!(later.status, Cancelled);
    let paid = fixture.store.order(paid.order_id).await.unwrap().unwrap();
    assert_eq!(paid.status, Paid);
    assert_eq!(fixture.level("a", "north", due).await, (9, 0));
    fixture.audit_closes().await;
}

pub(super) async fn unpaid_orders_are_cancelled_a_few_at_a_time(fixture: Fixture) {
    fixture.stocked("a", 100).await;
    for seconds in 0..10 {
        fixture.order("u", &[("a", 1)], at(seconds)).await.unwrap();
    }
    let mut cancelled = 0;
    for _ in 0..10 {
        let count = fixture.store.cancel_unpaid(at(DAY), "late", 3).await.unwrap();
        assert!(count <= 3, "{count} at once");
        cancelled += count;
    }
    assert_eq!(cancelled, 10);
    assert_eq!(fixture.level("a", "north", at(DAY)).await, (100, 0));
    fixture.audit_closes().await;
}

pub(super) async fn an_order_can_be_paid_until_it_is_cancelled(fixture: Fixture) {
    let order = placed(&fixture).await;
    let late = at(PAYMENT_WINDOW + 5);
    fixture.status(order.order_id, Paid, late).await.unwrap();
    assert_eq!(fixture.store.cancel_unpaid(late, "late", 10).await, Ok(0));
    let paid = fixture.store.order(order.order_id).await.unwrap().unwrap();
    assert_eq!(paid.status, Paid);
}
