//! A cluster as the target of a migration: every view follows what is applied, a batch that was interrupted is written whole
//! before anything else, one process applies, and whatever the service writes afterwards is newer.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, also in the functions that tests share")]

use std::sync::LazyLock;

use mw_domain::carts::CartLifetime;
use mw_domain::stock::Cause;
use mw_domain::{
    Attributes, Cart, CartLine, CartStatus, Category, EventKind, Level, Money, Movement, Order, OrderEvent,
    OrderId, OrderLine, OrderStatus, Period, Product, Timestamp, ZoneStock,
};
use mw_store::carts::SetLine;
use mw_store::export::ExportImport;
use mw_store::migration::{CartKey, Change, MigrationTarget};
use mw_store::orders::SetStatus;
use mw_store::products::CategoryQuery;
use mw_store::{Carts, Freshness, Orders, PageRequest, Products, StoreError};
use mw_store_cassandra::{CassandraStore, StatementFault, StatementKind, Table};
use mw_testkit::builders::{cart_id, category, money, product_id, user, user_id, zone};
use mw_testkit::cassandra::{Lease, StatementScript, fresh};

const LIFETIME: CartLifetime = CartLifetime { user_ms: 30 * 86_400_000, guest_ms: 86_400_000 };
const ID: &str = "507f1f77bcf86cd799439011";

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap())
}

fn product(price: &str, of: &str) -> Product {
    Product {
        product_id: product_id("phone"),
        name: "Phone".to_owned(),
        category: Category::parse(of).unwrap(),
        price: money(price),
        description: String::new(),
        attributes: Attributes::default(),
        created_at: Timestamp::EPOCH,
        updated_at: Timestamp::EPOCH,
    }
}

fn order(status: OrderStatus, at: Timestamp, in_zone: &str) -> (Order, Vec<OrderEvent>) {
    let line = OrderLine {
        product_id: product_id("phone"),
        name: "Phone".to_owned(),
        price: money("5"),
        quantity: 2,
    };
    let order = Order {
        order_id: OrderId::parse(ID).unwrap(),
        user_id: user_id("anna"),
        status,
        geo_zone: zone(in_zone),
        lines: vec![line],
        total: money("10"),
        delivery_address: None,
        payment_method: None,
        created_at: at,
        updated_at: at,
        version: 1,
        pay_by: Timestamp::MAX,
    };
    let event = OrderEvent { at, kind: EventKind::Created, from: None, to: status, note: None };
    (order, vec![event])
}

fn put_order(status: OrderStatus, at: Timestamp, in_zone: &str) -> Change {
    let (order, events) = order(status, at, in_zone);
    Change::Order { order, events }
}

fn hold(at: Timestamp) -> Movement {
    let op = OrderId::parse(ID).unwrap().uuid();
    Movement { at, op, cause: Cause::Hold, delta: Cause::Hold.delta(2), note: None }
}

fn stock(on_hand: u64, reserved: u64, held: Vec<Movement>, released: Vec<Movement>) -> Change {
    let level = Level { on_hand, reserved };
    let stock =
        ZoneStock { product_id: product_id("phone"), geo_zone: zone("moscow"), level, updated_at: now() };
    Change::Stock { stock, held, released }
}

static CHANGED_AT: LazyLock<Timestamp> = LazyLock::new(now);

fn cart(number: u64, status: CartStatus, quantity: u32) -> Cart {
    let at = *CHANGED_AT;
    Cart {
        cart_id: cart_id(number),
        owner: user("anna"),
        status,
        version: 7,
        lines: vec![CartLine { product_id: product_id("phone"), quantity, updated_at: at }],
        created_at: Timestamp::from_millis(at.as_millis() - 1_000 * i64::try_from(number).unwrap()),
        updated_at: at,
        expires_at: at.plus_millis(LIFETIME.user_ms),
        merged_into: None,
        order_id: None,
    }
}

fn state(key: &str, value: Option<&str>) -> Change {
    Change::State { key: key.as_bytes().to_vec(), value: value.map(|value| value.as_bytes().to_vec()) }
}

async fn state_of(store: &CassandraStore, key: &str) -> Option<String> {
    let value = store.state(vec![key.as_bytes().to_vec()]).await.unwrap().remove(0);
    value.map(|value| String::from_utf8(value).unwrap())
}

/// The orders of the customer, of a zone and of the shop.
async fn listed(store: &CassandraStore, in_zone: &str) -> [Vec<Order>; 3] {
    let period = Period { from: Timestamp::EPOCH, to: now().plus_millis(86_400_000) };
    let first = || PageRequest::first(10);
    let of_zone = zone(in_zone);
    [
        store.user_orders(&user_id("anna"), period, first()).await.unwrap().items,
        store.orders(Some(&of_zone), period, first()).await.unwrap().items,
        store.orders(None, period, first()).await.unwrap().items,
    ]
}

async fn in_category(store: &CassandraStore, name: &str) -> Vec<Money> {
    let query = CategoryQuery {
        category: category(name),
        min_price: None,
        max_price: None,
        descending: false,
        geo_zone: None,
        in_stock: false,
    };
    let page = store.category(&query, Freshness::Latest, now(), PageRequest::first(10)).await.unwrap();
    page.items.into_iter().map(|item| item.product.price).collect()
}

/// Nothing is in a list that should not be, and the ledger explains the stock.
async fn check_explained(store: &CassandraStore) {
    assert_eq!(store.stray_rows(10).await.unwrap(), [""; 0]);
    assert!(MigrationTarget::audit_stock(store).await.unwrap().drifts.is_empty());
}

async fn views_of(store: &CassandraStore) -> Option<(OrderStatus, Vec<&'static str>)> {
    let views = store.orders_in_views(vec![OrderId::parse(ID).unwrap()]).await.unwrap().remove(0);
    views.map(|views| (views.order.status, views.missing_from))
}

#[tokio::test]
async fn every_view_follows_changes_and_the_service_is_newer() {
    let (store, _lease) = fresh().await;
    assert!(store.begin_run().await.unwrap());
    let (early, late) =
        (Timestamp::from_millis(1_700_000_000_000), Timestamp::from_millis(1_760_000_000_000));
    let batch = vec![
        Change::Product(product("5", "phones")),
        put_order(OrderStatus::Created, early, "moscow"),
        stock(10, 2, vec![hold(early)], vec![]),
        Change::Cart(cart(1, CartStatus::Abandoned, 1)),
        Change::Cart(cart(2, CartStatus::Active, 2)),
        state("doc/a", Some("1")),
        state("rejected/b", Some("2")),
    ];
    store.apply(batch).await.unwrap();
    assert_eq!(views_of(&store).await, Some((OrderStatus::Created, vec![])));
    assert_eq!(listed(&store, "moscow").await.map(|orders| orders.len()), [1, 1, 1]);
    assert_eq!(
        (in_category(&store, "phones").await, state_of(&store, "doc/a").await),
        (vec![money("5")], Some("1".into()))
    );
    assert_eq!(store.states(b"rejected/".to_vec(), None, 9).await.unwrap().len(), 1);
    check_explained(&store).await;

    // Another time, zone, category and price: the old rows are gone. Gone and back again: the deletion hides nothing.
    store.apply(vec![Change::RemoveOrder(OrderId::parse(ID).unwrap()), state("doc/a", None)]).await.unwrap();
    assert_eq!((views_of(&store).await, state_of(&store, "doc/a").await), (None, None));
    assert_eq!(listed(&store, "moscow").await.map(|orders| orders.len()), [0, 0, 0]);
    let batch = vec![
        put_order(OrderStatus::Created, early, "moscow"),
        put_order(OrderStatus::Created, late, "spb"),
        Change::RemoveProduct(product_id("phone")),
        Change::Product(product("7.5", "tablets")),
        stock(9, 2, vec![hold(late)], vec![hold(early)]),
        Change::RemoveCart(CartKey::of(&cart(2, CartStatus::Active, 2))),
        Change::Cart(cart(3, CartStatus::Active, 3)),
        state("doc/a", Some("3")),
    ];
    store.apply(batch).await.unwrap();
    assert_eq!(listed(&store, "moscow").await.map(|orders| orders.len()), [1, 0, 1]);
    assert_eq!(listed(&store, "spb").await.map(|orders| orders.len()), [1, 1, 1]);
    assert!(in_category(&store, "phones").await.is_empty());
    assert_eq!(in_category(&store, "tablets").await, [money("7.5")]);
    assert_eq!(views_of(&store).await, Some((OrderStatus::Created, vec![])));
    let views = store.products_in_views(vec![product_id("phone")]).await.unwrap().remove(0);
    assert!(!views.is_unlisted && views.product == Some(product("7.5", "tablets")), "{views:?}");
    assert_eq!(views.levels, [(zone("moscow"), Level { on_hand: 9, reserved: 2 })]);
    let active = store.active_cart(&user("anna"), now()).await.unwrap().unwrap();
    assert_eq!((active.cart_id, active.version), (cart_id(3), 7));
    let carts = store.carts(&user("anna"), now(), PageRequest::first(10)).await.unwrap().items;
    assert_eq!(carts.iter().map(|cart| cart.cart_id).collect::<Vec<_>>(), [cart_id(1), cart_id(3)]);
    check_explained(&store).await;

    // The units are held where the order is.
    store.apply(vec![put_order(OrderStatus::Created, late, "moscow")]).await.unwrap();
    service_goes_on(&store).await;
}

/// The service cancels the order, changes the product and the cart: all of it is newer than what was migrated.
async fn service_goes_on(store: &CassandraStore) {
    store.remove_states(b"doc/".to_vec()).await.unwrap();
    assert_eq!(state_of(store, "doc/a").await, None);
    store.end_run().await;
    let cancel = SetStatus {
        order_id: OrderId::parse(ID).unwrap(),
        of_user: None,
        to: OrderStatus::Cancelled,
        note: None,
        expected_version: Some(1),
        now: now(),
        identity: None,
    };
    store.set_status(cancel).await.unwrap();
    let statuses = listed(store, "moscow")
        .await
        .map(|orders| orders.iter().map(|it| (it.status, it.version)).collect::<Vec<_>>());
    assert_eq!(statuses, [const { [(OrderStatus::Cancelled, 2)] }; 3]);
    store.put_product(Product { updated_at: now(), ..product("8", "tablets") }).await.unwrap();
    assert_eq!(in_category(store, "tablets").await, [money("8")]);
    let line = SetLine {
        owner: user("anna"),
        product_id: product_id("case"),
        quantity: 1,
        new_cart_id: cart_id(9),
        expected_version: Some(7),
        lifetime: LIFETIME,
        now: now(),
    };
    let cart = store.set_line(line).await.unwrap();
    assert_eq!((cart.cart_id, cart.lines.len()), (cart_id(3), 2));
    let audit = MigrationTarget::audit_stock(store).await.unwrap();
    assert!(audit.drifts.is_empty(), "{:?}", audit.drifts);
    assert_eq!(store.stored_levels_of("phone").await, [Level { on_hand: 9, reserved: 0 }]);
}

/// The levels of a product in all zones.
trait Levels {
    async fn stored_levels_of(&self, product: &str) -> Vec<Level>;
}

impl Levels for CassandraStore {
    async fn stored_levels_of(&self, product: &str) -> Vec<Level> {
        let views = self.products_in_views(vec![product_id(product)]).await.unwrap().remove(0);
        views.levels.into_iter().map(|(_, level)| level).collect()
    }
}

#[tokio::test]
async fn an_interrupted_batch_is_written_whole_before_the_state_is_read() {
    let lease = Lease::empty().await;
    let script = StatementScript::default();
    let store = lease.open_with(&script).await;
    assert!(store.begin_run().await.unwrap());
    let at = Timestamp::from_millis(1_760_000_000_000);
    store.apply(vec![put_order(OrderStatus::Paid, at, "moscow"), state("doc/a", Some("1"))]).await.unwrap();
    for (table, skip) in [
        (Table::OrdersByDay, 0),
        (Table::OrderById, 0),
        // After the pieces and the head of the log: the row of the state.
        (Table::Migration, 2),
    ] {
        let status = if skip == 0 { OrderStatus::Shipped } else { OrderStatus::Delivered };
        script.fail(table, StatementKind::Write, (skip, 1), StatementFault::NotSent);
        let value = format!("{table}");
        let batch = vec![put_order(status, at.plus_millis(86_400_000), "spb"), state("doc/a", Some(&value))];
        let failed = store.apply(batch).await;
        assert!(failed.is_err(), "{table}");
        script.heal();
        assert_eq!(state_of(&store, "doc/a").await, Some(value), "{table}");
        assert_eq!(views_of(&store).await, Some((status, vec![])), "{table}");
        check_explained(&store).await;
    }
    // A batch without its head has no effect.
    script.fail(Table::Migration, StatementKind::Write, (1, 1), StatementFault::NotSent);
    let lost =
        store.apply(vec![Change::RemoveOrder(OrderId::parse(ID).unwrap()), state("doc/a", None)]).await;
    assert!(lost.is_err());
    script.heal();
    assert_eq!(state_of(&store, "doc/a").await.as_deref(), Some("migration"));

    // The process that takes over finishes the batch of the one that is gone.
    script.fail(Table::OrderById, StatementKind::Write, (0, 1), StatementFault::NotSent);
    let gone =
        store.apply(vec![Change::RemoveOrder(OrderId::parse(ID).unwrap()), state("doc/a", None)]).await;
    assert!(gone.is_err());
    script.heal();
    let next = lease.open().await;
    assert!(!next.is_empty().await.unwrap());
    store.end_run().await;
    assert!(next.begin_run().await.unwrap());
    assert_eq!((views_of(&next).await, state_of(&next, "doc/a").await), (None, None));
    let late = store.apply(vec![put_order(OrderStatus::Paid, at, "moscow")]).await.unwrap_err();
    assert!(matches!(late, StoreError::NotServing(_)), "{late}");
    assert_eq!(views_of(&next).await, None);
    next.clear().await.unwrap();
    assert!(next.is_empty().await.unwrap());
}
