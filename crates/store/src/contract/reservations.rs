//! Cases of holds: all lines or none, confirmed or released once, over at their time.

use mw_domain::{Reservation, ReservationId, ReservationStatus, Shortage, Timestamp};

use super::given::{DAY, Desk, HOLD, at, card, demands, just_before, product_id, refusal, zone};
use crate::stock::Reserve;
use crate::{Freshness, Refusal, Result};

fn shortage(name: &str, requested: u32, available: u64) -> Shortage {
    Shortage { product_id: product_id(name), requested, available }
}

async fn read(desk: &Desk, hold: &Reservation, now: Timestamp) -> ReservationStatus {
    let found = desk.store.reservation(hold.reservation_id, now).await;
    let found = found.unwrap().unwrap();
    assert_eq!((found.lines, found.expires_at), (hold.lines.clone(), hold.expires_at));
    found.status
}

async fn confirm(desk: &Desk, hold: &Reservation, now: Timestamp) -> Result<Reservation> {
    let done = desk.store.confirm(hold.reservation_id, now, None).await?;
    assert!(!done.replayed);
    Ok(done.value)
}

async fn release(desk: &Desk, hold: &Reservation, now: Timestamp) -> Result<()> {
    desk.store.release(hold.reservation_id, now).await
}

const fn closed(status: ReservationStatus) -> Refusal {
    Refusal::ReservationClosed { status }
}

pub(super) async fn a_hold_promises_its_units(desk: Desk) {
    desk.stocked("a", 10).await;
    desk.stocked("b", 10).await;
    let command = desk.reserving(&[("b", 2), ("a", 3)], at(1));
    let expected = Reservation {
        reservation_id: command.reservation_id,
        geo_zone: zone("north"),
        lines: demands(&[("b", 2), ("a", 3)]),
        status: ReservationStatus::Held,
        created_at: at(1),
        expires_at: at(1 + HOLD),
    };
    let done = desk.store.reserve(command).await.unwrap();
    assert_eq!((&done.value, done.replayed), (&expected, false));
    let found = desk.store.reservation(expected.reservation_id, at(2)).await;
    assert_eq!(found, Ok(Some(expected)));
    assert_eq!(desk.level("a", "north", at(2)).await, (10, 3));
    assert_eq!(desk.level("b", "north", at(2)).await, (10, 2));
    let unknown = ReservationId::new(desk.uuid());
    assert_eq!(desk.store.reservation(unknown, at(2)).await, Ok(None));
    desk.audit_closes().await;
}

pub(super) async fn all_lines_are_held_or_none(desk: Desk) {
    desk.stocked("a", 10).await;
    desk.stocked("b", 3).await;
    desk.put(card("elsewhere", 100)).await;
    desk.on_hand("elsewhere", "south", 9, at(0)).await.unwrap();
    desk.reserve(&[("b", 1)], at(1)).await.unwrap();
    let lines = [("a", 10), ("b", 3), ("unknown", 1), ("elsewhere", 2)];
    let command = desk.reserving(&lines, at(2));
    let refused = refusal(desk.store.reserve(command.clone()).await);
    let shortages = vec![shortage("b", 3, 2), shortage("unknown", 1, 0), shortage("elsewhere", 2, 0)];
    assert_eq!(refused, Refusal::OutOfStock(shortages));
    assert_eq!(desk.level("a", "north", at(3)).await, (10, 0));
    assert_eq!(desk.level("b", "north", at(3)).await, (3, 1));
    let found = desk.store.reservation(command.reservation_id, at(3)).await;
    assert_eq!(found, Ok(None));
    for name in ["unknown", "elsewhere"] {
        let stock = desk.store.zone_stock(&product_id(name), &zone("north"), Freshness::Full, at(3)).await;
        assert_eq!(stock, Ok(None), "no figure was made");
    }
    desk.reserve(&[("b", 2), ("a", 10)], at(4)).await.unwrap();
    assert_eq!(desk.level("b", "north", at(5)).await, (3, 3));
    desk.audit_closes().await;
}

pub(super) async fn confirmed_units_leave(desk: Desk) {
    desk.stocked("a", 10).await;
    let hold = desk.reserve(&[("a", 3)], at(0)).await.unwrap();
    let confirmed = confirm(&desk, &hold, at(1)).await.unwrap();
    let expected = Reservation { status: ReservationStatus::Confirmed, ..hold.clone() };
    assert_eq!(confirmed, expected);
    assert_eq!(desk.level("a", "north", at(1)).await, (7, 0));

    assert_eq!(confirm(&desk, &hold, at(2)).await, Ok(expected), "again is fine");
    let refused = refusal(release(&desk, &hold, at(2)).await);
    assert_eq!(refused, closed(ReservationStatus::Confirmed));
    assert_eq!(desk.level("a", "north", at(2)).await, (7, 0));
    let after = at(2 * HOLD);
    assert_eq!(read(&desk, &hold, after).await, ReservationStatus::Confirmed, "it stays after its time");
    assert!(confirm(&desk, &hold, after).await.is_ok());
    desk.audit_closes().await;
}

pub(super) async fn released_units_are_available_again(desk: Desk) {
    desk.stocked("a", 10).await;
    let hold = desk.reserve(&[("a", 10)], at(0)).await.unwrap();
    release(&desk, &hold, at(1)).await.unwrap();
    assert_eq!(desk.level("a", "north", at(1)).await, (10, 0));
    assert_eq!(release(&desk, &hold, at(2)).await, Ok(()), "again is fine");
    let refused = refusal(confirm(&desk, &hold, at(2)).await);
    assert_eq!(refused, closed(ReservationStatus::Released));
    assert_eq!(read(&desk, &hold, at(2 * HOLD)).await, ReservationStatus::Released);
    assert_eq!(desk.level("a", "north", at(2)).await, (10, 0));
    desk.audit_closes().await;
}

pub(super) async fn an_unknown_hold_is_not_found(desk: Desk) {
    let unknown = ReservationId::new(desk.uuid());
    let confirmed = desk.store.confirm(unknown, at(0), None).await;
    assert_eq!(refusal(confirmed), Refusal::ReservationNotFound);
    let released = desk.store.release(unknown, at(0)).await;
    assert_eq!(refusal(released), Refusal::ReservationNotFound);
}

pub(super) async fn a_hold_is_over_to_the_second(desk: Desk) {
    desk.stocked("a", 10).await;
    let hold = desk.reserve(&[("a", 4)], at(0)).await.unwrap();
    let last = just_before(at(HOLD));
    assert_eq!(read(&desk, &hold, last).await, ReservationStatus::Held);
    assert_eq!(desk.level("a", "north", last).await, (10, 4));
    // Nobody has settled it yet, and yet nobody sees it.
    assert_eq!(read(&desk, &hold, at(HOLD)).await, ReservationStatus::Expired);
    assert_eq!(desk.level("a", "north", at(HOLD)).await, (10, 0));
    let zones = desk.store.product_stock(&product_id("a"), Freshness::Full, at(HOLD)).await.unwrap();
    assert_eq!(zones[0].level.reserved, 0);
    desk.audit_closes().await;
}

pub(super) async fn an_expired_hold_can_be_neither_confirmed_nor_released(desk: Desk) {
    desk.stocked("a", 10).await;
    let hold = desk.reserve(&[("a", 4)], at(0)).await.unwrap();
    for _ in 0..2 {
        let confirmed = refusal(confirm(&desk, &hold, at(HOLD)).await);
        assert_eq!(confirmed, closed(ReservationStatus::Expired));
        let released = refusal(release(&desk, &hold, at(HOLD)).await);
        assert_eq!(released, closed(ReservationStatus::Expired));
        desk.store.settle_expired(at(HOLD), 10).await.unwrap();
    }
    assert_eq!(desk.level("a", "north", at(HOLD)).await, (10, 0));
    desk.audit_closes().await;
}

pub(super) async fn expired_units_can_be_sold_before_they_are_settled(desk: Desk) {
    desk.stocked("a", 10).await;
    let first = desk.reserve(&[("a", 6)], at(0)).await.unwrap();
    let second = desk.reserve(&[("a", 4)], at(1)).await.unwrap();
    assert!(desk.reserve(&[("a", 1)], just_before(at(HOLD))).await.is_err());
    let sold = desk.reserve(&[("a", 6)], at(HOLD)).await.unwrap();
    assert_eq!(desk.level("a", "north", at(HOLD)).await, (10, 10));
    let order = desk.order("u", &[("a", 4)], at(HOLD + 1)).await.unwrap();
    assert_eq!(desk.level("a", "north", at(HOLD + 1)).await, (10, 10));
    assert_eq!(order.units(), 4);
    for hold in [&first, &second] {
        assert_eq!(read(&desk, hold, at(HOLD + 1)).await, ReservationStatus::Expired);
    }
    assert_eq!(read(&desk, &sold, at(HOLD + 1)).await, ReservationStatus::Held);
    desk.audit_closes().await;
}

pub(super) async fn settling_gives_expired_units_back_once(desk: Desk) {
    desk.stocked("a", 10).await;
    let mut holds = Vec::new();
    for seconds in 0..5 {
        holds.push(desk.reserve(&[("a", 1)], at(seconds)).await.unwrap());
    }
    assert_eq!(desk.store.settle_expired(just_before(at(HOLD)), 10).await, Ok(0));
    let now = at(HOLD + 3);
    let mut settled = 0;
    for _ in 0..10 {
        let count = desk.store.settle_expired(now, 3).await.unwrap();
        assert!(count <= 3, "{count} at once");
        settled += count;
    }
    assert_eq!(settled, 4);
    assert_eq!(desk.store.settle_expired(now, 10).await, Ok(0));
    assert_eq!(desk.level("a", "north", now).await, (10, 1));
    for (number, hold) in holds.iter().enumerate() {
        let expected = if number < 4 { ReservationStatus::Expired } else { ReservationStatus::Held };
        assert_eq!(read(&desk, hold, now).await, expected);
    }
    desk.audit_closes().await;
}

pub(super) async fn a_settled_hold_is_over_for_every_product_of_it(desk: Desk) {
    desk.stocked("a", 5).await;
    desk.stocked("b", 5).await;
    desk.reserve(&[("a", 5), ("b", 5)], at(0)).await.unwrap();
    // Touches one of the two products after the time of the hold.
    desk.on_hand("a", "north", 1, at(HOLD)).await.unwrap();
    assert_eq!(desk.level("a", "north", at(HOLD)).await, (1, 0));
    assert_eq!(desk.level("b", "north", at(HOLD)).await, (5, 0));
    desk.audit_closes().await;
    desk.store.settle_expired(at(HOLD), 10).await.unwrap();
    assert_eq!(desk.level("a", "north", at(HOLD)).await, (1, 0));
    assert_eq!(desk.level("b", "north", at(HOLD)).await, (5, 0));
    desk.reserve(&[("a", 1), ("b", 5)], at(HOLD)).await.unwrap();
    desk.audit_closes().await;
}

pub(super) async fn a_hold_ends_when_its_command_said(desk: Desk) {
    desk.stocked("a", 5).await;
    let command = Reserve { expires_at: at(1), ..desk.reserving(&[("a", 5)], at(0)) };
    let hold = desk.store.reserve(command).await.unwrap().value;
    assert_eq!(read(&desk, &hold, just_before(at(1))).await, ReservationStatus::Held);
    assert_eq!(read(&desk, &hold, at(1)).await, ReservationStatus::Expired);
}

pub(super) async fn a_product_out_of_the_catalogue_has_nothing_to_hold(desk: Desk) {
    desk.stocked("a", 5).await;
    let hold = desk.reserve(&[("a", 1)], at(0)).await.unwrap();
    desk.store.delete_product(&product_id("a")).await.unwrap();
    confirm(&desk, &hold, at(1)).await.unwrap();
    let refused = refusal(desk.reserve(&[("a", 1)], at(2)).await);
    assert_eq!(refused, Refusal::OutOfStock(vec![shortage("a", 1, 0)]));
    assert_eq!(desk.level("a", "north", at(3)).await, (4, 0));
    desk.audit_closes().await;
}

pub(super) async fn a_reservation_is_forgotten_thirty_days_after_its_time(desk: Desk) {
    desk.stocked("a", 5).await;
    let confirmed = desk.reserve(&[("a", 1)], at(0)).await.unwrap();
    confirm(&desk, &confirmed, at(1)).await.unwrap();
    let expired = desk.reserve(&[("a", 2)], at(0)).await.unwrap();
    let forgotten = at(HOLD + 30 * DAY);
    assert_eq!(read(&desk, &confirmed, just_before(forgotten)).await, ReservationStatus::Confirmed);
    assert_eq!(read(&desk, &expired, just_before(forgotten)).await, ReservationStatus::Expired);
    for hold in [&confirmed, &expired] {
        assert_eq!(desk.store.reservation(hold.reservation_id, forgotten).await, Ok(None));
        assert_eq!(refusal(confirm(&desk, hold, forgotten).await), Refusal::ReservationNotFound);
        assert_eq!(refusal(release(&desk, hold, forgotten).await), Refusal::ReservationNotFound);
    }
    assert_eq!(desk.level("a", "north", forgotten).await, (4, 0));
    desk.audit_closes().await;
}
