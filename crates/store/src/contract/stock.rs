//! Cases of stock figures: setting, adjusting, zones, and the ledger behind them.

use std::sync::atomic::{AtomicU64, Ordering};

use mw_domain::limits::ON_HAND_MAX;
use mw_domain::{Level, ZoneStock};

use super::given::{Desk, HOLD, at, card, just_before, product_id, refusal, shown, zone};
use crate::stock::{Adjust, SetOnHand};
use crate::{Freshness, Refusal};

fn figure(name: &str, of_zone: &str, on_hand: u64, reserved: u64, seconds: i64) -> ZoneStock {
    ZoneStock {
        product_id: product_id(name),
        geo_zone: zone(of_zone),
        level: Level { on_hand, reserved },
        updated_at: at(seconds),
    }
}

pub(super) async fn a_figure_is_set_and_read_by_zone(desk: Desk) {
    desk.put(card("a", 100)).await;
    let id = product_id("a");
    let read = async |name| desk.store.zone_stock(&id, &zone(name), Freshness::Full, at(9)).await.unwrap();
    assert_eq!(read("north").await, None);
    assert_eq!(desk.store.product_stock(&id, Freshness::Full, at(9)).await, Ok(vec![]));

    let set = desk.on_hand("a", "south", 8, at(1)).await.unwrap();
    assert_eq!(set, figure("a", "south", 8, 0, 1));
    desk.on_hand("a", "north", 3, at(2)).await.unwrap();
    desk.on_hand("a", "north", 5, at(3)).await.unwrap();
    desk.put(card("ab", 100)).await;
    desk.on_hand("ab", "north", 1, at(4)).await.unwrap();
    assert_eq!(read("north").await, Some(figure("a", "north", 5, 0, 3)));
    let zones = vec![figure("a", "north", 5, 0, 3), figure("a", "south", 8, 0, 1)];
    assert_eq!(desk.store.product_stock(&id, Freshness::Full, at(9)).await.unwrap(), zones);
    shown(&zones, async || desk.store.product_stock(&id, Freshness::Showcase, at(9)).await.unwrap()).await;
    desk.audit_closes().await;
}

pub(super) async fn an_expected_figure_guards_a_setting(desk: Desk) {
    desk.put(card("a", 100)).await;
    let expecting = |on_hand, expected, seconds| SetOnHand {
        expected_on_hand: Some(expected),
        ..desk.setting("a", "north", on_hand, at(seconds))
    };
    let refused = refusal(desk.store.set_on_hand(expecting(5, 1, 1)).await);
    assert_eq!(refused, Refusal::StockChanged { current: figure("a", "north", 0, 0, 1) });
    desk.store.set_on_hand(expecting(5, 0, 2)).await.unwrap();
    let refused = refusal(desk.store.set_on_hand(expecting(9, 0, 3)).await);
    assert_eq!(refused, Refusal::StockChanged { current: figure("a", "north", 5, 0, 2) });
    let set = desk.store.set_on_hand(expecting(9, 5, 4)).await.unwrap();
    assert_eq!(set, figure("a", "north", 9, 0, 4));
    desk.audit_closes().await;
}

pub(super) async fn a_figure_is_never_below_what_is_reserved(desk: Desk) {
    desk.stocked("a", 10).await;
    desk.reserve(&[("a", 3)], at(1)).await.unwrap();
    desk.order("u", &[("a", 2)], at(2)).await.unwrap();
    let refused = refusal(desk.on_hand("a", "north", 4, at(3)).await);
    assert_eq!(refused, Refusal::StockBelowReserved { current: figure("a", "north", 10, 5, 2) });
    let changed = SetOnHand { expected_on_hand: Some(1), ..desk.setting("a", "north", 4, at(3)) };
    let first = refusal(desk.store.set_on_hand(changed).await);
    assert!(matches!(first, Refusal::StockChanged { .. }), "the expectation comes first");
    assert_eq!(desk.level("a", "north", at(3)).await, (10, 5));
    desk.on_hand("a", "north", 5, at(4)).await.unwrap();
    assert_eq!(desk.level("a", "north", at(4)).await, (5, 5));
    desk.audit_closes().await;
}

pub(super) async fn an_expired_hold_does_not_keep_a_figure_up(desk: Desk) {
    desk.stocked("a", 10).await;
    desk.reserve(&[("a", 6)], at(0)).await.unwrap();
    let refused = refusal(desk.on_hand("a", "north", 1, just_before(at(HOLD))).await);
    assert!(matches!(refused, Refusal::StockBelowReserved { .. }), "{refused:?}");
    let set = desk.on_hand("a", "north", 1, at(HOLD)).await.unwrap();
    assert_eq!(set.level, Level { on_hand: 1, reserved: 0 });
    desk.audit_closes().await;
}

pub(super) async fn stock_is_of_known_products_only(desk: Desk) {
    let missing = Refusal::ProductNotFound(product_id("a"));
    assert_eq!(refusal(desk.on_hand("a", "north", 1, at(0)).await), missing);
    let adjusted = desk.store.adjust(desk.adjusting("a", 1, at(0))).await;
    assert_eq!(refusal(adjusted), missing);
    desk.stocked("a", 1).await;
    desk.store.delete_product(&product_id("a")).await.unwrap();
    assert_eq!(refusal(desk.on_hand("a", "north", 2, at(1)).await), missing);
    assert_eq!(desk.level("a", "north", at(1)).await, (1, 0));
    assert_eq!(desk.audit().await.figures, 1);
}

pub(super) async fn an_adjustment_adds_and_removes(desk: Desk) {
    desk.put(card("a", 100)).await;
    let adjust = async |delta, seconds| {
        let done = desk.store.adjust(desk.adjusting("a", delta, at(seconds))).await;
        done.map(|done| done.value)
    };
    assert_eq!(adjust(7, 1).await, Ok(figure("a", "north", 7, 0, 1)), "starts at 0");
    assert_eq!(adjust(-3, 2).await, Ok(figure("a", "north", 4, 0, 2)));
    desk.reserve(&[("a", 2)], at(3)).await.unwrap();
    let refused = refusal(adjust(-3, 4).await);
    assert_eq!(refused, Refusal::StockBelowReserved { current: figure("a", "north", 4, 2, 3) });
    assert_eq!(adjust(-2, 5).await, Ok(figure("a", "north", 2, 2, 5)));
    for (delta, seconds) in [(1, 6), (1, 6), (1, 6)] {
        adjust(delta, seconds).await.unwrap();
    }
    assert_eq!(desk.level("a", "north", at(7)).await, (5, 2));
    desk.audit_closes().await;
}

pub(super) async fn an_adjustment_stays_within_the_limits(desk: Desk) {
    desk.stocked("a", ON_HAND_MAX - 1).await;
    for delta in [2, i64::MAX] {
        let refused = refusal(desk.store.adjust(desk.adjusting("a", delta, at(1))).await);
        assert!(matches!(&refused, Refusal::InvalidField { field, .. } if field == "delta"), "{refused:?}");
    }
    desk.store.adjust(desk.adjusting("a", 1, at(2))).await.unwrap();
    for delta in [-ON_HAND_MAX.cast_signed() - 1, i64::MIN] {
        let refused = refusal(desk.store.adjust(desk.adjusting("a", delta, at(3))).await);
        assert!(matches!(refused, Refusal::StockBelowReserved { .. }), "{refused:?}");
    }
    assert_eq!(desk.level("a", "north", at(4)).await, (ON_HAND_MAX, 0));

    let elsewhere = Adjust { geo_zone: zone("south"), ..desk.adjusting("a", -1, at(5)) };
    let refused = refusal(desk.store.adjust(elsewhere).await);
    let Refusal::StockBelowReserved { current } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(current.level, Level::default());
    let zones = desk.store.product_stock(&product_id("a"), Freshness::Full, at(6)).await.unwrap();
    assert_eq!(zones.len(), 1, "a refusal leaves no zone behind");
    desk.audit_closes().await;
}

pub(super) async fn an_audit_counts_figures_and_tells_its_progress(desk: Desk) {
    let audit = desk.audit().await;
    assert_eq!((audit.figures, audit.drifts), (0, vec![]));
    for name in ["a", "b", "c"] {
        desk.stocked(name, 5).await;
        desk.on_hand(name, "south", 1, at(1)).await.unwrap();
    }
    desk.reserve(&[("a", 1), ("b", 2)], at(2)).await.unwrap();
    let last = AtomicU64::new(0);
    let progress = |done| {
        let before = last.swap(done, Ordering::Relaxed);
        assert!(before <= done, "progress goes forward");
    };
    let audit = desk.store.audit(&progress).await.unwrap();
    assert_eq!((audit.figures, audit.drifts), (6, vec![]));
    assert!(audit.movements > 0);
    assert_eq!(last.load(Ordering::Relaxed), 6);
}
