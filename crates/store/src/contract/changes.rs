//! The change feed: complete, nothing besides, in order, stable, and readable from any position that is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_domain::products::ProductPatch;
use mw_domain::{Cart, MergeMode, Order, OrderId, OrderStatus, Product, Timestamp, ZoneStock};

use super::fixtures::{
    DAY, Fixture, HOLD, PAYMENT_WINDOW, abandoning, at, bad_positions, concurrently, demands, guest,
    identity, moving, priced_product, product_id, refusal, removal, user, user_id, zone,
};
use super::sessions::{create, login};
use crate::changes::{ChangeEvent, Changed, FeedStart, ReadChanges, Topic, Topics};
use crate::orders::{Basket, PlaceOrder};
use crate::products::ImportProduct;
use crate::{Freshness, Position, Refusal, Result};

/// A change is in the feed this soon after it was acknowledged.
const FEED_LAG_MAX: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// When everything that a case writes is no longer kept, whatever clock an engine keeps changes by.
const FAR_AHEAD_DAYS: i64 = 100 * 365;

/// Whether the engine records these topics; a case about others has nothing to say.
fn writes(fixture: &Fixture, topics: &[Topic]) -> bool {
    topics.iter().all(|topic| fixture.store.feed().topics.contains(*topic))
}

fn request(fixture: &Fixture, start: FeedStart, limit: usize) -> ReadChanges {
    ReadChanges { start, topics: fixture.store.feed().topics, limit, now: at(0) }
}

/// All changes from a position on, in pages of `limit`, and the position after them.
async fn walk(fixture: &Fixture, start: FeedStart, limit: usize) -> (Vec<ChangeEvent>, Position) {
    let mut request = request(fixture, start, limit);
    let mut changes = Vec::new();
    loop {
        let page = fixture.store.changes(request.clone()).await.unwrap();
        assert!(page.items.len() <= limit, "a page of more than {limit} changes");
        let is_end = page.items.is_empty() && request.start == FeedStart::After(page.next.clone());
        changes.extend(page.items);
        if is_end {
            return (changes, page.next);
        }
        request.start = FeedStart::After(page.next);
    }
}

/// Reads the whole feed until it has what the case expects.
async fn until(fixture: &Fixture, is_there: impl Fn(&[ChangeEvent]) -> bool) -> Vec<ChangeEvent> {
    let started = Instant::now();
    loop {
        let (changes, _) = walk(fixture, FeedStart::Oldest, 1_000).await;
        if is_there(&changes) {
            return changes;
        }
        assert!(started.elapsed() < FEED_LAG_MAX, "the feed has only {changes:#?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The whole feed once it has a change that is written now, and with it every change before.
async fn settled(fixture: &Fixture) -> Vec<ChangeEvent> {
    let last = format!("last-{}", fixture.uuid());
    fixture.put(priced_product(&last, 1)).await;
    let is_there = |changes: &[ChangeEvent]| changes.iter().any(|change| change.changed.subject() == last);
    let mut changes = once(until(fixture, is_there).await);
    changes.retain(|change| !change.changed.subject().starts_with("last-"));
    assert_versions_rise(&changes);
    changes
}

/// Each change where it was read first: an engine may return one again.
fn once(changes: Vec<ChangeEvent>) -> Vec<ChangeEvent> {
    let mut ids = BTreeSet::new();
    changes.into_iter().filter(|change| ids.insert(change.id.clone())).collect()
}

fn assert_versions_rise(changes: &[ChangeEvent]) {
    let mut versions: BTreeMap<String, u64> = BTreeMap::new();
    for change in changes {
        let before = versions.insert(change.changed.subject(), change.version);
        assert!(before.is_none_or(|before| before < change.version), "{before:?} before {change:?}");
    }
}

fn of<'a>(changes: &'a [ChangeEvent], subject: &str) -> Vec<&'a ChangeEvent> {
    changes.iter().filter(|change| change.changed.subject() == subject).collect()
}

fn kinds<'a>(changes: &[&'a ChangeEvent]) -> Vec<&'a str> {
    changes.iter().map(|change| change.changed.kind()).collect()
}

fn versions(changes: &[&ChangeEvent]) -> Vec<u64> {
    changes.iter().map(|change| change.version).collect()
}

fn orders(changes: &[&ChangeEvent]) -> Vec<Order> {
    let order = |change: &&ChangeEvent| match &change.changed {
        Changed::OrderCreated(order) | Changed::OrderStatus(order) => Some(order.clone()),
        _ => None,
    };
    changes.iter().filter_map(order).collect()
}

pub(super) async fn every_step_of_an_order_is_in_the_feed_as_it_was(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Orders, Topic::Products]) {
        return;
    }
    fixture.stocked("a", 10).await;
    let command = PlaceOrder {
        delivery_address: Some("the last house".to_owned()),
        payment_method: Some("cash".to_owned()),
        ..fixture.ordering("anna", Basket::Lines(demands(&[("a", 2)])), at(1))
    };
    let mut steps = vec![fixture.store.place_order(command).await.unwrap().value];
    let order_id = steps[0].order_id;
    for (to, seconds) in [(OrderStatus::Paid, 2), (OrderStatus::Shipped, 3), (OrderStatus::Delivered, 4)] {
        steps.push(fixture.status(order_id, to, at(seconds)).await.unwrap());
    }
    let changes = settled(&fixture).await;
    let found = of(&changes, &order_id.to_string());
    assert_eq!(kinds(&found), ["order.created", "order.status", "order.status", "order.status"]);
    assert_eq!(versions(&found), [1, 2, 3, 4]);
    assert_eq!(orders(&found), steps);
    let times: Vec<Timestamp> = found.iter().map(|change| change.at).collect();
    assert_eq!(times, [at(1), at(2), at(3), at(4)]);
}

pub(super) async fn stock_in_the_feed_ends_as_it_is_stored(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Stock, Topic::Products]) {
        return;
    }
    fixture.stocked("a", 10).await;
    fixture.on_hand("a", "south", 3, at(1)).await.unwrap();
    let order = fixture.order("anna", &[("a", 2)], at(2)).await.unwrap();
    fixture.reserve(&[("a", 1)], at(3)).await.unwrap();
    fixture.status(order.order_id, OrderStatus::Paid, at(4)).await.unwrap();
    fixture.store.adjust(fixture.adjusting("a", -1, at(5))).await.unwrap();
    let changes = settled(&fixture).await;
    for geo_zone in ["north", "south"] {
        let found = of(&changes, &format!("a/{geo_zone}"));
        let stored =
            fixture.store.zone_stock(&product_id("a"), &zone(geo_zone), Freshness::Latest, at(5)).await;
        let last = found.last().map(|change| change.changed.clone());
        assert_eq!(last, stored.unwrap().map(Changed::Stock), "{geo_zone}");
    }
}

pub(super) async fn a_product_in_the_feed_ends_as_it_is_stored(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Products]) {
        return;
    }
    let first = priced_product("a", 100);
    fixture.put(first.clone()).await;
    let patch = ProductPatch { name: Some("New".to_owned()), ..ProductPatch::default() };
    let patched = fixture.store.patch_product(&product_id("a"), patch, at(1)).await.unwrap();
    fixture.store.delete_product(&product_id("a"), at(2)).await.unwrap();
    let product = Product { updated_at: at(3), created_at: at(3), ..priced_product("a", 7) };
    let import = ImportProduct {
        product: product.clone(),
        stock: vec![(zone("north"), 5)],
        op: fixture.uuid(),
        now: at(3),
        identity: None,
    };
    fixture.store.import_product(import).await.unwrap();
    let changes = settled(&fixture).await;
    let found: Vec<Changed> = of(&changes, "a").into_iter().map(|change| change.changed.clone()).collect();
    let steps = [
        Changed::ProductPut(first),
        Changed::ProductPut(patched),
        Changed::ProductDeleted(product_id("a")),
        Changed::ProductPut(product),
    ];
    // A reader that is late may get only the newest state.
    assert_eq!(found.last(), steps.last());
    let mut rest = steps.iter();
    assert!(found.iter().all(|change| rest.any(|step| step == change)), "{found:?}");
    if writes(&fixture, &[Topic::Stock]) {
        assert_eq!(kinds(&of(&changes, "a/north")), ["stock.changed"]);
    }
}

/// The last state of a cart in the feed.
fn last_cart(changes: &[&ChangeEvent]) -> Option<Cart> {
    match &changes.last()?.changed {
        Changed::Cart(cart) | Changed::CartClosed(cart) => Some(cart.clone()),
        _ => None,
    }
}

pub(super) async fn a_cart_is_in_the_feed_until_it_is_closed(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Carts, Topic::Products]) {
        return;
    }
    fixture.stocked("a", 10).await;
    let anna = user("anna");
    fixture.set(&anna, "a", 1, at(1)).await;
    fixture.set(&anna, "b", 1, at(2)).await;
    let active = fixture.remove(&anna, "b", at(3)).await;
    let changes = settled(&fixture).await;
    let found = of(&changes, "user:anna");
    assert!(kinds(&found).iter().all(|kind| *kind == "cart.changed"), "{found:?}");
    assert_eq!(last_cart(&found), active);
    let order = fixture.checkout("anna", at(4)).await.unwrap();
    let changes = settled(&fixture).await;
    let found = of(&changes, "user:anna");
    assert_eq!(kinds(&found).last(), Some(&"cart.closed"));
    assert_eq!(last_cart(&found).and_then(|cart| cart.order_id), Some(order.order_id));
    let abandoned = fixture.set(&guest("g"), "a", 1, at(5)).await;
    fixture.store.abandon(abandoning(&guest("g"), at(6))).await.unwrap();
    let changes = settled(&fixture).await;
    let found = of(&changes, "session:g");
    assert_eq!(kinds(&found).last(), Some(&"cart.closed"));
    assert_eq!(last_cart(&found).map(|cart| cart.cart_id), Some(abandoned.cart_id));
}

pub(super) async fn a_merge_is_in_the_feed_of_both_carts(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Carts, Topic::Products]) {
        return;
    }
    fixture.set(&guest("g"), "a", 2, at(1)).await;
    let merged = fixture.merge("anna", "g", MergeMode::Sum, at(2)).await;
    let changes = settled(&fixture).await;
    assert_eq!(last_cart(&of(&changes, "user:anna")), merged.cart);
    let closed = last_cart(&of(&changes, "session:g")).unwrap();
    assert_eq!(closed.merged_into, merged.cart.map(|cart| cart.cart_id));
    fixture.merge("anna", "g", MergeMode::Sum, at(3)).await;
    assert_eq!(states(&settled(&fixture).await), states(&changes), "a repeated merge changes nothing");
}

pub(super) async fn a_session_is_in_the_feed_until_it_ends(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Sessions, Topic::Products]) {
        return;
    }
    let created = create(&fixture, "s", None, at(0)).await;
    let logged_in = fixture.store.login(login(&fixture, "s", "anna", at(1))).await.unwrap().value;
    let of_bob = create(&fixture, "t", Some("bob"), at(2)).await;
    fixture.store.delete_session(&of_bob.session_id, at(3)).await.unwrap();
    fixture.store.revoke_sessions(&user_id("anna"), at(4)).await.unwrap();
    let changes = settled(&fixture).await;
    let states_of = |subject: &str| -> Vec<Changed> {
        of(&changes, subject).into_iter().map(|change| change.changed.clone()).collect()
    };
    let ended = Changed::SessionEnded(created.session_id.clone());
    assert_eq!(states_of("s"), [Changed::Session(created), Changed::Session(logged_in.session), ended]);
    let ended = Changed::SessionEnded(of_bob.session_id.clone());
    assert_eq!(states_of("t"), [Changed::Session(of_bob), ended]);
}

pub(super) async fn refused_and_repeated_requests_leave_no_change(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Products]) {
        return;
    }
    fixture.stocked("a", 3).await;
    let keyed = PlaceOrder {
        identity: Some(identity("key", 1, at(1))),
        ..fixture.ordering("anna", Basket::Lines(demands(&[("a", 1)])), at(1))
    };
    let order = fixture.store.place_order(keyed.clone()).await.unwrap().value;
    let before = states(&settled(&fixture).await);

    // A repeated request comes with a new id.
    let repeated = PlaceOrder { order_id: OrderId::new(fixture.uuid()), ..keyed };
    assert!(fixture.store.place_order(repeated).await.unwrap().replayed);
    refusal(fixture.order("anna", &[("a", 9)], at(2)).await);
    refusal(fixture.order("anna", &[("absent", 1)], at(2)).await);
    refusal(fixture.checkout("anna", at(2)).await);
    refusal(fixture.reserve(&[("a", 9)], at(2)).await);
    refusal(fixture.on_hand("a", "north", 0, at(2)).await);
    refusal(fixture.store.adjust(fixture.adjusting("a", -9, at(2))).await);
    refusal(fixture.store.delete_product(&product_id("absent"), at(2)).await);
    refusal(fixture.status(order.order_id, OrderStatus::Delivered, at(2)).await);
    fixture.status(order.order_id, OrderStatus::Created, at(2)).await.unwrap();
    fixture.store.remove_line(removal(&user("anna"), "a", at(2))).await.unwrap();
    refusal(fixture.store.abandon(abandoning(&user("anna"), at(2))).await);
    assert_eq!(states(&settled(&fixture).await), before);
}

/// What the feed says, without the versions and times of stock: an engine may note a refusal beside the stock.
fn states(changes: &[ChangeEvent]) -> Vec<Changed> {
    let state = |change: &ChangeEvent| match &change.changed {
        Changed::Stock(stock) => Changed::Stock(ZoneStock { updated_at: at(0), ..stock.clone() }),
        other => other.clone(),
    };
    changes.iter().map(state).collect()
}

pub(super) async fn what_ends_by_time_is_reported_when_it_is_settled(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Orders, Topic::Stock, Topic::Products]) {
        return;
    }
    fixture.stocked("a", 10).await;
    let order = fixture.order("anna", &[("a", 2)], at(0)).await.unwrap();
    fixture.reserve(&[("a", 3)], at(0)).await.unwrap();
    let late = at(PAYMENT_WINDOW.max(HOLD));
    fixture.store.expire_reservations(late, 10).await.unwrap();
    fixture.store.cancel_unpaid(late, "too late", 10).await.unwrap();
    let changes = settled(&fixture).await;
    let found = of(&changes, &order.order_id.to_string());
    assert_eq!(kinds(&found), ["order.created", "order.status"]);
    assert_eq!(orders(&found)[1].status, OrderStatus::Cancelled);
    let level = match of(&changes, "a/north").last().map(|change| &change.changed) {
        Some(Changed::Stock(stock)) => stock.level,
        other => panic!("no stock but {other:?}"),
    };
    assert_eq!((level.on_hand, level.reserved), (10, 0));
}

/// Some changes of every topic that is written.
async fn some_changes(fixture: &Fixture) -> Vec<ChangeEvent> {
    fixture.stocked("a", 10).await;
    fixture.stocked("b", 10).await;
    fixture.set(&user("anna"), "a", 2, at(1)).await;
    let order = fixture.order("anna", &[("a", 1), ("b", 2)], at(2)).await.unwrap();
    fixture.status(order.order_id, OrderStatus::Paid, at(3)).await.unwrap();
    fixture.checkout("anna", at(4)).await.unwrap();
    create(fixture, "s", None, at(5)).await;
    settled(fixture).await
}

pub(super) async fn every_page_size_and_every_position_read_the_same_changes(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Products]) {
        return;
    }
    some_changes(&fixture).await;
    let (whole, _) = walk(&fixture, FeedStart::Oldest, 1_000).await;
    let whole = once(whole);
    for limit in [1, 2, 3, whole.len()] {
        let (pages, _) = walk(&fixture, FeedStart::Oldest, limit).await;
        assert_eq!(once(pages), whole, "pages of {limit}");
    }
    for (index, change) in whole.iter().enumerate() {
        let (mut rest, _) = walk(&fixture, FeedStart::After(change.position.clone()), 2).await;
        rest.retain(|change| !whole[..=index].iter().any(|before| before.id == change.id));
        assert_eq!(once(rest), whole[index + 1..], "after {}", change.id);
    }
}

pub(super) async fn a_reader_gets_the_topics_it_asks_for(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Products]) {
        return;
    }
    some_changes(&fixture).await;
    let whole = once(walk(&fixture, FeedStart::Oldest, 1_000).await.0);
    for topic in fixture.store.feed().topics.iter() {
        let asked =
            ReadChanges { topics: Topics::NONE.with(topic), ..request(&fixture, FeedStart::Oldest, 1_000) };
        let page = fixture.store.changes(asked).await.unwrap();
        let expected: Vec<&ChangeEvent> =
            whole.iter().filter(|change| change.changed.topic() == topic).collect();
        assert!(!expected.is_empty(), "no change of {topic:?}");
        assert_eq!(once(page.items).iter().collect::<Vec<_>>(), expected, "{topic:?}");
    }
}

pub(super) async fn a_reader_that_starts_now_gets_what_comes_after(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Products]) {
        return;
    }
    settled(&fixture).await;
    let start = fixture.store.changes(request(&fixture, FeedStart::Now, 10)).await.unwrap();
    assert_eq!(start.items, []);
    fixture.put(priced_product("later", 1)).await;
    let started = Instant::now();
    loop {
        let (found, _) = walk(&fixture, FeedStart::After(start.next.clone()), 10).await;
        let subjects: Vec<String> = found.iter().map(|change| change.changed.subject()).collect();
        if subjects == ["later"] {
            return;
        }
        assert!(subjects.is_empty() && started.elapsed() < FEED_LAG_MAX, "{subjects:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

pub(super) async fn a_waiting_reader_is_woken_by_a_change(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Products]) {
        return;
    }
    let fixture = Arc::new(fixture);
    let start = fixture.store.changes(request(&fixture, FeedStart::Now, 10)).await.unwrap().next;
    let reader = Arc::clone(&fixture);
    let reading = tokio::spawn(async move {
        let mut request = request(&reader, FeedStart::After(start.clone()), 10);
        let mut position = start;
        loop {
            reader.store.changes_after(&position).await.unwrap();
            let page = reader.store.changes(request.clone()).await.unwrap();
            if let Some(change) = page.items.first() {
                return change.changed.subject();
            }
            position = page.next.clone();
            request.start = FeedStart::After(page.next);
        }
    });
    fixture.put(priced_product("later", 1)).await;
    let woken = tokio::time::timeout(FEED_LAG_MAX, reading).await;
    assert_eq!(woken.unwrap().unwrap(), "later");
}

pub(super) async fn a_position_before_what_is_kept_has_expired(fixture: Fixture) {
    if !writes(&fixture, &[Topic::Products]) {
        return;
    }
    fixture.put(priced_product("a", 1)).await;
    fixture.put(priced_product("b", 1)).await;
    let changes = settled(&fixture).await;
    let (_, end) = walk(&fixture, FeedStart::Oldest, 10).await;
    let late = at(FAR_AHEAD_DAYS * DAY);
    let read = async |start: FeedStart| -> Result<Vec<ChangeEvent>> {
        let late = ReadChanges { now: late, ..request(&fixture, start, 10) };
        fixture.store.changes(late).await.map(|page| page.items)
    };
    let expired = read(FeedStart::After(changes[0].position.clone())).await;
    assert_eq!(refusal(expired), Refusal::CursorExpired);
    assert_eq!(read(FeedStart::Oldest).await.unwrap(), []);
    assert_eq!(read(FeedStart::After(end)).await.unwrap(), [], "nothing after it was lost");
    assert_eq!(read(FeedStart::Now).await.unwrap(), []);
}

pub(super) async fn bad_positions_in_the_feed_are_refused(fixture: Fixture) {
    for page in bad_positions() {
        let start = page.after.map_or(FeedStart::Oldest, FeedStart::After);
        let read = fixture.store.changes(request(&fixture, start, 10)).await;
        assert_eq!(refusal(read), Refusal::InvalidCursor);
    }
}

pub(super) async fn changes_of_many_writers_are_all_in_the_feed(fixture: Fixture) {
    const WRITERS: usize = 12;
    const ROUNDS: usize = 4;
    if !writes(&fixture, &[Topic::Orders, Topic::Products]) {
        return;
    }
    fixture.stocked("a", 1_000).await;
    let fixture = Arc::new(fixture);
    let placed = concurrently(&fixture, WRITERS, |fixture, writer| async move {
        let mut placed = Vec::new();
        for _ in 0..ROUNDS {
            let order = fixture.order(&format!("u{writer}"), &[("a", 1)], at(1)).await.unwrap();
            let paid = fixture.store.set_status(moving(order.order_id, OrderStatus::Paid, at(2))).await;
            placed.push((order, paid.unwrap().value));
        }
        placed
    })
    .await;
    let changes = settled(&fixture).await;
    for (order, paid) in placed.into_iter().flatten() {
        let found = of(&changes, &order.order_id.to_string());
        assert_eq!(orders(&found), [order, paid]);
    }
    let stored = fixture.level("a", "north", at(2)).await;
    if writes(&fixture, &[Topic::Stock]) {
        let Some(Changed::Stock(stock)) = of(&changes, "a/north").last().map(|change| &change.changed) else {
            panic!("no stock in the feed");
        };
        assert_eq!((stock.level.on_hand, stock.level.reserved), stored);
    }
}
