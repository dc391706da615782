//! Cases of many at once: nothing is lost, nothing is done twice, no unit is sold twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mw_domain::{MergeMode, Order, OrderStatus, ReservationStatus, SessionId};
use tokio::task::JoinHandle;

use super::given::{
    Desk, at, crowd, demands, guest, moving, once, product_id, quantities, refusal, session_id, user, walk,
    whole_cart,
};
use crate::carts::Merge;
use crate::orders::{Basket, PlaceOrder, SetStatus};
use crate::stock::Adjust;
use crate::{Done, Refusal, Result};

pub(super) async fn changes_of_different_lines_never_lose_one_another(desk: Desk) {
    let desk = Arc::new(desk);
    let carts = crowd(&desk, 50, |desk, number| async move {
        desk.set(&user("u"), &format!("p{number:02}"), 1, at(1)).await
    })
    .await;
    let cart = desk.active(&user("u"), at(2)).await.unwrap();
    assert_eq!((cart.lines.len(), cart.version), (50, 50));
    assert!(carts.iter().all(|seen| seen.cart_id == cart.cart_id), "one cart was opened");
    let mut versions: Vec<u64> = carts.iter().map(|seen| seen.version).collect();
    versions.sort_unstable();
    assert!(versions.into_iter().eq(1..=50));

    crowd(&desk, 50, |desk, number| async move {
        if number % 2 == 0 {
            desk.remove(&user("u"), &format!("p{number:02}"), at(3)).await;
        } else {
            desk.set(&user("u"), &format!("p{number:02}"), 9, at(3)).await;
        }
    })
    .await;
    let cart = desk.active(&user("u"), at(4)).await.unwrap();
    assert_eq!(cart.lines.len(), 25);
    assert!(cart.lines.iter().all(|line| line.quantity == 9));
    assert_eq!(cart.version, 100);
}

pub(super) async fn of_one_line_the_last_wins(desk: Desk) {
    let desk = Arc::new(desk);
    let carts = crowd(&desk, 40, |desk, number| async move {
        let quantity = u32::try_from(number).unwrap() + 1;
        desk.set(&user("u"), "a", quantity, at(1)).await
    })
    .await;
    let cart = desk.active(&user("u"), at(2)).await.unwrap();
    let last = carts.into_iter().max_by_key(|seen| seen.version).unwrap();
    assert_eq!((cart.version, &cart), (40, &last));
}

pub(super) async fn one_of_those_who_expect_a_version_wins(desk: Desk) {
    let desk = Arc::new(desk);
    let answers = crowd(&desk, 20, |desk, number| async move {
        let command = crate::carts::SetLine {
            expected_version: Some(0),
            ..desk.line(&user("u"), &format!("p{number}"), 1, at(1))
        };
        desk.store.set_line(command).await
    })
    .await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    let cart = desk.active(&user("u"), at(2)).await.unwrap();
    assert_eq!((cart.lines.len(), cart.version), (1, 1));
}

pub(super) async fn merge_twins_move_each_line_once(desk: Desk) {
    let desk = Arc::new(desk);
    for round in 0..5 {
        let (own, session) = (format!("u{round}"), format!("s{round}"));
        let lines: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
        for line in &lines {
            desk.set(&user(&own), line, 2, at(0)).await;
            desk.set(&guest(&session), line, 3, at(0)).await;
        }
        let merged = crowd(&desk, 16, |desk, _| {
            let (own, session) = (own.clone(), session.clone());
            async move { desk.merge(&own, &session, MergeMode::Sum, at(1)).await }
        })
        .await;
        let did: Vec<usize> =
            merged.iter().map(|merged| merged.changes.len()).filter(|count| *count > 0).collect();
        assert_eq!(did, [10], "one of them moved all lines");
        let cart = desk.active(&user(&own), at(2)).await.unwrap();
        assert_eq!(cart.lines.len(), 10);
        assert!(cart.lines.iter().all(|line| line.quantity == 5), "{cart:?}");
    }
}

pub(super) async fn a_guests_lines_go_to_one_of_many_users(desk: Desk) {
    let desk = Arc::new(desk);
    desk.set_all(&guest("s"), &[("a", 1), ("b", 2)], at(0)).await;
    crowd(&desk, 16, |desk, number| async move {
        desk.merge(&format!("u{number}"), "s", MergeMode::Sum, at(1)).await
    })
    .await;
    let mut found = Vec::new();
    for number in 0..16 {
        found.extend(desk.active(&user(&format!("u{number}")), at(2)).await);
    }
    assert_eq!(found.len(), 1);
    assert_eq!(quantities(&found[0]), [("a", 1), ("b", 2)]);
}

pub(super) async fn merges_and_line_changes_at_once_keep_every_line(desk: Desk) {
    let desk = Arc::new(desk);
    for number in 0..10 {
        let session = guest(&format!("s{number}"));
        desk.set(&session, &format!("guest{number}"), 1, at(0)).await;
        desk.set(&session, "shared", 1, at(0)).await;
    }
    crowd(&desk, 30, |desk, number| async move {
        if number < 10 {
            desk.merge("u", &format!("s{number}"), MergeMode::Sum, at(1)).await;
        } else {
            desk.set(&user("u"), &format!("own{number}"), 1, at(1)).await;
        }
    })
    .await;
    let cart = desk.active(&user("u"), at(2)).await.unwrap();
    assert_eq!(cart.lines.len(), 31);
    let shared = cart.lines.iter().find(|line| line.product_id == product_id("shared"));
    assert_eq!(shared.unwrap().quantity, 10);
}

pub(super) async fn no_reader_sees_the_same_units_in_both_carts(desk: Desk) {
    let desk = Arc::new(desk);
    for round in 0..10 {
        let (own, session) = (format!("u{round}"), format!("s{round}"));
        desk.set_all(&guest(&session), &[("a", 1), ("b", 1)], at(0)).await;
        crowd(&desk, 6, |desk, number| {
            let (own, session) = (own.clone(), session.clone());
            async move {
                if number == 0 {
                    desk.merge(&own, &session, MergeMode::Sum, at(1)).await;
                }
                for _ in 0..20 {
                    let own = desk.active(&user(&own), at(1)).await;
                    let of_guest = desk.active(&guest(&session), at(1)).await;
                    let own_lines = own.map_or(0, |cart| cart.lines.len());
                    assert!(own_lines != 1, "half of the lines");
                    assert!(own_lines == 0 || of_guest.is_none(), "the same units twice");
                }
            }
        })
        .await;
    }
}

pub(super) async fn of_two_checkouts_one_wins(desk: Desk) {
    let desk = Arc::new(desk);
    desk.stocked("a", 100).await;
    for round in 0..10 {
        let own = format!("u{round}");
        desk.set(&user(&own), "a", 2, at(0)).await;
        let answers = crowd(&desk, 4, |desk, _| {
            let command = desk.ordering(&own, whole_cart(), at(1));
            async move { desk.store.place_order(command).await }
        })
        .await;
        let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1);
        for answer in lost {
            assert_eq!(refusal(answer), Refusal::CartEmpty);
        }
    }
    assert_eq!(desk.level("a", "north", at(2)).await, (100, 20));
    desk.audit_closes().await;
}

/// Reads a figure over and over; whatever it sees must hold.
struct Watcher {
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Watcher {
    fn start(desk: &Arc<Desk>, name: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (desk, stopped) = (Arc::clone(desk), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let (on_hand, reserved) = desk.level(name, "north", at(1)).await;
                assert!(reserved <= on_hand, "{reserved} of {on_hand}");
                tokio::task::yield_now().await;
            }
        });
        Self { stop, task }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

pub(super) async fn every_unit_is_sold_once(desk: Desk) {
    let desk = Arc::new(desk);
    desk.stocked("hit", 32).await;
    let watcher = Watcher::start(&desk, "hit");
    let answers = crowd(&desk, 64, |desk, number| async move {
        desk.order(&format!("u{number}"), &[("hit", 1)], at(1)).await
    })
    .await;
    watcher.end().await;
    let (sold, missed): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((sold.len(), missed.len()), (32, 32));
    for answer in missed {
        assert!(matches!(refusal(answer), Refusal::OutOfStock(_)));
    }
    assert_eq!(desk.level("hit", "north", at(2)).await, (32, 32));
    let day = mw_domain::Period::day(at(1).date());
    let listed = walk(10, async |request| desk.store.orders(None, day, request).await).await;
    assert_eq!(listed.unwrap().len(), 32);
    desk.audit_closes().await;
}

pub(super) async fn orders_and_holds_of_two_products_never_oversell(desk: Desk) {
    let desk = Arc::new(desk);
    desk.stocked("a", 20).await;
    desk.stocked("b", 20).await;
    let watcher = Watcher::start(&desk, "a");
    let answers = crowd(&desk, 48, |desk, number| async move {
        // In both orders, so that whoever locks must not block whoever comes the other way.
        let lines = if number % 2 == 0 { [("a", 1), ("b", 1)] } else { [("b", 1), ("a", 1)] };
        if number % 3 == 0 {
            desk.reserve(&lines, at(1)).await.is_ok()
        } else {
            desk.order("u", &lines, at(1)).await.is_ok()
        }
    })
    .await;
    watcher.end().await;
    assert_eq!(answers.into_iter().filter(|done| *done).count(), 20);
    for name in ["a", "b"] {
        assert_eq!(desk.level(name, "north", at(2)).await, (20, 20));
    }
    desk.audit_closes().await;
}

pub(super) async fn adjustments_add_up(desk: Desk) {
    let desk = Arc::new(desk);
    desk.stocked("a", 100).await;
    crowd(&desk, 40, |desk, number| async move {
        let delta = if number % 2 == 0 { 3 } else { -1 };
        let command = desk.adjusting("a", delta, at(1));
        desk.store.adjust(command).await.unwrap();
    })
    .await;
    assert_eq!(desk.level("a", "north", at(2)).await, (140, 0));
    desk.audit_closes().await;
}

/// One of the twins was first; all have its answer.
fn one_answer<T: PartialEq + std::fmt::Debug>(answers: Vec<Result<Done<T>>>) -> T {
    let answers: Vec<Done<T>> = answers.into_iter().map(Result::unwrap).collect();
    let first = answers.iter().filter(|done| !done.replayed).count();
    assert_eq!(first, 1, "one of the twins did it");
    let mut values = answers.into_iter().map(|done| done.value);
    let value = values.next().unwrap();
    assert!(values.all(|other| other == value), "all have its answer");
    value
}

pub(super) async fn twins_with_one_key_have_one_effect(desk: Desk) {
    let desk = Arc::new(desk);
    desk.stocked("a", 100).await;
    let order: Order = one_answer(
        crowd(&desk, 24, |desk, _| async move {
            let command = PlaceOrder {
                once: Some(once("order", 1, at(1))),
                ..desk.ordering("u", Basket::Lines(demands(&[("a", 2)])), at(1))
            };
            desk.store.place_order(command).await
        })
        .await,
    );
    assert_eq!(desk.store.order(order.order_id).await, Ok(Some(order)));
    assert_eq!(desk.level("a", "north", at(2)).await, (100, 2));
    one_answer(
        crowd(&desk, 24, |desk, _| async move {
            let command = Adjust { once: Some(once("adjust", 1, at(3))), ..desk.adjusting("a", 5, at(3)) };
            desk.store.adjust(command).await
        })
        .await,
    );
    assert_eq!(desk.level("a", "north", at(4)).await, (105, 2));
    desk.audit_closes().await;
}

pub(super) async fn keyed_merge_twins_have_one_effect(desk: Desk) {
    let desk = Arc::new(desk);
    desk.set(&guest("s"), "b", 3, at(5)).await;
    let merged = one_answer(
        crowd(&desk, 24, |desk, _| async move {
            let command = Merge {
                once: Some(once("merge", 1, at(6))),
                ..desk.merging("u", "s", MergeMode::Sum, at(6))
            };
            desk.store.merge(command).await
        })
        .await,
    );
    assert_eq!(merged.changes.len(), 1);
    assert_eq!(desk.active(&user("u"), at(7)).await, merged.cart);
}

pub(super) async fn a_step_of_status_is_taken_once(desk: Desk) {
    let desk = Arc::new(desk);
    desk.stocked("a", 100).await;
    for _ in 0..10 {
        let order = desk.order("u", &[("a", 1)], at(1)).await.unwrap();
        let answers = crowd(&desk, 8, |desk, number| {
            let to = if number % 2 == 0 { OrderStatus::Paid } else { OrderStatus::Cancelled };
            let command: SetStatus = moving(order.order_id, to, at(2));
            async move { desk.store.set_status(command).await }
        })
        .await;
        assert!(answers.iter().any(Result::is_ok));
        let events = desk.store.order_events(order.order_id).await.unwrap().unwrap();
        let last = desk.store.order(order.order_id).await.unwrap().unwrap();
        assert_eq!(events.len() as u64, last.version, "an event a step");
        assert_eq!(last.status, OrderStatus::Cancelled, "whoever comes last may cancel");
    }
    assert_eq!(desk.level("a", "north", at(3)).await, (100, 0));
    desk.audit_closes().await;
}

pub(super) async fn a_hold_ends_in_one_way(desk: Desk) {
    let desk = Arc::new(desk);
    desk.stocked("a", 10).await;
    let mut left = 10;
    for _ in 0..10 {
        let hold = desk.reserve(&[("a", 1)], at(1)).await.unwrap();
        crowd(&desk, 8, |desk, number| async move {
            // The loser of the two is refused, which is as it should be.
            if number % 2 == 0 {
                desk.store.confirm(hold.reservation_id, at(2), None).await.is_ok()
            } else {
                desk.store.release(hold.reservation_id, at(2)).await.is_ok()
            }
        })
        .await;
        let end = desk.store.reservation(hold.reservation_id, at(2)).await;
        if end.unwrap().unwrap().status == ReservationStatus::Confirmed {
            left -= 1;
        }
        assert_eq!(desk.level("a", "north", at(2)).await, (left, 0));
    }
    desk.audit_closes().await;
}

pub(super) async fn one_of_those_who_create_a_session_wins(desk: Desk) {
    let desk = Arc::new(desk);
    let answers = crowd(&desk, 16, |desk, number| async move {
        let session = mw_domain::Session {
            session_id: session_id("s"),
            user_id: None,
            geo_zone: None,
            ip: None,
            user_agent: Some(number.to_string()),
            device_type: None,
            data: [].into(),
            created_at: at(0),
            last_activity: at(0),
            expires_at: at(9),
        };
        let command = crate::sessions::CreateSession { session, now: at(0), made_of: None, once: None };
        desk.store.create_session(command).await
    })
    .await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 15));
    let id: SessionId = session_id("s");
    let live = desk.store.session(&id, at(1)).await.unwrap();
    assert_eq!(live, won.into_iter().next().map(|done| done.unwrap().value));
    for answer in lost {
        assert_eq!(refusal(answer), Refusal::SessionBound);
    }
}
