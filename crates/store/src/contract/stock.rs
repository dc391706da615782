//! Cases of stock levels: setting, adjusting, zones, and the ledger.

use std::sync::atomic::{AtomicU64, Ordering};

use mw_domain::limits::ON_HAND_MAX;
use mw_domain::{Level, ZoneStock};

use super::fixtures::{
    Fixture, HOLD, at, eventually, just_before, priced_product, product_id, refusal, zone,
};
use crate::stock::{Adjust, SetOnHand};
use crate::{Freshness, Refusal};

fn level(name: &str, of_zone: &str, on_hand: u64, reserved: u64, seconds: i64) -> ZoneStock {
    ZoneStock {
        product_id: product_id(name),
        geo_zone: zone(of_zone),
        level: Level { on_hand, reserved },
        updated_at: at(seconds),
    }
}

pub(super) async fn a_level_is_set_and_read_by_zone(fixture: Fixture) {
    fixture.put(priced_product("a", 100)).await;
    let id = product_id("a");
    let read =
        async |name| fixture.store.zone_stock(&id, &zone(name), Freshness::Latest, at(9)).await.unwrap();
    assert_eq!(read("north").await, None);
    assert_eq!(fixture.store.product_stock(&id, Freshness::Latest, at(9)).await, Ok(vec![]));

    let set = fixture.on_hand("a", "south", 8, at(1)).await.unwrap();
    assert_eq!(set, level("a", "south", 8, 0, 1));
    fixture.on_hand("a", "north", 3, at(2)).await.unwrap();
    fixture.on_hand("a", "north", 5, at(3)).await.unwrap();
    fixture.put(priced_product("ab", 100)).await;
    fixture.on_hand("ab", "north", 1, at(4)).await.unwrap();
    assert_eq!(read("north").await, Some(level("a", "north", 5, 0, 3)));
    let zones = vec![level("a", "north", 5, 0, 3), level("a", "south", 8, 0, 1)];
    assert_eq!(fixture.store.product_stock(&id, Freshness::Latest, at(9)).await.unwrap(), zones);
    eventually(&zones, async || fixture.store.product_stock(&id, Freshness::StaleOk, at(9)).await.unwrap())
        .await;
    fixture.audit_closes().await;
}

pub(super) async fn an_expected_level_guards_a_setting(fixture: Fixture) {
    fixture.put(priced_product("a", 100)).await;
    let expecting = |on_hand, expected, seconds| SetOnHand {
        expected_on_hand: Some(expected),
        ..fixture.setting("a", "north", on_hand, at(seconds))
    };
    let refused = refusal(fixture.store.set_on_hand(expecting(5, 1, 1)).await);
    assert_eq!(refused, Refusal::StockChanged { current: level("a", "north", 0, 0, 1) });
    fixture.store.set_on_hand(expecting(5, 0, 2)).await.unwrap();
    let refused = refusal(fixture.store.set_on_hand(expecting(9, 0, 3)).await);
    assert_eq!(refused, Refusal::StockChanged { current: level("a", "north", 5, 0, 2) });
    let set = fixture.store.set_on_hand(expecting(9, 5, 4)).await.unwrap();
    assert_eq!(set, level("a", "north", 9, 0, 4));
    fixture.audit_closes().await;
}

pub(super) async fn a_level_is_never_below_what_is_reserved(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    fixture.reserve(&[("a", 3)], at(1)).await.unwrap();
    fixture.order("u", &[("a", 2)], at(2)).await.unwrap();
    let refused = refusal(fixture.on_hand("a", "north", 4, at(3)).await);
    assert_eq!(refused, Refusal::StockBelowReserved { current: level("a", "north", 10, 5, 2) });
    let changed = SetOnHand { expected_on_hand: Some(1), ..fixture.setting("a", "north", 4, at(3)) };
    let first = refusal(fixture.store.set_on_hand(changed).await);
    assert!(matches!(first, Refusal::StockChanged { .. }), "the expectation comes first");
    assert_eq!(fixture.level("a", "north", at(3)).await, (10, 5));
    fixture.on_hand("a", "north", 5, at(4)).await.unwrap();
    assert_eq!(fixture.level("a", "north", at(4)).await, (5, 5));
    fixture.audit_closes().await;
}

pub(super) async fn an_expired_hold_does_not_keep_a_level_up(fixture: Fixture) {
    fixture.stocked("a", 10).await;
    fixture.reserve(&[("a", 6)], at(0)).await.unwrap();
    let refused = refusal(fixture.on_hand("a", "north", 1, just_before(at(HOLD))).await);
    assert!(matches!(refused, Refusal::StockBelowReserved { .. }), "{refused:?}");
    let set = fixture.on_hand("a", "north", 1, at(HOLD)).await.unwrap();
    assert_eq!(set.level, Level { on_hand: 1, reserved: 0 });
    fixture.audit_closes().await;
}

pub(super) async fn stock_is_of_known_products_only(fixture: Fixture) {
    let missing = Refusal::ProductNotFound(product_id("a"));
    assert_eq!(refusal(fixture.on_hand("a", "north", 1, at(0)).await), missing);
    let adjusted = fixture.store.adjust(fixture.adjusting("a", 1, at(0))).await;
    assert_eq!(refusal(adjusted), missing);
    fixture.stocked("a", 1).await;
    fixture.store.delete_product(&product_id("a"), at(1)).await.unwrap();
    assert_eq!(refusal(fixture.on_hand("a", "north", 2, at(1)).await), missing);
    assert_eq!(fixture.level("a", "north", at(1)).await, (1, 0));
    assert_eq!(fixture.audit().await.levels, 1);
}

pub(super) async fn an_adjustment_adds_and_removes(fixture: Fixture) {
    fixture.put(priced_product("a", 100)).await;
    let adjust = async |delta, seconds| {
        let done = fixture.store.adjust(fixture.adjusting("a", delta, at(seconds))).await;
        done.map(|done| done.value)
    };
    assert_eq!(adjust(7, 1).await, Ok(level("a", "north", 7, 0, 1)), "starts at 0");
    assert_eq!(adjust(-3, 2).await, Ok(level("a", "north", 4, 0, 2)));
    fixture.reserve(&[("a", 2)], at(3)).await.unwrap();
    let refused = refusal(adjust(-3, 4).await);
    assert_eq!(refused, Refusal::StockBelowReserved { current: level("a", "north", 4, 2, 3) });
    assert_eq!(adjust(-2, 5).await, Ok(level("a", "north", 2, 2, 5)));
    for (delta, seconds) in [(1, 6), (1, 6), (1, 6)] {
        adjust(delta, seconds).await.unwrap();
    }
    assert_eq!(fixture.level("a", "north", at(7)).await, (5, 2));
    fixture.audit_closes().await;
}

pub(super) async fn an_adjustment_stays_within_the_limits(fixture: Fixture) {
    fixture.stocked("a", ON_HAND_MAX - 1).await;
    for delta in [2, i64::MAX] {
        let refused = refusal(fixture.store.adjust(fixture.adjusting("a", delta, at(1))).await);
        assert!(matches!(&refused, Refusal::InvalidField { field, .. } if field == "delta"), "{refused:?}");
    }
    fixture.store.adjust(fixture.adjusting("a", 1, at(2))).await.unwrap();
    for delta in [-ON_HAND_MAX.cast_signed() - 1, i64::MIN] {
        let refused = refusal(fixture.store.adjust(fixture.adjusting("a", delta, at(3))).await);
        assert!(matches!(refused, Refusal::StockBelowReserved { .. }), "{refused:?}");
    }
    assert_eq!(fixture.level("a", "north", at(4)).await, (ON_HAND_MAX, 0));

    let elsewhere = Adjust { geo_zone: zone("south"), ..fixture.adjusting("a", -1, at(5)) };
    let refused = refusal(fixture.store.adjust(elsewhere).await);
    let Refusal::StockBelowReserved { current } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(current.level, Level::default());
    let zones = fixture.store.product_stock(&product_id("a"), Freshness::Latest, at(6)).await.unwrap();
    assert_eq!(zones.len(), 1, "a refusal leaves no zone behind");
    fixture.audit_closes().await;
}

pub(super) async fn an_audit_counts_levels_and_reports_its_progress(fixture: Fixture) {
    let audit = fixture.audit().await;
    assert_eq!((audit.levels, audit.drifts), (0, vec![]));
    for name in ["a", "b", "c"] {
        fixture.stocked(name, 5).await;
        fixture.on_hand(name, "south", 1, at(1)).await.unwrap();
    }
    fixture.reserve(&[("a", 1), ("b", 2)], at(2)).await.unwrap();
    let last = AtomicU64::new(0);
    let progress = |done| {
        let before = last.swap(done, Ordering::Relaxed);
        assert!(before <= done, "progress goes forward");
    };
    let audit = fixture.store.audit(&progress).await.unwrap();
    assert_eq!((audit.levels, audit.drifts), (6, vec![]));
    assert!(audit.movements > 0);
    assert_eq!(last.load(Ordering::Relaxed), 6);
}
