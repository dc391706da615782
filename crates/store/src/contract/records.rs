//! Cases of taking everything out and in: backup, restore, moving between engines.

use mw_domain::{MergeMode, OrderStatus, Period, Product, Session};

use super::given::{
    DAY, Desk, HOLD, LIFETIME, PAYMENT_WINDOW, abandoning, at, card, category, demands, guest, once,
    product_id, session_id, user, user_id, walk, walk_every_way, zone,
};
use super::random;
use crate::orders::{Basket, PlaceOrder};
use crate::products::CategoryQuery;
use crate::records::{Checkpoint, Record};
use crate::sessions::CreateSession;
use crate::{Freshness, PageRequest};

/// A shop with some of everything in it.
async fn fill(desk: &Desk) {
    for (name, on_hand) in [("a", 50), ("b", 20), ("c", 0)] {
        desk.stocked(name, on_hand).await;
    }
    desk.on_hand("a", "south", 7, at(1)).await.unwrap();
    desk.set_all(&user("u"), &[("a", 1), ("b", 2)], at(2)).await;
    desk.checkout("u", at(3)).await.unwrap();
    desk.set(&user("u"), "c", 3, at(4)).await;
    desk.set(&guest("s"), "a", 4, at(4)).await;
    desk.merge("u", "s", MergeMode::Sum, at(5)).await;
    desk.set(&guest("t"), "a", 1, at(5)).await;
    desk.store.abandon(abandoning(&guest("t"), at(6))).await.unwrap();
    let paid = desk.order("v", &[("a", 5)], at(7)).await.unwrap();
    desk.status(paid.order_id, OrderStatus::Paid, at(8)).await.unwrap();
    let keyed = PlaceOrder {
        once: Some(once("k", 1, at(9))),
        ..desk.ordering("v", Basket::Lines(demands(&[("b", 3)])), at(9))
    };
    desk.store.place_order(keyed).await.unwrap();
    desk.reserve(&[("a", 6), ("b", 1)], at(10)).await.unwrap();
    let confirmed = desk.reserve(&[("a", 2)], at(10)).await.unwrap();
    desk.store.confirm(confirmed.reservation_id, at(11), Some(once("l", 1, at(11)))).await.unwrap();
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
    let command = CreateSession { session, now: at(0), made_of: None, once: None };
    desk.store.create_session(command).await.unwrap();
}

async fn export(desk: &Desk) -> Vec<Record> {
    let export = desk.store.export().await.unwrap();
    let mut records = walk(7, async |request| export.page(request).await).await.unwrap();
    records.sort_by_cached_key(|record| format!("{record:?}"));
    records
}

fn checkpoint(done: usize) -> Checkpoint {
    Checkpoint { import: "backup".to_owned(), done: done as u64 }
}

async fn import(desk: &Desk, records: Vec<Record>) {
    let mark = checkpoint(records.len());
    desk.store.import(records, mark).await.unwrap();
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

async fn listed(desk: &Desk) -> Vec<(String, i64)> {
    let query = phones();
    let listed =
        walk_every_way(async |request| desk.store.category(&query, Freshness::Full, at(20), request).await)
            .await;
    listed
        .into_iter()
        .map(|item| (item.product.product_id.to_string(), item.product.price.as_minor()))
        .collect()
}

pub(super) async fn an_export_has_every_kind_of_record(desk: Desk) {
    assert!(desk.store.is_empty().await.unwrap());
    fill(&desk).await;
    assert!(!desk.store.is_empty().await.unwrap());
    let records = export(&desk).await;
    let count = |is_kind: fn(&Record) -> bool| records.iter().filter(|record| is_kind(record)).count();
    assert_eq!(count(|record| matches!(record, Record::Product(_))), 3);
    assert_eq!(count(|record| matches!(record, Record::Stock { .. })), 4);
    assert_eq!(count(|record| matches!(record, Record::Cart(_))), 4);
    assert_eq!(count(|record| matches!(record, Record::CartChange { .. })), 6);
    assert_eq!(count(|record| matches!(record, Record::Session(_))), 1);
    assert_eq!(count(|record| matches!(record, Record::Reservation(_))), 2);
    assert_eq!(count(|record| matches!(record, Record::Order { .. })), 3);
    assert_eq!(count(|record| matches!(record, Record::Remembered(_))), 2);
    let whole = desk.store.export().await.unwrap();
    assert!(whole.estimate() > 0);
    walk_every_way(async |request| whole.page(request).await).await;
}

pub(super) async fn an_export_is_unmoved_by_later_writes(desk: Desk) {
    fill(&desk).await;
    let before = export(&desk).await;
    let running = desk.store.export().await.unwrap();
    let first = running.page(PageRequest::first(3)).await.unwrap();
    desk.put(card("aa", 1)).await;
    desk.on_hand("a", "north", 49, at(15)).await.unwrap();
    desk.order("w", &[("a", 1)], at(15)).await.unwrap();
    desk.set(&user("w"), "a", 1, at(15)).await;
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

pub(super) async fn an_import_gives_the_same_store(from: Desk, to: Desk) {
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
        let orders = async |desk: &Desk| {
            desk.store
                .customer_orders(&user_id(name), Period::ALL, PageRequest::first(50))
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

pub(super) async fn an_imported_store_goes_on(from: Desk, to: Desk) {
    fill(&from).await;
    import(&to, export(&from).await).await;
    let keyed = PlaceOrder {
        once: Some(once("k", 1, at(20))),
        ..to.ordering("v", Basket::Lines(demands(&[("b", 3)])), at(20))
    };
    assert!(to.store.place_order(keyed).await.unwrap().replayed);
    assert_eq!(to.level("a", "north", at(20)).await, from.level("a", "north", at(20)).await);
    let (on_hand, reserved) = to.level("a", "north", at(20)).await;
    assert_eq!((on_hand, reserved), (43, 7));
    assert_eq!(to.store.settle_expired(at(10 + HOLD), 10).await, Ok(1), "the open hold");
    let unpaid = at(9 + PAYMENT_WINDOW);
    assert_eq!(to.store.cancel_unpaid(unpaid, "late", 10).await, Ok(2), "the two unpaid orders");
    assert_eq!(to.level("a", "north", unpaid).await, (43, 0));
    to.audit_closes().await;
    let idle = to.store.idle_carts(unpaid, unpaid, PageRequest::first(10)).await.unwrap();
    assert_eq!(idle.items.len(), 2);
    let cart = crate::carts::SetLine { lifetime: LIFETIME, ..to.line(&user("u"), "z", 1, unpaid) };
    assert_eq!(to.store.set_line(cart).await.unwrap().lines.len(), 3);
}

pub(super) async fn the_order_of_records_does_not_matter(from: Desk, to: Desk) {
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

pub(super) async fn importing_twice_is_harmless(from: Desk, to: Desk) {
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

pub(super) async fn an_import_resumes_from_its_checkpoint(from: Desk, to: Desk) {
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

pub(super) async fn an_imported_record_replaces_what_was_there(desk: Desk) {
    fill(&desk).await;
    let dearer = Product { category: category("cables"), ..card("b", 900) };
    import(&desk, vec![Record::Product(dearer.clone())]).await;
    let found = desk.store.product(&product_id("b"), Freshness::Full).await;
    assert_eq!(found, Ok(Some(dearer.into())));
    let names: Vec<String> = listed(&desk).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "c"], "it left its old place");

    let mut cart = desk.active(&user("u"), at(20)).await.unwrap();
    cart.lines.truncate(1);
    cart.version += 1;
    import(&desk, vec![Record::Cart(cart.clone())]).await;
    assert_eq!(desk.active(&user("u"), at(20)).await, Some(cart));
    desk.audit_closes().await;
}

pub(super) async fn a_whole_shop_of_another_engine_moves_in(desk: Desk) {
    let mut moved = random::fill(20_260_310, 600, &*desk.store).await;
    moved.compare(&desk.store).await;
}
