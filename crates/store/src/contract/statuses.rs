//! Cases of the order's way through its states, and of the units that move with it.

use mw_domain::order::{EventKind, IllegalTransition};
use mw_domain::{Order, OrderEvent, OrderId, OrderStatus};

use super::given::{DAY, Desk, PAYMENT_WINDOW, at, just_before, moving, product_id, refusal, user_id};
use crate::Refusal;
use crate::orders::SetStatus;

use OrderStatus::{Cancelled, Created, Delivered, Paid, Returned, Shipped};

/// An order of 3 out of 10 units.
async fn placed(desk: &Desk) -> Order {
    desk.stocked("a", 10).await;
    desk.order("u", &[("a", 3)], at(0)).await.unwrap()
}

/// Walks an order to a status along the shortest way.
async fn walk_to(desk: &Desk, order: &Order, status: OrderStatus) {
    let way: &[OrderStatus] = match status {
        Created => &[],
        Paid => &[Paid],
        Shipped => &[Paid, Shipped],
        Delivered => &[Paid, Shipped, Delivered],
        Returned => &[Paid, Shipped, Delivered, Returned],
        Cancelled => &[Cancelled],
    };
    for to in way {
        desk.status(order.order_id, *to, at(1)).await.unwrap();
    }
}

const fn expected_level(status: OrderStatus) -> (u64, u64) {
    match status {
        Created => (10, 3),
        Paid | Shipped | Delivered => (7, 0),
        Returned | Cancelled => (10, 0),
    }
}

pub(super) async fn units_move_with_every_step(desk: Desk) {
    let order = placed(&desk).await;
    assert_eq!(desk.level("a", "north", at(0)).await, expected_level(Created));
    for (seconds, to) in (1..).zip([Paid, Shipped, Delivered, Returned]) {
        let moved = desk.status(order.order_id, to, at(seconds)).await.unwrap();
        assert_eq!((moved.status, moved.updated_at, moved.created_at), (to, at(seconds), at(0)));
        assert_eq!(moved.version, 1 + u64::try_from(seconds).unwrap());
        assert_eq!(desk.store.order(order.order_id).await, Ok(Some(moved)));
        assert_eq!(desk.level("a", "north", at(seconds)).await, expected_level(to), "{to}");
        desk.audit_closes().await;
    }
}

pub(super) async fn cancelling_gives_back_what_is_held_or_taken(desk: Desk) {
    let order = placed(&desk).await;
    desk.status(order.order_id, Cancelled, at(1)).await.unwrap();
    assert_eq!(desk.level("a", "north", at(1)).await, (10, 0));
    let paid = desk.order("u", &[("a", 4)], at(2)).await.unwrap();
    desk.status(paid.order_id, Paid, at(3)).await.unwrap();
    assert_eq!(desk.level("a", "north", at(3)).await, (6, 0));
    desk.status(paid.order_id, Cancelled, at(4)).await.unwrap();
    assert_eq!(desk.level("a", "north", at(4)).await, (10, 0));
    desk.audit_closes().await;
}

pub(super) async fn every_other_step_is_refused(desk: Desk) {
    for (number, from) in OrderStatus::ALL.into_iter().enumerate() {
        let name = format!("p{number}");
        desk.stocked(&name, 10).await;
        let order = desk.order("u", &[(&name, 3)], at(0)).await.unwrap();
        walk_to(&desk, &order, from).await;
        let before = desk.store.order(order.order_id).await.unwrap().unwrap();
        assert_eq!(before.status, from);
        for to in OrderStatus::ALL.into_iter().filter(|to| from.step(*to).is_err()) {
            let refused = refusal(desk.status(order.order_id, to, at(2)).await);
            assert_eq!(refused, Refusal::IllegalTransition(IllegalTransition { from, to }));
        }
        assert_eq!(desk.store.order(order.order_id).await, Ok(Some(before.clone())));
        assert_eq!(desk.level(&name, "north", at(2)).await, expected_level(from));

        let same = desk.status(order.order_id, from, at(3)).await;
        assert_eq!(same, Ok(before), "the status it has: nothing happens");
        let events = desk.store.order_events(order.order_id).await.unwrap().unwrap();
        assert!(events.iter().all(|event| event.at <= at(1)));
        assert_eq!(desk.level(&name, "north", at(3)).await, expected_level(from));
    }
    desk.audit_closes().await;
}

pub(super) async fn events_tell_the_way_newest_first(desk: Desk) {
    let order = placed(&desk).await;
    desk.status(order.order_id, Paid, at(1)).await.unwrap();
    let command =
        SetStatus { note: Some("курьер 7".to_owned()), ..moving(order.order_id, Shipped, at(1)) };
    desk.store.set_status(command).await.unwrap();
    let event = |seconds, from, to, note: Option<&str>| OrderEvent {
        at: at(seconds),
        kind: EventKind::Status,
        from: Some(from),
        to,
        note: note.map(str::to_owned),
    };
    let expected =
        vec![event(1, Paid, Shipped, Some("курьер 7")), event(1, Created, Paid, None), order.created_event()];
    assert_eq!(desk.store.order_events(order.order_id).await, Ok(Some(expected)));
}

pub(super) async fn an_expected_version_guards_a_step(desk: Desk) {
    let order = placed(&desk).await;
    let expecting =
        |to, expected| SetStatus { expected_version: Some(expected), ..moving(order.order_id, to, at(1)) };
    for wrong in [0, 2] {
        let refused = refusal(desk.store.set_status(expecting(Delivered, wrong)).await);
        let current = order.clone();
        assert_eq!(refused, Refusal::OrderVersion { current }, "before the machine is asked");
    }
    let same = desk.store.set_status(expecting(Created, 7)).await;
    assert!(matches!(refusal(same), Refusal::OrderVersion { .. }));
    let paid = desk.store.set_status(expecting(Paid, 1)).await.unwrap().value;
    assert_eq!((paid.status, paid.version), (Paid, 2));
}

pub(super) async fn another_users_order_is_not_found(desk: Desk) {
    let order = placed(&desk).await;
    let cancel = |name: &str, expected_version| SetStatus {
        of_user: Some(user_id(name)),
        expected_version,
        ..moving(order.order_id, Cancelled, at(1))
    };
    let missing = Refusal::OrderNotFound(order.order_id);
    let refused = refusal(desk.store.set_status(cancel("v", Some(9))).await);
    assert_eq!(refused, missing, "before the version");
    assert_eq!(desk.level("a", "north", at(1)).await, (10, 3));
    let done = desk.store.set_status(cancel("u", None)).await.unwrap();
    assert_eq!(done.value.status, Cancelled);
    let unknown = OrderId::new(desk.uuid());
    let refused = refusal(desk.status(unknown, Paid, at(1)).await);
    assert_eq!(refused, Refusal::OrderNotFound(unknown));
}

pub(super) async fn an_order_goes_on_after_its_product_is_deleted(desk: Desk) {
    let order = placed(&desk).await;
    desk.store.delete_product(&product_id("a")).await.unwrap();
    for (seconds, to) in (1..).zip([Paid, Shipped, Delivered, Returned]) {
        desk.status(order.order_id, to, at(seconds)).await.unwrap();
    }
    assert_eq!(desk.level("a", "north", at(9)).await, (10, 0));
    desk.audit_closes().await;
}

pub(super) async fn orders_not_paid_in_time_are_cancelled(desk: Desk) {
    let order = placed(&desk).await;
    let paid = desk.order("u", &[("a", 1)], at(0)).await.unwrap();
    desk.status(paid.order_id, Paid, at(1)).await.unwrap();
    let later = desk.order("u", &[("a", 1)], at(1)).await.unwrap();
    let due = order.pay_by;
    assert_eq!(due, at(PAYMENT_WINDOW));
    let cancel = async |now| desk.store.cancel_unpaid(now, "too late", 10).await.unwrap();
    assert_eq!(cancel(just_before(due)).await, 0);
    assert_eq!(cancel(due).await, 1);
    assert_eq!(cancel(due).await, 0, "once");

    let cancelled = desk.store.order(order.order_id).await.unwrap().unwrap();
    assert_eq!((cancelled.status, cancelled.version, cancelled.updated_at), (Cancelled, 2, due));
    let events = desk.store.order_events(order.order_id).await.unwrap().unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!((events[0].at, events[0].to, events[0].note.as_deref()), (due, Cancelled, Some("too late")));
    assert_eq!(desk.level("a", "north", due).await, (9, 1));
    assert_eq!(cancel(at(9 * DAY)).await, 1, "the later one");
    let later = desk.store.order(later.order_id).await.unwrap().unwrap();
    assert_eq!(later.status, Cancelled);
    let paid = desk.store.order(paid.order_id).await.unwrap().unwrap();
    assert_eq!(paid.status, Paid);
    assert_eq!(desk.level("a", "north", due).await, (9, 0));
    desk.audit_closes().await;
}

pub(super) async fn unpaid_orders_are_cancelled_a_few_at_a_time(desk: Desk) {
    desk.stocked("a", 100).await;
    for seconds in 0..10 {
        desk.order("u", &[("a", 1)], at(seconds)).await.unwrap();
    }
    let mut cancelled = 0;
    for _ in 0..10 {
        let count = desk.store.cancel_unpaid(at(DAY), "late", 3).await.unwrap();
        assert!(count <= 3, "{count} at once");
        cancelled += count;
    }
    assert_eq!(cancelled, 10);
    assert_eq!(desk.level("a", "north", at(DAY)).await, (100, 0));
    desk.audit_closes().await;
}

pub(super) async fn an_order_can_be_paid_until_it_is_cancelled(desk: Desk) {
    let order = placed(&desk).await;
    let late = at(PAYMENT_WINDOW + 5);
    desk.status(order.order_id, Paid, late).await.unwrap();
    assert_eq!(desk.store.cancel_unpaid(late, "late", 10).await, Ok(0));
    let paid = desk.store.order(order.order_id).await.unwrap().unwrap();
    assert_eq!(paid.status, Paid);
}
