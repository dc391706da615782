//! Cases of reservations: all lines or none, closed once, expired to the second.

use mw_domain::{Reservation, ReservationId, ReservationStatus, Shortage, Timestamp};

use super::fixtures::{
    DAY, Fixture, HOLD, at, demands, just_before, priced_product, product_id, refusal, zone,
};
use crate::stock::Reserve;
use crate::{Freshness, Refusal, Result};

fn shortage(name: &str, requested: u32, available: u64) -> Shortage {
    Shortage { product_id: product_id(name), requested, available }
}

async fn read(fixture: &Fixture, hold: &Reservation, now: Timestamp) -> ReservationStatus {
    let found = fixture.store.reservation(hold.reservation_id, now).await;
    let found = found.unwrap().unwrap();
    assert_eq!((found.lines, found.expires_at), (hold.lines.clone(), hold.expires_at));
    found.status
}

async fn confirm(fixture: &Fixture, hold: &Reservation, now: Timestamp) -> Result<Reservation> {
    let done = fixture.store.confirm(hold.reservation_id, now, None).await?;
    assert!(!done.replayed);
    Ok(done.value)
}

async fn release(fixture: &Fixture, hold: &Reservation, now: Timestamp) -> Result<()> {
    fixture.store.release(hold.reservation_id, now).await
}

const fn closed(status: ReservationStatus) -> Refusal {
    Refusal::ReservationClosed { status }
}

pub(super) async fn a_hold_promises_its_units(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    fixture.stocked("b", 10).await;
    let command = fixture.reserving(&[("b", 2), ("a", 3)], at(1));
    let expected = Reservation {
        reservation_id: command.reservation_id,
        geo_zone: zone("north"),
        lines: demands(&[("b", 2), ("a", 3)]),
        status: ReservationStatus::Held,
        created_at: at(1),
        expires_at: at(1 + HOLD),
    };
    let done = fixture.store.reserve(command).await.unwrap();
    assert_eq!((&done.value, done.replayed), (&expected, false));
    let found = fixture.store.reservation(expected.reservation_id, at(2)).await;
    assert_eq!(found, Ok(Some(expected)));
    assert_eq!(fixture.level("a", "north", at(2)).await, (10, 3));
    assert_eq!(fixture.level("b", "north", at(2)).await, (10, 2));
    let unknown = ReservationId::new(fixture.uuid());
    assert_eq!(fixture.store.reservation(unknown, at(2)).await, Ok(None));
    fixture.audit_closes().await;
}

pub(super) async fn all_lines_are_held_or_none(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    fixture.stocked("b", 3).await;
    fixture.put(priced_product("elsewhere", 100)).await;
    fixture.on_hand("elsewhere", "south", 9, at(0)).await.unwrap();
    fixture.reserve(&[("b", 1)], at(1)).await.unwrap();
    let lines = [("a", 10), ("b", 3), ("unknown", 1), ("elsewhere", 2)];
    let command = fixture.reserving(&lines, at(2));
    let refused = refusal(fixture.store.reserve(command.clone()).await);
    let shortages = vec![shortage("b", 3, 2), shortage("unknown", 1, 0), shortage("elsewhere", 2, 0)];
    assert_eq!(refused, Refusal::OutOfStock(shortages));
    assert_eq!(fixture.level("a", "north", at(3)).await, (10, 0));
    assert_eq!(fixture.level("b", "north", at(3)).await, (3, 1));
    let found = fixture.store.reservation(command.reservation_id, at(3)).await;
    assert_eq!(found, Ok(None));
    for name in ["unknown", "elsewhere"] {
        let stock =
            fixture.store.zone_stock(&product_id(name), &zone("north"), Freshness::Latest, at(3)).await;
        assert_eq!(stock, Ok(None), "no level was made");
    }
    fixture.reserve(&[("b", 2), ("a", 10)], at(4)).await.unwrap();
    assert_eq!(fixture.level("b", "north", at(5)).await, (3, 3));
    fixture.audit_closes().await;
}

pub(super) async fn confirmed_units_leave(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let hold = fixture.reserve(&[("a", 3)], at(0)).await.unwrap();
    let confirmed = confirm(&fixture, &hold, at(1)).await.unwrap();
    let expected = Reservation { status: ReservationStatus::Confirmed, ..hold.clone() };
    assert_eq!(confirmed, expected);
    assert_eq!(fixture.level("a", "north", at(1)).await, (7, 0));

    assert_eq!(confirm(&fixture, &hold, at(2)).await, Ok(expected), "again is fine");
    let refused = refusal(release(&fixture, &hold, at(2)).await);
    assert_eq!(refused, closed(ReservationStatus::Confirmed));
    assert_eq!(fixture.level("a", "north", at(2)).await, (7, 0));
    let after = at(2 * HOLD);
    assert_eq!(read(&fixture, &hold, after).await, ReservationStatus::Confirmed, "it stays after its time");
    assert!(confirm(&fixture, &hold, after).await.is_ok());
    fixture.audit_closes().await;
}

pub(super) async fn released_units_are_available_again(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let hold = fixture.reserve(&[("a", 10)], at(0)).await.unwrap();
    release(&fixture, &hold, at(1)).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(1)).await, (10, 0));
    assert_eq!(release(&fixture, &hold, at(2)).await, Ok(()), "again is fine");
    let refused = refusal(confirm(&fixture, &hold, at(2)).await);
    assert_eq!(refused, closed(ReservationStatus::Released));
    assert_eq!(read(&fixture, &hold, at(2 * HOLD)).await, ReservationStatus::Released);
    assert_eq!(fixture.level("a", "north", at(2)).await, (10, 0));
    fixture.audit_closes().await;
}

pub(super) async fn an_unknown_hold_is_not_found(fixture: Fixture) {
    let unknown = ReservationId::new(fixture.uuid());
    let confirmed = fixture.store.confirm(unknown, at(0), None).await;
    assert_eq!(refusal(confirmed), Refusal::ReservationNotFound);
    let released = fixture.store.release(unknown, at(0)).await;
    assert_eq!(refusal(released), Refusal::ReservationNotFound);
}

pub(super) async fn a_hold_is_over_to_the_second(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let hold = fixture.reserve(&[("a", 4)], at(0)).await.unwrap();
    let last = just_before(at(HOLD));
    assert_eq!(read(&fixture, &hold, last).await, ReservationStatus::Held);
    assert_eq!(fixture.level("a", "north", last).await, (10, 4));
    // No reader sees the hold, although `expire_reservations` has not run.
    assert_eq!(read(&fixture, &hold, at(HOLD)).await, ReservationStatus::Expired);
    assert_eq!(fixture.level("a", "north", at(HOLD)).await, (10, 0));
    let zones = fixture.store.product_stock(&product_id("a"), Freshness::Latest, at(HOLD)).await.unwrap();
    assert_eq!(zones[0].level.reserved, 0);
    fixture.audit_closes().await;
}

pub(super) async fn an_expired_hold_can_be_neither_confirmed_nor_released(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let hold = fixture.reserve(&[("a", 4)], at(0)).await.unwrap();
    for _ in 0..2 {
        let confirmed = refusal(confirm(&fixture, &hold, at(HOLD)).await);
        assert_eq!(confirmed, closed(ReservationStatus::Expired));
        let released = refusal(release(&fixture, &hold, at(HOLD)).await);
        assert_eq!(released, closed(ReservationStatus::Expired));
        fixture.store.expire_reservations(at(HOLD), 10).await.unwrap();
    }
    assert_eq!(fixture.level("a", "north", at(HOLD)).await, (10, 0));
    fixture.audit_closes().await;
}

pub(super) async fn expired_units_can_be_sold_before_expiry_has_run(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let first = fixture.reserve(&[("a", 6)], at(0)).await.unwrap();
    let second = fixture.reserve(&[("a", 4)], at(1)).await.unwrap();
    assert!(fixture.reserve(&[("a", 1)], just_before(at(HOLD))).await.is_err());
    let sold = fixture.reserve(&[("a", 6)], at(HOLD)).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(HOLD)).await, (10, 10));
    let order = fixture.order("u", &[("a", 4)], at(HOLD + 1)).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(HOLD + 1)).await, (10, 10));
    assert_eq!(order.units(), 4);
    for hold in [&first, &second] {
        assert_eq!(read(&fixture, hold, at(HOLD + 1)).await, ReservationStatus::Expired);
    }
    assert_eq!(read(&fixture, &sold, at(HOLD + 1)).await, ReservationStatus::Held);
    fixture.audit_closes().await;
}

pub(super) async fn expiring_gives_units_back_once(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    let mut holds = Vec::new();
    for seconds in 0..5 {
        holds.push(fixture.reserve(&[("a", 1)], at(seconds)).await.unwrap());
    }
    assert_eq!(fixture.store.expire_reservations(just_before(at(HOLD)), 10).await, Ok(0));
    let now = at(HOLD + 3);
    let mut expired = 0;
    for _ in 0..10 {
        let count = fixture.store.expire_reservations(now, 3).await.unwrap();
        assert!(count <= 3, "{count} at once");
        expired += count;
    }
    assert_eq!(expired, 4);
    assert_eq!(fixture.store.expire_reservations(now, 10).await, Ok(0));
    assert_eq!(fixture.level("a", "north", now).await, (10, 1));
    for (number, hold) in holds.iter().enumerate() {
        let expected = if number < 4 { ReservationStatus::Expired } else { ReservationStatus::Held };
        assert_eq!(read(&fixture, hold, now).await, expected);
    }
    fixture.audit_closes().await;
}

pub(super) async fn a_closed_hold_is_over_for_every_product_of_it(fixture: Fixture) {
    fixture.stocked("a", 5).await;
    fixture.stocked("b", 5).await;
    fixture.reserve(&[("a", 5), ("b", 5)], at(0)).await.unwrap();
    // Writes one of the two products after the expiry of the hold.
    fixture.on_hand("a", "north", 1, at(HOLD)).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(HOLD)).await, (1, 0));
    assert_eq!(fixture.level("b", "north", at(HOLD)).await, (5, 0));
    fixture.audit_closes().await;
    fixture.store.expire_reservations(at(HOLD), 10).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(HOLD)).await, (1, 0));
    assert_eq!(fixture.level("b", "north", at(HOLD)).await, (5, 0));
    fixture.reserve(&[("a", 1), ("b", 5)], at(HOLD)).await.unwrap();
    fixture.audit_closes().await;
}

pub(super) async fn a_hold_ends_at_the_instant_of_its_command(fixture: Fixture) {
    fixture.stocked("a", 5).await;
    let command = Reserve { expires_at: at(1), ..fixture.reserving(&[("a", 5)], at(0)) };
    let hold = fixture.store.reserve(command).await.unwrap().value;
    assert_eq!(read(&fixture, &hold, just_before(at(1))).await, ReservationStatus::Held);
    assert_eq!(read(&fixture, &hold, at(1)).await, ReservationStatus::Expired);
}

pub(super) async fn a_product_out_of_the_catalogue_has_nothing_to_hold(fixture: Fixture) {
    fixture.stocked("a", 5).await;
    let hold = fixture.reserve(&[("a", 1)], at(0)).await.unwrap();
    fixture.store.delete_product(&product_id("a"), at(1)).await.unwrap();
    confirm(&fixture, &hold, at(1)).await.unwrap();
    let refused = refusal(fixture.reserve(&[("a", 1)], at(2)).await);
    assert_eq!(refused, Refusal::OutOfStock(vec![shortage("a", 1, 0)]));
    assert_eq!(fixture.level("a", "north", at(3)).await, (4, 0));
    fixture.audit_closes().await;
}

pub(super) async fn a_reservation_is_forgotten_thirty_days_after_its_time(fixture: Fixture) {
    fixture.stocked("a", 5).await;
    let confirmed = fixture.reserve(&[("a", 1)], at(0)).await.unwrap();
    confirm(&fixture, &confirmed, at(1)).await.unwrap();
    let expired = fixture.reserve(&[("a", 2)], at(0)).await.unwrap();
    let forgotten = at(HOLD + 30 * DAY);
    assert_eq!(read(&fixture, &confirmed, just_before(forgotten)).await, ReservationStatus::Confirmed);
    assert_eq!(read(&fixture, &expired, just_before(forgotten)).await, ReservationStatus::Expired);
    for hold in [&confirmed, &expired] {
        assert_eq!(fixture.store.reservation(hold.reservation_id, forgotten).await, Ok(None));
        assert_eq!(refusal(confirm(&fixture, hold, forgotten).await), Refusal::ReservationNotFound);
        assert_eq!(refusal(release(&fixture, hold, forgotten).await), Refusal::ReservationNotFound);
    }
    assert_eq!(fixture.level("a", "north", forgotten).await, (4, 0));
    fixture.audit_closes().await;
}

pub(super) async fn holds_that_end_together_free_all_their_units(fixture: Fixture) {
    let holds = 20;
    fixture.stocked("a", holds).await;
    fixture.stocked("b", 5).await;
    for _ in 0..holds {
        fixture.reserve(&[("a", 1)], at(1)).await.unwrap();
    }
    fixture.reserve(&[("b", 5)], at(1)).await.unwrap();
    let over = at(1 + HOLD);
    assert_eq!(fixture.level("a", "north", over).await, (holds, 0), "no reader counts them");
    // Expiry has not run: an order takes the units that it needs, of one product or of all.
    fixture.order("u", &[("a", 3)], over).await.unwrap();
    assert_eq!(fixture.level("a", "north", over).await, (holds, 3));
    assert_eq!(fixture.level("b", "north", over).await, (5, 0));
    fixture.reserve(&[("a", 17), ("b", 2)], over).await.unwrap();
    let short = fixture.reserve(&[("a", 1)], over).await;
    assert_eq!(refusal(short), Refusal::OutOfStock(vec![shortage("a", 1, 0)]));
    while fixture.store.expire_reservations(over, 7).await.unwrap() > 0 {}
    assert_eq!(fixture.level("a", "north", over).await, (holds, holds));
    assert_eq!(fixture.level("b", "north", over).await, (5, 2));
    fixture.audit_closes().await;
}
