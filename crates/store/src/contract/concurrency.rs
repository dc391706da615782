//! Cases of concurrent requests: no change is lost or applied twice, no unit is sold twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mw_domain::{MergeMode, Order, OrderStatus, ReservationStatus, SessionId};
use tokio::task::JoinHandle;

use super::fixtures::{
    Fixture, at, concurrently, demands, guest, identity, moving, product_id, quantities, refusal, session_id,
    user, walk, whole_cart,
};
use crate::carts::Merge;
use crate::orders::{Basket, PlaceOrder, SetStatus};
use crate::stock::Adjust;
use crate::{Done, Refusal, Result};

pub(super) async fn changes_of_different_lines_never_lose_one_another(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    let carts = concurrently(&fixture, 50, |fixture, number| async move {
        fixture.set(&user("u"), &format!("p{number:02}"), 1, at(1)).await
    })
    .await;
    let cart = fixture.active(&user("u"), at(2)).await.unwrap();
    assert_eq!(cart.lines.len(), 50);
    assert!(carts.iter().all(|seen| seen.cart_id == cart.cart_id), "one cart was opened");
    let mut versions: Vec<u64> = carts.iter().map(|seen| seen.version).collect();
    versions.sort_unstable();
    versions.dedup();
    assert_eq!((versions.len(), versions.last()), (50, Some(&cart.version)), "every change has a version");

    concurrently(&fixture, 50, |fixture, number| async move {
        if number % 2 == 0 {
            fixture.remove(&user("u"), &format!("p{number:02}"), at(3)).await;
        } else {
            fixture.set(&user("u"), &format!("p{number:02}"), 9, at(3)).await;
        }
    })
    .await;
    let cart = fixture.active(&user("u"), at(4)).await.unwrap();
    assert_eq!(cart.lines.len(), 25);
    assert!(cart.lines.iter().all(|line| line.quantity == 9));
}

pub(super) async fn of_one_line_the_last_wins(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    let carts = concurrently(&fixture, 40, |fixture, number| async move {
        let quantity = u32::try_from(number).unwrap() + 1;
        fixture.set(&user("u"), "a", quantity, at(1)).await
    })
    .await;
    let cart = fixture.active(&user("u"), at(2)).await.unwrap();
    let last = carts.into_iter().max_by_key(|seen| seen.version).unwrap();
    assert_eq!(cart, last);
}

pub(super) async fn one_of_many_writers_of_a_version_wins(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    let results = concurrently(&fixture, 20, |fixture, number| async move {
        let command = crate::carts::SetLine {
            expected_version: Some(0),
            ..fixture.line(&user("u"), &format!("p{number}"), 1, at(1))
        };
        fixture.store.set_line(command).await
    })
    .await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    let cart = fixture.active(&user("u"), at(2)).await.unwrap();
    assert_eq!(cart.lines.len(), 1);
}

pub(super) async fn duplicate_merges_move_each_line_once(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    for round in 0..5 {
        let (own, session) = (format!("u{round}"), format!("s{round}"));
        let lines: Vec<String> = (0..10).map(|number| format!("p{number}")).collect();
        for line in &lines {
            fixture.set(&user(&own), line, 2, at(0)).await;
            fixture.set(&guest(&session), line, 3, at(0)).await;
        }
        let merged = concurrently(&fixture, 16, |fixture, _| {
            let (own, session) = (own.clone(), session.clone());
            async move { fixture.merge(&own, &session, MergeMode::Sum, at(1)).await }
        })
        .await;
        let did: Vec<usize> =
            merged.iter().map(|merged| merged.changes.len()).filter(|count| *count > 0).collect();
        assert_eq!(did, [10], "one of them moved all lines");
        let cart = fixture.active(&user(&own), at(2)).await.unwrap();
        assert_eq!(cart.lines.len(), 10);
        assert!(cart.lines.iter().all(|line| line.quantity == 5), "{cart:?}");
    }
}

pub(super) async fn a_guests_lines_go_to_one_of_many_users(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    fixture.set_all(&guest("s"), &[("a", 1), ("b", 2)], at(0)).await;
    concurrently(&fixture, 16, |fixture, number| async move {
        fixture.merge(&format!("u{number}"), "s", MergeMode::Sum, at(1)).await
    })
    .await;
    let mut found = Vec::new();
    for number in 0..16 {
        found.extend(fixture.active(&user(&format!("u{number}")), at(2)).await);
    }
    assert_eq!(found.len(), 1);
    assert_eq!(quantities(&found[0]), [("a", 1), ("b", 2)]);
}

pub(super) async fn merges_and_line_changes_at_once_keep_every_line(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    for number in 0..10 {
        let session = guest(&format!("s{number}"));
        fixture.set(&session, &format!("guest{number}"), 1, at(0)).await;
        fixture.set(&session, "shared", 1, at(0)).await;
    }
    concurrently(&fixture, 30, |fixture, number| async move {
        if number < 10 {
            fixture.merge("u", &format!("s{number}"), MergeMode::Sum, at(1)).await;
        } else {
            fixture.set(&user("u"), &format!("own{number}"), 1, at(1)).await;
        }
    })
    .await;
    let cart = fixture.active(&user("u"), at(2)).await.unwrap();
    assert_eq!(cart.lines.len(), 31);
    let shared = cart.lines.iter().find(|line| line.product_id == product_id("shared"));
    assert_eq!(shared.unwrap().quantity, 10);
}

pub(super) async fn no_reader_sees_the_same_units_in_both_carts(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    for round in 0..10 {
        let (own, session) = (format!("u{round}"), format!("s{round}"));
        fixture.set_all(&guest(&session), &[("a", 1), ("b", 1)], at(0)).await;
        concurrently(&fixture, 6, |fixture, number| {
            let (own, session) = (own.clone(), session.clone());
            async move {
                if number == 0 {
                    fixture.merge(&own, &session, MergeMode::Sum, at(1)).await;
                }
                for _ in 0..20 {
                    let own = fixture.active(&user(&own), at(1)).await;
                    let of_guest = fixture.active(&guest(&session), at(1)).await;
                    let own_lines = own.map_or(0, |cart| cart.lines.len());
                    assert!(own_lines != 1, "half of the lines");
                    assert!(own_lines == 0 || of_guest.is_none(), "the same units twice");
                }
            }
        })
        .await;
    }
}

pub(super) async fn of_two_checkouts_one_wins(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    fixture.stocked("a", 100).await;
    for round in 0..10 {
        let own = format!("u{round}");
        fixture.set(&user(&own), "a", 2, at(0)).await;
        let results = concurrently(&fixture, 4, |fixture, _| {
            let command = fixture.ordering(&own, whole_cart(), at(1));
            async move { fixture.store.place_order(command).await }
        })
        .await;
        let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1);
        for result in lost {
            assert_eq!(refusal(result), Refusal::CartEmpty);
        }
    }
    assert_eq!(fixture.level("a", "north", at(2)).await, (100, 20));
    fixture.audit_closes().await;
}

pub(super) async fn of_two_checkouts_of_the_last_units_one_wins(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    for round in 0..5 {
        let (own, lines) = (format!("u{round}"), [format!("a{round}"), format!("b{round}")]);
        for line in &lines {
            fixture.stocked(line, 2).await;
            fixture.set(&user(&own), line, 2, at(0)).await;
        }
        let results = concurrently(&fixture, 4, |fixture, number| {
            let key = Some(identity(&format!("{own}-{number}"), 1, at(1)));
            let command = PlaceOrder { identity: key, ..fixture.ordering(&own, whole_cart(), at(1)) };
            async move { fixture.store.place_order(command).await }
        })
        .await;
        let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1, "{lost:?}");
        for result in lost {
            assert_eq!(refusal(result), Refusal::CartEmpty, "the units are held for the same cart");
        }
        for line in &lines {
            assert_eq!(fixture.level(line, "north", at(2)).await, (2, 2));
        }
    }
    fixture.audit_closes().await;
}

/// Reads a stock level repeatedly; every read must keep the invariant.
struct Watcher {
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Watcher {
    fn start(fixture: &Arc<Fixture>, name: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (fixture, stopped) = (Arc::clone(fixture), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let (on_hand, reserved) = fixture.level(name, "north", at(1)).await;
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

pub(super) async fn every_unit_is_sold_once(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    fixture.stocked("hit", 32).await;
    let watcher = Watcher::start(&fixture, "hit");
    let results = concurrently(&fixture, 64, |fixture, number| async move {
        fixture.order(&format!("u{number}"), &[("hit", 1)], at(1)).await
    })
    .await;
    watcher.end().await;
    let (sold, missed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((sold.len(), missed.len()), (32, 32));
    for result in missed {
        assert!(matches!(refusal(result), Refusal::OutOfStock(_)));
    }
    assert_eq!(fixture.level("hit", "north", at(2)).await, (32, 32));
    let day = mw_domain::Period::day(at(1).date());
    let listed = walk(10, async |request| fixture.store.orders(None, day, request).await).await;
    assert_eq!(listed.unwrap().len(), 32);
    fixture.audit_closes().await;
}

pub(super) async fn orders_and_holds_of_two_products_never_oversell(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    fixture.stocked("a", 20).await;
    fixture.stocked("b", 20).await;
    let watcher = Watcher::start(&fixture, "a");
    let results = concurrently(&fixture, 48, |fixture, number| async move {
        // In both orders, so that locking in the order of the lines would deadlock.
        let lines = if number % 2 == 0 { [("a", 1), ("b", 1)] } else { [("b", 1), ("a", 1)] };
        if number % 3 == 0 {
            fixture.reserve(&lines, at(1)).await.is_ok()
        } else {
            fixture.order("u", &lines, at(1)).await.is_ok()
        }
    })
    .await;
    watcher.end().await;
    assert_eq!(results.into_iter().filter(|done| *done).count(), 20);
    for name in ["a", "b"] {
        assert_eq!(fixture.level(name, "north", at(2)).await, (20, 20));
    }
    fixture.audit_closes().await;
}

pub(super) async fn adjustments_add_up(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    fixture.stocked("a", 100).await;
    concurrently(&fixture, 40, |fixture, number| async move {
        let delta = if number % 2 == 0 { 3 } else { -1 };
        let command = fixture.adjusting("a", delta, at(1));
        fixture.store.adjust(command).await.unwrap();
    })
    .await;
    assert_eq!(fixture.level("a", "north", at(2)).await, (140, 0));
    fixture.audit_closes().await;
}

/// One of the duplicates was first; all have its result.
fn one_outcome<T: PartialEq + std::fmt::Debug>(results: Vec<Result<Done<T>>>) -> T {
    let results: Vec<Done<T>> = results.into_iter().map(Result::unwrap).collect();
    let first = results.iter().filter(|done| !done.replayed).count();
    assert_eq!(first, 1, "one of the duplicates took effect");
    let mut values = results.into_iter().map(|done| done.value);
    let value = values.next().unwrap();
    assert!(values.all(|other| other == value), "all have its result");
    value
}

pub(super) async fn duplicate_requests_with_one_key_have_one_effect(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    fixture.stocked("a", 100).await;
    let order: Order = one_outcome(
        concurrently(&fixture, 24, |fixture, _| async move {
            let command = PlaceOrder {
                identity: Some(identity("order", 1, at(1))),
                ..fixture.ordering("u", Basket::Lines(demands(&[("a", 2)])), at(1))
            };
            fixture.store.place_order(command).await
        })
        .await,
    );
    assert_eq!(fixture.store.order(order.order_id).await, Ok(Some(order)));
    assert_eq!(fixture.level("a", "north", at(2)).await, (100, 2));
    one_outcome(
        concurrently(&fixture, 24, |fixture, _| async move {
            let command =
                Adjust { identity: Some(identity("adjust", 1, at(3))), ..fixture.adjusting("a", 5, at(3)) };
            fixture.store.adjust(command).await
        })
        .await,
    );
    assert_eq!(fixture.level("a", "north", at(4)).await, (105, 2));
    fixture.audit_closes().await;
}

pub(super) async fn duplicate_merges_with_one_key_have_one_effect(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    fixture.set(&guest("s"), "b", 3, at(5)).await;
    let merged = one_outcome(
        concurrently(&fixture, 24, |fixture, _| async move {
            let command = Merge {
                identity: Some(identity("merge", 1, at(6))),
                ..fixture.merging("u", "s", MergeMode::Sum, at(6))
            };
            fixture.store.merge(command).await
        })
        .await,
    );
    assert_eq!(merged.changes.len(), 1);
    assert_eq!(fixture.active(&user("u"), at(7)).await, merged.cart);
}

pub(super) async fn a_status_step_is_made_once(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    fixture.stocked("a", 100).await;
    for _ in 0..10 {
        let order = fixture.order("u", &[("a", 1)], at(1)).await.unwrap();
        let results = concurrently(&fixture, 8, |fixture, number| {
            let to = if number % 2 == 0 { OrderStatus::Paid } else { OrderStatus::Cancelled };
            let command: SetStatus = moving(order.order_id, to, at(2));
            async move { fixture.store.set_status(command).await }
        })
        .await;
        assert!(results.iter().any(Result::is_ok));
        let events = fixture.store.order_events(order.order_id).await.unwrap().unwrap();
        let last = fixture.store.order(order.order_id).await.unwrap().unwrap();
        assert_eq!(events.len() as u64, last.version, "an event a step");
        assert_eq!(last.status, OrderStatus::Cancelled, "the last request may cancel");
    }
    assert_eq!(fixture.level("a", "north", at(3)).await, (100, 0));
    fixture.audit_closes().await;
}

pub(super) async fn a_hold_ends_in_one_way(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    fixture.stocked("a", 10).await;
    let mut left = 10;
    for _ in 0..10 {
        let hold = fixture.reserve(&[("a", 1)], at(1)).await.unwrap();
        concurrently(&fixture, 8, |fixture, number| async move {
            // One of the two is refused, as the contract requires.
            if number % 2 == 0 {
                fixture.store.confirm(hold.reservation_id, at(2), None).await.is_ok()
            } else {
                fixture.store.release(hold.reservation_id, at(2)).await.is_ok()
            }
        })
        .await;
        let end = fixture.store.reservation(hold.reservation_id, at(2)).await;
        if end.unwrap().unwrap().status == ReservationStatus::Confirmed {
            left -= 1;
        }
        assert_eq!(fixture.level("a", "north", at(2)).await, (left, 0));
    }
    fixture.audit_closes().await;
}

pub(super) async fn one_of_many_creators_of_a_session_wins(fixture: Fixture) {
    let fixture = Arc::new(fixture);
    let results = concurrently(&fixture, 16, |fixture, number| async move {
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
        let command = crate::sessions::CreateSession { session, now: at(0), id_seed: None, identity: None };
        fixture.store.create_session(command).await
    })
    .await;
    let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 15));
    let id: SessionId = session_id("s");
    let live = fixture.store.session(&id, at(1)).await.unwrap();
    assert_eq!(live, won.into_iter().next().map(|done| done.unwrap().value));
    for result in lost {
        assert_eq!(refusal(result), Refusal::SessionBound);
    }
}
