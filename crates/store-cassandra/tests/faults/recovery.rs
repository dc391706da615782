//! Recovery of orphaned intents: a dead process left an operation half done, or its last write arrives after a recovering
//! process has read the rows.

use std::time::Duration;

use mw_codec::carts::header::{self, CartHeader, ClosedCart, OutboxRow};
use mw_codec::intents::login::LoginIntent;
use mw_codec::intents::merge::{MergeMarker, MergeSpec};
use mw_codec::intents::product::{ListingKey, ProductIntent};
use mw_codec::intents::reserve::ReserveIntent;
use mw_codec::intents::status::StatusIntent;
use mw_codec::intents::{import, login, merge, product as product_intent, reserve, status};
use mw_domain::stock::Cause;
use mw_domain::{Cart, CartId, MergeMode, OrderId, OrderStatus, Product, Reservation, ReservationStatus};
use mw_store::carts::Merge;
use mw_store::orders::SetStatus;
use mw_store::products::{CategoryQuery, ImportProduct};
use mw_store::sessions::CreateSession;
use mw_store::stock::{Reserve, SetOnHand};
use mw_store::{Carts, Freshness, Orders, PageRequest, Products, Refusal, Sessions, Stock, StoreError};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, StatementFault, StatementKind, Table};
use mw_testkit::builders::{
    cart_id, category, demand, guest, identity, money, product, product_id, session_id, user, user_id, zone,
};
use mw_testkit::cassandra::{Lease, StatementScript};
use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;
use scylla::value::{CqlTimestamp, CqlValue, Row};
use uuid::Uuid;

use crate::fixtures::{
    LIFETIME, NOW, TIMEOUT, ZONE, assert_audit, cart_lines, eventually, exclusive, full_name, guest_session,
    hold, import_stock, order, set_line, stock_level,
};

/// More than the failure timeout plus the recovery of its intents.
const RECOVERED: Duration = Duration::from_secs(30);
/// The `created_at` under which a cart partition stores the markers of merges.
const MARKERS_AT: CqlTimestamp = CqlTimestamp(0);

/// Leased keyspaces, and a session to write to them without the store.
pub(crate) struct Shop {
    pub(crate) lease: Lease,
    session: Session,
}

impl Shop {
    pub(crate) async fn new() -> Self {
        let lease = Lease::empty().await;
        let session = connect(lease.options()).await.unwrap();
        Self { lease, session }
    }

    /// Runs a statement; `{}` in it is the table.
    pub(crate) async fn run(&self, table: Table, statement: &str, values: impl SerializeRow) {
        let statement = statement.replace("{}", &full_name(self.lease.options(), table));
        self.session.query_unpaged(statement, values).await.unwrap();
    }

    /// Runs a conditional write; returns whether it applied.
    async fn applies(&self, table: Table, statement: &str, values: impl SerializeRow) -> bool {
        let statement = statement.replace("{}", &full_name(self.lease.options(), table));
        let result = self.session.query_unpaged(statement, values).await.unwrap().into_rows_result().unwrap();
        let row = result.first_row::<Row>().unwrap();
        matches!(row.columns.first(), Some(Some(CqlValue::Boolean(true))))
    }

    /// The partitions of a table whose partition key is a time bucket.
    pub(crate) async fn time_buckets(&self, table: Table) -> Vec<i64> {
        let select = format!("SELECT DISTINCT time_bucket FROM {}", full_name(self.lease.options(), table));
        let found = self.session.query_unpaged(select, ()).await.unwrap().into_rows_result().unwrap();
        found.rows::<(i64,)>().unwrap().map(|row| row.unwrap().0).collect()
    }

    /// Stores the intents of a process that died, and its last heartbeat.
    pub(crate) async fn abandon_intent(&self, intents: &[(&str, Uuid, Vec<u8>)]) -> Uuid {
        let process = Uuid::new_v4();
        let intent = "INSERT INTO {} (process, time_bucket, op_id, kind, payload) VALUES (?, 0, ?, ?, ?)";
        for (kind, op_id, payload) in intents {
            self.run(Table::Intents, intent, (process, op_id, kind, payload)).await;
        }
        let announce =
            "INSERT INTO {} (part, process, heartbeat, oldest_bucket, newest_bucket) VALUES (0, ?, 1, 0, 0)";
        self.run(Table::Processes, announce, (process,)).await;
        process
    }

    /// The intents of a process that are not recovered yet.
    async fn remaining_intents(&self, process: Uuid) -> Vec<Uuid> {
        let intents = full_name(self.lease.options(), Table::Intents);
        let select = format!("SELECT op_id FROM {intents} WHERE process = ? AND time_bucket = 0");
        let found = self.session.query_unpaged(select, (process,)).await.unwrap().into_rows_result().unwrap();
        found.rows::<(Uuid,)>().unwrap().map(|row| row.unwrap().0).collect()
    }

    /// Abandons an intent whose write has not arrived, and returns once a recovering process has read its rows in vain:
    /// beside it is an intent that is complete at the first read.
    async fn abandon_before_its_write(
        &self,
        store: &CassandraStore,
        kind: &str,
        op_id: Uuid,
        payload: Vec<u8>,
    ) {
        let stock = vec![(zone(ZONE), 1)];
        let complete = ImportProduct {
            product: product("complete").build(),
            stock,
            op: Uuid::new_v4(),
            now: NOW,
            identity: None,
        };
        store.import_product(complete.clone()).await.unwrap();
        let process = self
            .abandon_intent(&[(kind, op_id, payload), ("import", complete.op, import::encode(&complete))])
            .await;
        eventually("the complete intent is deleted", TIMEOUT, async || {
            (!self.remaining_intents(process).await.contains(&complete.op)).then_some(())
        })
        .await;
    }

    /// The late write of a merge: closes the guest's cart.
    async fn close(&self, cart: &Cart, merge: Uuid, marker: Vec<u8>) {
        let id = cart.owner.id();
        let mut abandoned = cart.clone();
        abandoned.abandon(NOW, &LIFETIME);
        let row = OutboxRow {
            cart: (cart.created_at, cart.cart_id),
            stamp: 2,
            closed: Some(ClosedCart { cart: abandoned.clone(), merge_id: Some(merge) }),
        };
        let header = CartHeader {
            last_version: abandoned.version,
            last_merge: Some(merge),
            outbox: vec![row],
            last_stamp: 2,
            ..CartHeader::default()
        };
        let update = "UPDATE {} SET rev = 2, state = ? WHERE owner_kind = 'session' AND owner_id = ? \
             AND part = 0 AND created_at = 253402300799999 AND cart_id = 0x AND product_id = ''";
        self.run(Table::CartsByOwner, update, (header::encode(&header), id)).await;
        self.store_marker("session", id, merge, marker).await;
    }

    async fn store_marker(&self, kind: &str, owner: &str, merge: Uuid, outcome: Vec<u8>) {
        let marker = "INSERT INTO {} (owner_kind, owner_id, part, created_at, cart_id, product_id, outcome) \
             VALUES (?, ?, 1, ?, ?, '', ?)";
        self.run(Table::CartsByOwner, marker, (kind, owner, MARKERS_AT, &merge.as_bytes()[..], outcome))
            .await;
    }
}

/// The intent of the second change of a product that was listed for 1.00 in the lowest band.
fn second_change(product: &str) -> Vec<u8> {
    let previous = ListingKey { category: category("listed"), band: 0, price: money("1.00") };
    product_intent::encode(&ProductIntent {
        product_id: product_id(product),
        previous: Some(previous),
        rev: 2,
    })
}

/// Guest `g` into user `u`, whose cart must have the expected version.
fn merge_spec(expected_version: Option<u64>) -> MergeSpec {
    MergeSpec {
        user: user("u"),
        guest: guest("g"),
        mode: MergeMode::Sum,
        new_cart_id: CartId::new(Uuid::new_v4()),
        expected_version,
        lifetime: LIFETIME,
        now: NOW,
    }
}

/// The intent of the login of guest `g` as user `u`.
fn login_intent() -> Vec<u8> {
    login::encode(&LoginIntent { session_id: session_id("g"), merge: merge_spec(None) })
}

/// Waits until the user has the three units that were the guest's.
async fn merged(store: &CassandraStore) {
    eventually("the user has the lines", RECOVERED, async || {
        (cart_lines(store, "u").await.unwrap() == [("p".to_owned(), 3)]).then_some(())
    })
    .await;
}

/// The marker of a merge in the guest's partition.
fn merge_marker(guest_cart: &Cart, expected_version: Option<u64>) -> Vec<u8> {
    merge::encode_marker(&MergeMarker {
        spec: merge_spec(expected_version),
        guest_cart: guest_cart.clone(),
        target: CartId::new(Uuid::new_v4()),
    })
}

async fn on_hand(store: &CassandraStore, name: &str, in_zone: &str) -> Option<u64> {
    let stock = store.zone_stock(&product_id(name), &zone(in_zone), Freshness::Latest, NOW).await.unwrap();
    stock.map(|stock| stock.level.on_hand)
}

/// The products of the category `listed`, by price.
async fn listed(store: &CassandraStore) -> Vec<(i64, String)> {
    let query = CategoryQuery {
        category: category("listed"),
        min_price: None,
        max_price: None,
        descending: false,
        geo_zone: None,
        in_stock: false,
    };
    let page = store.category(&query, Freshness::Latest, NOW, PageRequest::first(100)).await.unwrap();
    assert_eq!(page.next, None);
    let price_and_id = |product: &Product| (product.price.as_minor(), product.product_id.to_string());
    page.items.iter().map(|item| price_and_id(&item.product)).collect()
}

/// Changes the price of a product to 500.00, as its LWT would.
async fn move_product(shop: &Shop, product: &str) {
    let moved = "UPDATE {} SET price = 50000, band = 192, rev = 2 WHERE product_id = ?";
    shop.run(Table::CategoryBands, "INSERT INTO {} (category, band) VALUES ('listed', 192)", ()).await;
    shop.run(Table::ProductById, moved, (product,)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphaned_intents_are_completed() {
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    // A product that was changed and not listed, an import with one zone done, another whose key has expired, and one without
    // any effect yet.
    let listed_product = |name: &str, price| product(name).category("listed").price(price).build();
    store.put_product(listed_product("moved", "1.00")).await.unwrap();
    move_product(&shop, "moved").await;

    let stock = vec![(zone("north"), 3), (zone("south"), 5)];
    let half = ImportProduct {
        product: listed_product("half", "3.00"),
        stock,
        op: Uuid::new_v4(),
        now: NOW,
        identity: None,
    };
    let late = ImportProduct {
        product: listed_product("late", "5.00"),
        op: Uuid::new_v4(),
        identity: Some(identity("over", "over", NOW)),
        ..half.clone()
    };
    for begun in [&half, &late] {
        store.put_product(listed_product(begun.product.product_id.as_str(), "2.00")).await.unwrap();
        let set = SetOnHand {
            product_id: begun.product.product_id.clone(),
            geo_zone: zone("north"),
            on_hand: 3,
            expected_on_hand: None,
            op: begun.op,
            now: NOW,
        };
        store.set_on_hand(set).await.unwrap();
    }
    let never =
        ImportProduct { product: listed_product("never", "4.00"), op: Uuid::new_v4(), ..half.clone() };
    // Intents that cannot be decoded, or whose operation is not known, do not delay the others.
    let nonsense = vec![0xff; 3];
    shop.abandon_intent(&[("product", Uuid::new_v4(), nonsense.clone())]).await;
    shop.abandon_intent(&[
        ("unknown", Uuid::nil(), nonsense.clone()),
        ("import", Uuid::new_v4(), nonsense),
        ("product", Uuid::new_v4(), second_change("moved")),
        ("import", never.op, import::encode(&never)),
        ("import", half.op, import::encode(&half)),
        ("import", late.op, import::encode(&late)),
    ])
    .await;

    let expected = [(300, "half".to_owned()), (500, "late".to_owned()), (50_000, "moved".to_owned())];
    eventually("products are listed at their price", RECOVERED, async || {
        (listed(&store).await == expected).then_some(())
    })
    .await;
    for name in ["half", "late"] {
        assert_eq!(on_hand(&store, name, "south").await, Some(5), "{name}");
    }
    assert_eq!(store.product(&product_id("never"), Freshness::Latest).await.unwrap(), None);
    eventually("the unreadable intents are counted", RECOVERED, async || {
        (store.unreadable_rows() == 3).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_import_stays_refused_during_recovery() {
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    let listed_product = product("half").category("listed").price("1.00").build();
    let stock = vec![(zone("north"), 10), (zone("south"), 10)];
    let first = ImportProduct {
        product: listed_product.clone(),
        stock,
        op: Uuid::new_v4(),
        now: NOW,
        identity: None,
    };
    store.import_product(first).await.unwrap();

    // The next import lowered the north while half of the south was reserved.
    let next = ImportProduct {
        product: product("half").category("listed").price("2.00").build(),
        stock: vec![(zone("north"), 4), (zone("south"), 1)],
        op: Uuid::new_v4(),
        now: NOW,
        identity: None,
    };
    let held = Reserve { geo_zone: zone("south"), lines: vec![demand("half", 5)], ..hold("half") };
    let reservation_id = store.reserve(held).await.unwrap().value.reservation_id;
    let lowered = SetOnHand {
        product_id: product_id("half"),
        geo_zone: zone("north"),
        on_hand: 4,
        expected_on_hand: None,
        op: next.op,
        now: NOW,
    };
    store.set_on_hand(lowered).await.unwrap();
    let recovered = async || {
        let process = shop.abandon_intent(&[("import", next.op, import::encode(&next))]).await;
        eventually("the import is over", RECOVERED, async || {
            shop.remaining_intents(process).await.is_empty().then_some(())
        })
        .await;
        let on_hand = async |name| on_hand(&store, "half", name).await;
        assert_eq!((on_hand("north").await, on_hand("south").await), (Some(10), Some(10)));
    };
    recovered().await;

    // By the stock alone it would not be refused any more: neither when it is repeated nor when it is recovered again.
    store.release(reservation_id, NOW).await.unwrap();
    let again = store.import_product(next.clone()).await.expect_err("half of it was done");
    assert!(matches!(again.refusal(), Some(Refusal::StockBelowReserved { .. })), "{again:?}");
    recovered().await;
    assert_eq!(listed(&store).await, [(100, "half".to_owned())]);
    assert_audit(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphaned_reservations_are_confirmed_undone_or_kept_as_their_holds_say() {
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let (script, survivor) = (StatementScript::default(), shop.lease.open().await);
    let dying = shop.lease.open_with(&script).await;
    for name in ["a", "b", "c", "d"] {
        import_stock(&survivor, name, 10).await;
    }
    let hold_of =
        |names: [&str; 2]| Reserve { lines: names.map(|name| demand(name, 1)).to_vec(), ..hold("a") };
    // A process dies between the two products of a confirmation.
    let confirmed = dying.reserve(hold_of(["a", "b"])).await.unwrap().value;
    script.fail(Table::Stock, StatementKind::Cas, (1, 1_000), StatementFault::NotSent);
    let failed = dying.confirm(confirmed.reservation_id, NOW, None).await;
    assert!(matches!(failed, Err(StoreError::Ambiguous(_))), "{failed:?}");
    drop(dying);
    // Another had acknowledged a reservation, and a third died after it held one of two products.
    let kept = survivor.reserve(hold_of(["c", "d"])).await.unwrap().value;
    let half = survivor.reserve(hold("c")).await.unwrap().value;
    let intent = |reservation: &Reservation, names: [&str; 2]| {
        let reservation = Reservation { lines: hold_of(names).lines, ..reservation.clone() };
        ("reserve", Uuid::new_v4(), reserve::encode(&ReserveIntent { reservation, identity: None }))
    };
    let process = shop.abandon_intent(&[intent(&kept, ["c", "d"]), intent(&half, ["c", "d"])]).await;

    eventually("the reservations are recovered", RECOVERED, async || {
        let mut levels = Vec::new();
        for name in ["a", "b", "c", "d"] {
            levels.push(stock_level(&survivor, name).await.unwrap());
        }
        let is_recovered = levels == [(9, 0), (9, 0), (10, 1), (10, 1)];
        (is_recovered && shop.remaining_intents(process).await.is_empty()).then_some(())
    })
    .await;
    let status = async |id| survivor.reservation(id, NOW).await.unwrap().map(|found| found.status);
    assert_eq!(status(confirmed.reservation_id).await, Some(ReservationStatus::Confirmed));
    assert_eq!(status(kept.reservation_id).await, Some(ReservationStatus::Held));
    assert_eq!(status(half.reservation_id).await, None);
    assert_audit(&survivor).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_step_that_lost_its_cas_is_not_completed_by_recovery() {
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    import_stock(&store, "hit", 10).await;
    let order_id = store.place_order(order("u", &["hit"])).await.unwrap().value.order_id;
    for to in [OrderStatus::Paid, OrderStatus::Shipped] {
        store.set_status(SetStatus { to, ..paid(order_id) }).await.unwrap();
    }
    assert_eq!(stock_level(&store, "hit").await.unwrap(), (9, 0));

    // The dead process was cancelling the paid order and lost to the other step. Beside it is an intent that cannot be decoded.
    let returning =
        StatusIntent { order_id, version: 3, op_token: Uuid::new_v4(), cause: Some(Cause::Return) };
    let damaged = Uuid::new_v4();
    let process = shop
        .abandon_intent(&[
            ("status", Uuid::new_v4(), status::encode(&returning)),
            ("status", damaged, vec![0_u8; 3]),
        ])
        .await;
    eventually("only the damaged intent remains", TIMEOUT, async || {
        (shop.remaining_intents(process).await == [damaged]).then_some(())
    })
    .await;
    assert_eq!(stock_level(&store, "hit").await.unwrap(), (9, 0), "units of a shipped order were returned");
    assert_audit(&store).await;
}

fn paid(order_id: OrderId) -> SetStatus {
    let (to, of_user, note, expected_version, identity) = (OrderStatus::Paid, None, None, None, None);
    SetStatus { order_id, of_user, to, note, expected_version, now: NOW, identity }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_arrives_after_its_intent_was_dropped_never_applies() {
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    import_stock(&store, "hit", 10).await;
    let order_id = store.place_order(order("u", &["hit"])).await.unwrap().value.order_id;
    let time_bucket = shop.time_buckets(Table::OrderById).await[0];
    store.put_product(product("late").category("listed").price("1.00").build()).await.unwrap();
    let import = |name: &str, key: Option<&str>| ImportProduct {
        product: product(name).build(),
        stock: vec![(zone(ZONE), 4)],
        op: Uuid::new_v4(),
        now: NOW,
        identity: key.map(|key| identity(key, key, NOW)),
    };
    let (unkeyed, keyed) = (import("unkeyed", None), import("keyed", Some("keyed")));
    let paying = StatusIntent { order_id, version: 2, op_token: Uuid::new_v4(), cause: Some(Cause::Take) };
    // The process died after it had sent the first write of each operation, and a paused node has the writes.
    let process = shop
        .abandon_intent(&[
            ("status", Uuid::new_v4(), status::encode(&paying)),
            ("product", Uuid::new_v4(), second_change("late")),
            ("import", unkeyed.op, import::encode(&unkeyed)),
            ("import", keyed.op, import::encode(&keyed)),
        ])
        .await;
    eventually("the intents are dropped", RECOVERED, async || {
        shop.remaining_intents(process).await.is_empty().then_some(())
    })
    .await;

    let pay = "UPDATE {} SET status = 'paid', version = 2 WHERE time_bucket = ? AND order_id = ? AND event_no = 1 \
               IF version = 1 AND fence = null";
    assert!(!shop.applies(Table::OrderById, pay, (time_bucket, order_id.uuid())).await);
    let change = "UPDATE {} SET price = 50000, rev = 2 WHERE product_id = 'late' IF rev = 1";
    assert!(!shop.applies(Table::ProductById, change, ()).await);
    for name in ["unkeyed", "keyed"] {
        let create = "UPDATE {} SET price = 50000, rev = 1 WHERE product_id = ? IF rev = null";
        assert!(!shop.applies(Table::ProductById, create, (name,)).await, "{name}");
        let set = "UPDATE {} SET on_hand = 4, rev = 1 WHERE product_id = ? AND geo_zone = ? \
                   AND until = -62135596800000 AND op_id = 00000000-0000-0000-0000-000000000000 IF rev = null";
        assert!(!shop.applies(Table::Stock, set, (name, ZONE)).await, "{name}");
    }

    // Nothing was changed, and everything can be.
    assert_eq!(stock_level(&store, "hit").await.unwrap(), (10, 1));
    assert_eq!(listed(&store).await, [(100, "late".to_owned())]);
    assert_eq!(store.product(&product_id("unkeyed"), Freshness::Latest).await.unwrap(), None);
    assert_eq!(store.set_status(paid(order_id)).await.unwrap().value.status, OrderStatus::Paid);
    assert_eq!(stock_level(&store, "hit").await.unwrap(), (9, 0));
    store.put_product(product("late").category("listed").price("5.00").build()).await.unwrap();
    assert_eq!(listed(&store).await, [(500, "late".to_owned())]);
    store.import_product(keyed).await.unwrap();
    assert_eq!(stock_level(&store, "keyed").await.unwrap(), (4, 0));
    assert!(store.product(&product_id("keyed"), Freshness::Latest).await.unwrap().is_some());
    assert_audit(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_merge_write_brings_the_guest_cart_to_its_user() {
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    let cart = set_line(&store, guest("g"), "p", 3).await.unwrap();
    let merge = Uuid::new_v4();
    shop.abandon_before_its_write(&store, "merge", merge, merge::encode(&guest("g"))).await;
    shop.close(&cart, merge, merge_marker(&cart, None)).await;
    merged(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_login_write_brings_the_guest_cart_to_its_user() {
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    let session = guest_session(session_id("g"));
    let command = CreateSession { session, id_seed: None, now: NOW, identity: None };
    store.create_session(command).await.unwrap();
    set_line(&store, guest("g"), "p", 3).await.unwrap();
    shop.abandon_before_its_write(&store, "login", Uuid::new_v4(), login_intent()).await;
    let bound = "UPDATE {} SET user_id = 'u', rev = 2 WHERE session_id = 'g'";
    shop.run(Table::SessionsById, bound, ()).await;
    merged(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_whose_session_has_ended_still_merges_the_cart() {
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    let cart = set_line(&store, guest("g"), "p", 3).await.unwrap();
    let op_id = Uuid::new_v4();
    shop.close(&cart, op_id, merge_marker(&cart, None)).await;
    shop.abandon_intent(&[("login", op_id, login_intent())]).await;
    merged(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_a_refused_merge_are_merged_by_the_next_one() {
    let _exclusive = exclusive().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    let cart = set_line(&store, guest("g"), "p", 3).await.unwrap();
    // A process closed the guest's cart, was refused on the user's and died before it reopened the guest's.
    let refused = Uuid::new_v4();
    shop.close(&cart, refused, merge_marker(&cart, Some(7))).await;
    shop.store_marker("user", "u", refused, Vec::new()).await;
    let merge = Merge {
        user_id: user_id("u"),
        session_id: session_id("g"),
        mode: MergeMode::Sum,
        new_cart_id: cart_id(1),
        expected_version: None,
        lifetime: LIFETIME,
        now: NOW,
        identity: None,
    };
    let merged = store.merge(merge).await.unwrap().value;
    assert_eq!(merged.changes.len(), 1, "{merged:?}");
    assert_eq!(cart_lines(&store, "u").await.unwrap(), [("p".to_owned(), 3)]);
    assert_eq!(store.active_cart(&guest("g"), NOW).await.unwrap(), None);
}
