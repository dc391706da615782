//! Cases of export and import: backup, restore, migration between engines.

use mw_domain::stock::{Cause, Delta};
use mw_domain::{Level, MergeMode, Movement, OrderStatus, Period, Product, Session, ZoneStock};
use uuid::Uuid;

use super::fixtures::{
    DAY, Fixture, HOLD, LIFETIME, PAYMENT_WINDOW, abandoning, at, category, demands, guest, identity, moving,
    priced_product, product_id, session_id, user, user_id, walk, walk_every_way, zone,
};
use super::random;
use crate::export::{Checkpoint, Record};
use crate::orders::{Basket, PlaceOrder, SetStatus};
use crate::products::CategoryQuery;
use crate::sessions::CreateSession;
use crate::{Freshness, PageRequest};

/// A store with records of every kind.
async fn fill(fixture: &Fixture) {
    for (name, on_hand) in [("a", 50), ("b", 20), ("c", 0)] {
        fixture.stocked(name, on_hand).await;
    }
    fixture.on_hand("a", "south", 7, at(1)).await.unwrap();
    fixture.set_all(&user("u"), &[("a", 1), ("b", 2)], at(2)).await;
    fixture.checkout("u", at(3)).await.unwrap();
    fixture.set(&user("u"), "c", 3, at(4)).await;
    fixture.set(&guest("s"), "a", 4, at(4)).await;
    fixture.merge("u", "s", MergeMode::Sum, at(5)).await;
    fixture.set(&guest("t"), "a", 1, at(5)).await;
    fixture.store.abandon(abandoning(&guest("t"), at(6))).await.unwrap();
    let paid = fixture.order("v", &[("a", 5)], at(7)).await.unwrap();
    let pay = SetStatus {
        identity: Some(identity("m", 1, at(8))),
        ..moving(paid.order_id, OrderStatus::Paid, at(8))
    };
    fixture.store.set_status(pay).await.unwrap();
    let keyed = PlaceOrder {
        identity: Some(identity("k", 1, at(9))),
        ..fixture.ordering("v", Basket::Lines(demands(&[("b", 3)])), at(9))
    };
    fixture.store.place_order(keyed).await.unwrap();
    fixture.reserve(&[("a", 6), ("b", 1)], at(10)).await.unwrap();
    let confirmed = fixture.reserve(&[("a", 2)], at(10)).await.unwrap();
    fixture.store.confirm(confirmed.reservation_id, at(11), Some(identity("l", 1, at(11)))).await.unwrap();
    let session = Session {
        session_id: session_id("s"),
        user_id: Some(user_id("u")),
        geo_zone: None,
        ip: None,
        user_agent: None,
        device_type: None,
        data: [("k".to_owned(), "v".to_owned())].into(),
        created_at: at(0),
        last_activity: at(0),
        expires_at: at(DAY),
    };
    let command = CreateSession { session, now: at(0), id_seed: None, identity: None };
    fixture.store.create_session(command).await.unwrap();
}

async fn export(fixture: &Fixture) -> Vec<Record> {
    let export = fixture.store.export().await.unwrap();
    let mut records = walk(7, async |request| export.page(request).await).await.unwrap();
    records.sort_by_cached_key(|record| format!("{record:?}"));
    records
}

fn checkpoint(done: usize) -> Checkpoint {
    Checkpoint { import: "backup".to_owned(), done: done as u64 }
}

async fn import(fixture: &Fixture, records: Vec<Record>) {
    let checkpoint_after = checkpoint(records.len());
    fixture.store.import(records, checkpoint_after).await.unwrap();
}

fn phones() -> CategoryQuery {
    CategoryQuery {
        category: category("phones"),
        min_price: None,
        max_price: None,
        descending: false,
        geo_zone: Some(zone("north")),
        in_stock: false,
    }
}

async fn listed(fixture: &Fixture) -> Vec<(String, i64)> {
    let query = phones();
    let listed = walk_every_way(async |request| {
        fixture.store.category(&query, Freshness::Latest, at(20), request).await
    })
    .await;
    listed
        .into_iter()
        .map(|item| (item.product.product_id.to_string(), item.product.price.as_minor()))
        .collect()
}

pub(super) async fn an_export_has_every_kind_of_record(fixture: Fixture) {
    assert!(fixture.store.is_empty().await.unwrap());
    fill(&fixture).await;
    assert!(!fixture.store.is_empty().await.unwrap());
    let records = export(&fixture).await;
    let count = |is_kind: fn(&Record) -> bool| records.iter().filter(|record| is_kind(record)).count();
    assert_eq!(count(|record| matches!(record, Record::Product(_))), 3);
    assert_eq!(count(|record| matches!(record, Record::Stock { .. })), 4);
    assert_eq!(count(|record| matches!(record, Record::Cart(_))), 4);
    assert_eq!(count(|record| matches!(record, Record::CartChange { .. })), 6);
    assert_eq!(count(|record| matches!(record, Record::Session(_))), 1);
    assert_eq!(count(|record| matches!(record, Record::Reservation(_))), 2);
    assert_eq!(count(|record| matches!(record, Record::Order { .. })), 3);
    assert_eq!(count(|record| matches!(record, Record::StoredOutcome(_))), 3);
    let whole = fixture.store.export().await.unwrap();
    assert!(whole.estimate() > 0);
    walk_every_way(async |request| whole.page(request).await).await;
}

pub(super) async fn an_export_is_unmoved_by_later_writes(fixture: Fixture) {
    fill(&fixture).await;
    let before = export(&fixture).await;
    let running = fixture.store.export().await.unwrap();
    let first = running.page(PageRequest::first(3)).await.unwrap();
    fixture.put(priced_product("aa", 1)).await;
    fixture.on_hand("a", "north", 49, at(15)).await.unwrap();
    fixture.order("w", &[("a", 1)], at(15)).await.unwrap();
    fixture.set(&user("w"), "a", 1, at(15)).await;
    let mut records = first.items;
    let mut next = first.next;
    while let Some(after) = next {
        let request = PageRequest { limit: 5, after: Some(after) };
        let page = running.page(request).await.unwrap();
        records.extend(page.items);
        next = page.next;
    }
    records.sort_by_cached_key(|record| format!("{record:?}"));
    assert_eq!(records, before);
}

pub(super) async fn an_import_gives_the_same_store(from: Fixture, to: Fixture) {
    fill(&from).await;
    let records = export(&from).await;
    import(&to, records.clone()).await;
    assert_eq!(export(&to).await, records);
    to.audit_closes().await;
    assert_eq!(listed(&to).await, listed(&from).await);
    for owner in [user("u"), guest("s"), guest("t")] {
        let (one, other) = (&from.store, &to.store);
        assert_eq!(other.active_cart(&owner, at(20)).await, one.active_cart(&owner, at(20)).await);
        let page = || PageRequest::first(50);
        assert_eq!(
            other.carts(&owner, at(20), page()).await.unwrap().items,
            one.carts(&owner, at(20), page()).await.unwrap().items
        );
        assert_eq!(
            other.cart_changes(&owner, at(20), page()).await.unwrap().items,
            one.cart_changes(&owner, at(20), page()).await.unwrap().items
        );
    }
    for name in ["u", "v"] {
        let orders = async |fixture: &Fixture| {
            fixture
                .store
                .user_orders(&user_id(name), Period::ALL, PageRequest::first(50))
                .await
                .unwrap()
                .items
        };
        assert_eq!(orders(&to).await, orders(&from).await);
    }
    let day = Period::day(at(0).date());
    assert_eq!(to.store.sales(None, day).await, from.store.sales(None, day).await);
    let sessions = to.store.user_sessions(&user_id("u"), at(20), PageRequest::first(5)).await;
    assert_eq!(sessions.unwrap().items.len(), 1);
}

pub(super) async fn an_imported_store_goes_on(from: Fixture, to: Fixture) {
    fill(&from).await;
    import(&to, export(&from).await).await;
    let keyed = PlaceOrder {
        identity: Some(identity("k", 1, at(20))),
        ..to.ordering("v", Basket::Lines(demands(&[("b", 3)])), at(20))
    };
    assert!(to.store.place_order(keyed).await.unwrap().replayed);
    assert_eq!(to.level("a", "north", at(20)).await, from.level("a", "north", at(20)).await);
    let (on_hand, reserved) = to.level("a", "north", at(20)).await;
    assert_eq!((on_hand, reserved), (43, 7));
    assert_eq!(to.store.expire_reservations(at(10 + HOLD), 10).await, Ok(1), "the open hold");
    let unpaid = at(9 + PAYMENT_WINDOW);
    assert_eq!(to.store.cancel_unpaid(unpaid, "late", 10).await, Ok(2), "the two unpaid orders");
    assert_eq!(to.level("a", "north", unpaid).await, (43, 0));
    to.audit_closes().await;
    let idle = to.store.idle_carts(unpaid, unpaid, PageRequest::first(10)).await.unwrap();
    assert_eq!(idle.items.len(), 2);
    let cart = crate::carts::SetLine { lifetime: LIFETIME, ..to.line(&user("u"), "z", 1, unpaid) };
    assert_eq!(to.store.set_line(cart).await.unwrap().lines.len(), 3);
}

pub(super) async fn the_order_of_records_does_not_matter(from: Fixture, to: Fixture) {
    fill(&from).await;
    let records = export(&from).await;
    let (even, odd): (Vec<_>, Vec<_>) =
        records.iter().cloned().enumerate().partition(|(number, _)| number % 2 == 0);
    let mut shuffled: Vec<Record> = odd.into_iter().rev().map(|(_, record)| record).collect();
    shuffled.extend(even.into_iter().map(|(_, record)| record));
    for record in shuffled {
        import(&to, vec![record]).await;
    }
    assert_eq!(export(&to).await, records);
    assert_eq!(listed(&to).await, listed(&from).await);
    to.audit_closes().await;
}

pub(super) async fn importing_twice_is_harmless(from: Fixture, to: Fixture) {
    fill(&from).await;
    let records = export(&from).await;
    import(&to, records.clone()).await;
    import(&to, records.clone()).await;
    assert_eq!(export(&to).await, records);
    assert_eq!(listed(&to).await, listed(&from).await);
    let day = Period::day(at(0).date());
    assert_eq!(to.store.sales(None, day).await, from.store.sales(None, day).await);
    to.audit_closes().await;
    import(&from, records.clone()).await;
    assert_eq!(export(&from).await, records, "also into the store it came from");
    from.audit_closes().await;
}

pub(super) async fn an_import_resumes_from_its_checkpoint(from: Fixture, to: Fixture) {
    fill(&from).await;
    let records = export(&from).await;
    let progress = async |name| to.store.import_progress(name).await.unwrap();
    assert_eq!(progress("backup").await, 0);
    let mut done = 0;
    for chunk in records.chunks(4) {
        done += chunk.len();
        to.store.import(chunk.to_vec(), checkpoint(done)).await.unwrap();
        assert_eq!(progress("backup").await, done as u64);
    }
    assert_eq!(progress("another").await, 0);
    assert_eq!(export(&to).await, records, "a checkpoint is no record");
}

pub(super) async fn an_imported_record_replaces_what_was_there(fixture: Fixture) {
    fill(&fixture).await;
    let dearer = Product { category: category("cables"), ..priced_product("b", 900) };
    import(&fixture, vec![Record::Product(dearer.clone())]).await;
    let found = fixture.store.product(&product_id("b"), Freshness::Latest).await;
    assert_eq!(found, Ok(Some(dearer.into())));
    let names: Vec<String> = listed(&fixture).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "c"], "it is gone from its old category");

    let mut cart = fixture.active(&user("u"), at(20)).await.unwrap();
    cart.lines.truncate(1);
    cart.version += 1;
    import(&fixture, vec![Record::Cart(cart.clone())]).await;
    assert_eq!(fixture.active(&user("u"), at(20)).await, Some(cart));
    fixture.audit_closes().await;
}

pub(super) async fn a_ledger_in_parts_is_one_ledger(fixture: Fixture) {
    fixture.put(priced_product("a", 100)).await;
    let movement = |op, cause: Cause, units| Movement {
        at: at(i64::from(op)),
        op: Uuid::from_u128(u128::from(op)),
        cause,
        delta: if cause == Cause::Set { Delta { on_hand: 10, reserved: 0 } } else { cause.delta(units) },
        note: None,
    };
    let stock = ZoneStock {
        product_id: product_id("a"),
        geo_zone: zone("north"),
        level: Level { on_hand: 7, reserved: 0 },
        updated_at: at(9),
    };
    let part = |ledger| Record::Ledger { product_id: product_id("a"), geo_zone: zone("north"), ledger };
    let mut head =
        Record::Stock { stock, ledger: vec![movement(1_u32, Cause::Set, 0), movement(2, Cause::Hold, 3)] };
    let parts = [part(vec![movement(2, Cause::Take, 3)]), part(vec![movement(3, Cause::Return, 0)])];
    let records = if fixture.store.imports_ledger_parts() {
        std::iter::once(head).chain(parts).collect()
    } else {
        assert!(parts.iter().all(|part| head.absorb(part)));
        vec![head]
    };
    for _ in 0..2 {
        for record in records.clone() {
            import(&fixture, vec![record]).await;
        }
        assert_eq!(fixture.level("a", "north", at(20)).await, (7, 0));
        fixture.audit_closes().await;
    }
    fixture.reserve(&[("a", 7)], at(20)).await.unwrap();
    fixture.audit_closes().await;
}

pub(super) async fn a_whole_shop_of_another_engine_moves_in(fixture: Fixture) {
    let mut moved = random::fill(20_260_310, 600, &*fixture.store).await;
    moved.compare(&fixture.store).await;
}
