//! What a process that died left half done, and what it had sent that comes after others have looked.

use std::time::Duration;

use mw_codec::Writer;
use mw_codec::carts::{write as write_cart, write_owner};
use mw_codec::once::write_key;
use mw_domain::{Cart, MergeMode, OrderId, OrderStatus, Product};
use mw_store::carts::Merge;
use mw_store::orders::SetStatus;
use mw_store::products::{CategoryQuery, ImportProduct};
use mw_store::sessions::CreateSession;
use mw_store::stock::{Reserve, SetOnHand};
use mw_store::{Carts, Freshness, Orders, PageRequest, Products, Refusal, Sessions, Stock};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Table};
use mw_testkit::builders::{
    cart_id, category, demand, guest, once, product, product_id, session_id, user, user_id, zone,
};
use mw_testkit::cassandra::Lease;
use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use crate::given::{
    LIFETIME, NOW, PATIENCE, ZONE, alone, audited, eventually, hold, lines, name, order, set_line, stocked,
    units, visit,
};

/// Longer than it takes to call a process dead and to finish what it left.
const RECOVERED: Duration = Duration::from_secs(30);
/// Where a cart's partition keeps what became of operations.
const MARKERS: CqlTimestamp = CqlTimestamp(-62_135_596_800_000);

/// Keyspaces that this test has alone, and a way to write to them behind the store's back.
struct Shop {
    lease: Lease,
    session: Session,
}

impl Shop {
    async fn new() -> Self {
        let lease = Lease::empty().await;
        let session = connect(lease.options()).await.unwrap();
        Self { lease, session }
    }

    /// Runs a statement; `{}` in it stands for the table.
    async fn run(&self, table: Table, statement: &str, values: impl SerializeRow) {
        let statement = statement.replace("{}", &name(self.lease.options(), table));
        self.session.query_unpaged(statement, values).await.unwrap();
    }

    /// A process that died in the middle of things.
    async fn leave(&self, intents: &[(&str, Uuid, Vec<u8>)]) -> Uuid {
        let process = Uuid::new_v4();
        let intent = "INSERT INTO {} (process, slot, op_id, kind, payload) VALUES (?, 0, ?, ?, ?)";
        for (kind, op_id, payload) in intents {
            self.run(Table::Intents, intent, (process, op_id, kind, payload)).await;
        }
        let announce =
            "INSERT INTO {} (part, process, beat, oldest_slot, newest_slot) VALUES (0, ?, 1, 0, 0)";
        self.run(Table::Processes, announce, (process,)).await;
        process
    }

    /// What is left of what a process left.
    async fn left_of(&self, process: Uuid) -> Vec<Uuid> {
        let intents = name(self.lease.options(), Table::Intents);
        let left = format!("SELECT op_id FROM {intents} WHERE process = ? AND slot = 0");
        let found = self.session.query_unpaged(left, (process,)).await.unwrap().into_rows_result().unwrap();
        found.rows::<(Uuid,)>().unwrap().map(|row| row.unwrap().0).collect()
    }

    /// Leaves something whose write has not come yet, and comes back when somebody has looked at it in vain: beside it lies
    /// something that is over at the first look.
    async fn leave_in_vain(&self, store: &CassandraStore, kind: &str, op_id: Uuid, payload: Vec<u8>) {
        let stock = vec![(zone(ZONE), 1)];
        let over = ImportProduct {
            product: product("over").build(),
            stock,
            op: Uuid::new_v4(),
            now: NOW,
            once: None,
        };
        store.import_product(over.clone()).await.unwrap();
        let process = self.leave(&[(kind, op_id, payload), ("import", over.op, import(&over))]).await;
        eventually("what is over is gone", PATIENCE, async || {
            (!self.left_of(process).await.contains(&over.op)).then_some(())
        })
        .await;
    }

    /// The write that closes a guest's cart for a merge, come at last.
    async fn close(&self, cart: &Cart, merge: Uuid, begun: Vec<u8>) {
        let id = cart.owner.id();
        let created_at = CqlTimestamp(cart.created_at.as_millis());
        let closed = "UPDATE {} SET status = 'abandoned', merge_id = ? WHERE owner_kind = 'session' AND owner_id = ? \
             AND created_at = ? AND cart_id = ? AND product_id = ''";
        let cart_id = &cart.cart_id.as_bytes()[..];
        self.run(Table::CartsByOwner, closed, (merge, id, created_at, cart_id)).await;
        let guard = "UPDATE {} SET rev = 2, active_created_at = null, active_cart_id = null \
             WHERE owner_kind = 'session' AND owner_id = ?";
        self.run(Table::CartsByOwner, guard, (id,)).await;
        self.mark("session", id, merge, begun).await;
    }

    async fn mark(&self, kind: &str, owner: &str, merge: Uuid, outcome: Vec<u8>) {
        let marker = "INSERT INTO {} (owner_kind, owner_id, created_at, cart_id, product_id, outcome) \
             VALUES (?, ?, ?, ?, '', ?)";
        self.run(Table::CartsByOwner, marker, (kind, owner, MARKERS, &merge.as_bytes()[..], outcome)).await;
    }
}

/// The intent of an import, as `products/import.rs` writes it.
fn import(import: &ImportProduct) -> Vec<u8> {
    let mut writer = Writer::new(128);
    mw_codec::products::write(&mut writer, &import.product);
    writer.unsigned(import.stock.len() as u64);
    for (zone, on_hand) in &import.stock {
        writer.text(zone.as_str());
        writer.unsigned(*on_hand);
    }
    writer.bytes(import.op.as_bytes());
    writer.time(import.now);
    writer.optional(import.once.as_ref(), |writer, once| {
        writer.time(once.keep_until);
        write_key(writer, once);
    });
    writer.done()
}

/// The intent of a card's second change, as `products/place.rs` writes it: it stood for 1.00 in the lowest band.
fn second_change(product: &str) -> Vec<u8> {
    let mut writer = Writer::new(64);
    writer.text(product);
    writer.byte(1);
    writer.text("left");
    writer.signed(0);
    writer.signed(100);
    writer.signed(2);
    writer.done()
}

/// The intent of a step, as `orders/status.rs` writes it: here to give units back.
fn returning_step(id: OrderId, version: i64) -> Vec<u8> {
    let mut writer = Writer::new(32);
    writer.bytes(id.as_bytes());
    writer.signed(version);
    writer.byte(3);
    writer.done()
}

/// Who merges with whom, as `carts/merge.rs` writes it: the guest `g` with the user `u` whose cart is of the version.
fn write_parties(writer: &mut Writer, expected_version: Option<u64>) {
    write_owner(writer, &user("u"));
    write_owner(writer, &guest("g"));
    writer.byte(0);
    writer.bytes(Uuid::new_v4().as_bytes());
    writer.optional(expected_version.as_ref(), |writer, version| writer.unsigned(*version));
    writer.signed(LIFETIME.user_ms);
    writer.signed(LIFETIME.guest_ms);
    writer.time(NOW);
}

/// The intent of the guest's login as the user, as `sessions/login.rs` writes it.
fn login() -> Vec<u8> {
    let mut writer = Writer::new(128);
    writer.text("g");
    write_parties(&mut writer, None);
    writer.done()
}

/// Waits until the user has the three units that were the guest's.
async fn merged(store: &CassandraStore) {
    eventually("the user has the lines", RECOVERED, async || {
        (lines(store, "u").await.unwrap() == [("p".to_owned(), 3)]).then_some(())
    })
    .await;
}

/// What the guest's partition says of a merge.
fn begun(cart: &Cart, expected_version: Option<u64>) -> Vec<u8> {
    let mut writer = Writer::new(256);
    write_parties(&mut writer, expected_version);
    writer.bytes(Uuid::new_v4().as_bytes());
    write_cart(&mut writer, cart);
    writer.done()
}

async fn on_hand(store: &CassandraStore, name: &str, in_zone: &str) -> Option<u64> {
    let stock = store.zone_stock(&product_id(name), &zone(in_zone), Freshness::Full, NOW).await.unwrap();
    stock.map(|stock| stock.level.on_hand)
}

/// The products of the category `left`, by price.
async fn listed(store: &CassandraStore) -> Vec<(i64, String)> {
    let query = CategoryQuery {
        category: category("left"),
        min_price: None,
        max_price: None,
        descending: false,
        geo_zone: None,
        in_stock: false,
    };
    let page = store.category(&query, Freshness::Full, NOW, PageRequest::first(100)).await.unwrap();
    assert_eq!(page.next, None);
    let place = |product: &Product| (product.price.as_minor(), product.product_id.to_string());
    page.items.iter().map(|item| place(&item.product)).collect()
}

/// Changes the price of a card to 500.00, as its conditional write would.
async fn move_card(shop: &Shop, product: &str) {
    let moved = "UPDATE {} SET price = 50000, band = 192, rev = 2 WHERE product_id = ?";
    shop.run(Table::CategoryBands, "INSERT INTO {} (category, band) VALUES ('left', 192)", ()).await;
    shop.run(Table::ProductById, moved, (product,)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_process_left_is_finished() {
    let _turn = alone().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    // A card that was changed and not listed, an import with one zone done, another whose key is over, and one of which nothing
    // was done.
    let card = |name: &str, price| product(name).category("left").price(price).build();
    store.put_product(card("moved", "1.00")).await.unwrap();
    move_card(&shop, "moved").await;

    let stock = vec![(zone("north"), 3), (zone("south"), 5)];
    let half =
        ImportProduct { product: card("half", "3.00"), stock, op: Uuid::new_v4(), now: NOW, once: None };
    let late = ImportProduct {
        product: card("late", "5.00"),
        op: Uuid::new_v4(),
        once: Some(once("over", "over", NOW)),
        ..half.clone()
    };
    for begun in [&half, &late] {
        store.put_product(card(begun.product.product_id.as_str(), "2.00")).await.unwrap();
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
    let never = ImportProduct { product: card("never", "4.00"), op: Uuid::new_v4(), ..half.clone() };
    // What nobody can read keeps nothing else waiting.
    let nonsense = vec![0xff; 3];
    shop.leave(&[("product", Uuid::new_v4(), nonsense.clone())]).await;
    shop.leave(&[
        ("import", Uuid::new_v4(), nonsense),
        ("product", Uuid::new_v4(), second_change("moved")),
        ("import", never.op, import(&never)),
        ("import", half.op, import(&half)),
        ("import", late.op, import(&late)),
    ])
    .await;

    let expected = [(300, "half".to_owned()), (500, "late".to_owned()), (50_000, "moved".to_owned())];
    eventually("cards are listed where they are", RECOVERED, async || {
        (listed(&store).await == expected).then_some(())
    })
    .await;
    for name in ["half", "late"] {
        assert_eq!(on_hand(&store, name, "south").await, Some(5), "{name}");
    }
    assert_eq!(store.product(&product_id("never"), Freshness::Full).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_that_was_refused_in_the_middle_stays_refused_for_all_who_work_on_it() {
    let _turn = alone().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    let card = product("half").category("left").price("1.00").build();
    let stock = vec![(zone("north"), 10), (zone("south"), 10)];
    let first = ImportProduct { product: card.clone(), stock, op: Uuid::new_v4(), now: NOW, once: None };
    store.import_product(first).await.unwrap();

    // The next one took away from the north when somebody held half of the south.
    let next = ImportProduct {
        product: product("half").category("left").price("2.00").build(),
        stock: vec![(zone("north"), 4), (zone("south"), 1)],
        op: Uuid::new_v4(),
        now: NOW,
        once: None,
    };
    let held = Reserve { geo_zone: zone("south"), lines: vec![demand("half", 5)], ..hold("half") };
    let reservation_id = store.reserve(held).await.unwrap().value.reservation_id;
    let taken = SetOnHand {
        product_id: product_id("half"),
        geo_zone: zone("north"),
        on_hand: 4,
        expected_on_hand: None,
        op: next.op,
        now: NOW,
    };
    store.set_on_hand(taken).await.unwrap();
    let recovered = async || {
        let process = shop.leave(&[("import", next.op, import(&next))]).await;
        eventually("the import is over", RECOVERED, async || {
            shop.left_of(process).await.is_empty().then_some(())
        })
        .await;
        let on_hand = async |name| on_hand(&store, "half", name).await;
        assert_eq!((on_hand("north").await, on_hand("south").await), (Some(10), Some(10)));
    };
    recovered().await;

    // Now it would not be refused any more: by somebody who is still at it, or by who finds it once again.
    store.release(reservation_id, NOW).await.unwrap();
    let again = store.import_product(next.clone()).await.expect_err("half of it was done");
    assert!(matches!(again.refusal(), Some(Refusal::StockBelowReserved { .. })), "{again:?}");
    recovered().await;
    assert_eq!(listed(&store).await, [(100, "half".to_owned())]);
    audited(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_lost_is_not_followed_by_whoever_recovers_it() {
    let _turn = alone().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    stocked(&store, "hit", 10).await;
    let order_id = store.place_order(order("u", &["hit"])).await.unwrap().value.order_id;
    for to in [OrderStatus::Paid, OrderStatus::Shipped] {
        let command = SetStatus {
            order_id,
            of_user: None,
            to,
            note: None,
            expected_version: None,
            now: NOW,
            once: None,
        };
        store.set_status(command).await.unwrap();
    }
    assert_eq!(units(&store, "hit").await.unwrap(), (9, 0));

    // A process that died wanted to cancel the paid order, and the other step was faster. Beside it lies what nobody can read.
    let damaged = Uuid::new_v4();
    let process = shop
        .leave(&[("status", Uuid::new_v4(), returning_step(order_id, 3)), ("status", damaged, vec![0_u8; 3])])
        .await;
    eventually("what can be finished is gone from beside what cannot", PATIENCE, async || {
        (shop.left_of(process).await == [damaged]).then_some(())
    })
    .await;
    assert_eq!(units(&store, "hit").await.unwrap(), (9, 0), "units came back that a parcel has");
    audited(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_that_changes_after_others_have_looked_is_listed_once() {
    let _turn = alone().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    store.put_product(product("late").category("left").price("1.00").build()).await.unwrap();
    shop.leave_in_vain(&store, "product", Uuid::new_v4(), second_change("late")).await;
    move_card(&shop, "late").await;
    eventually("the card is listed where it is", RECOVERED, async || {
        (listed(&store).await == [(50_000, "late".to_owned())]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_s_cart_that_is_closed_after_others_have_looked_reaches_its_user() {
    let _turn = alone().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    let cart = set_line(&store, guest("g"), "p", 3).await.unwrap();
    let merge = Uuid::new_v4();
    let mut intent = Writer::new(16);
    intent.text("g");
    shop.leave_in_vain(&store, "merge", merge, intent.done()).await;
    shop.close(&cart, merge, begun(&cart, None)).await;
    merged(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_bound_after_others_have_looked_brings_its_cart() {
    let _turn = alone().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    let session = visit(session_id("g"));
    let command = CreateSession { session, made_of: None, now: NOW, once: None };
    store.create_session(command).await.unwrap();
    set_line(&store, guest("g"), "p", 3).await.unwrap();
    shop.leave_in_vain(&store, "login", Uuid::new_v4(), login()).await;
    let bound = "UPDATE {} SET user_id = 'u', rev = 2 WHERE session_id = 'g'";
    shop.run(Table::SessionsById, bound, ()).await;
    merged(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_whose_session_ended_in_the_middle_still_brings_its_cart() {
    let _turn = alone().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    let cart = set_line(&store, guest("g"), "p", 3).await.unwrap();
    let op_id = Uuid::new_v4();
    shop.close(&cart, op_id, begun(&cart, None)).await;
    shop.leave(&[("login", op_id, login())]).await;
    merged(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_of_a_merge_that_was_refused_are_there_for_the_next_one() {
    let _turn = alone().await;
    let shop = Shop::new().await;
    let store = shop.lease.open().await;
    let cart = set_line(&store, guest("g"), "p", 3).await.unwrap();
    // Somebody closed the guest's cart, was refused by the user's and died before the guest had it back.
    let refused = Uuid::new_v4();
    shop.close(&cart, refused, begun(&cart, Some(7))).await;
    shop.mark("user", "u", refused, Vec::new()).await;
    let merge = Merge {
        user_id: user_id("u"),
        session_id: session_id("g"),
        mode: MergeMode::Sum,
        new_cart_id: cart_id(1),
        expected_version: None,
        lifetime: LIFETIME,
        now: NOW,
        once: None,
    };
    let merged = store.merge(merge).await.unwrap().value;
    assert_eq!(merged.changes.len(), 1, "{merged:?}");
    assert_eq!(lines(&store, "u").await.unwrap(), [("p".to_owned(), 3)]);
    assert_eq!(store.active_cart(&guest("g"), NOW).await.unwrap(), None);
}
