//! A stored value of every kind and version is read back. The fixtures were written by a release: a failure here means
//! that this release cannot read its predecessor's data. `MW_BLESS=1` writes fixtures that are missing;
//! it never changes one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use mw_domain::carts::{CartLifetime, MergeChange};
use mw_domain::stock::{Cause, Delta};
use mw_domain::{
    Attributes, Cart, CartChange, CartId, CartLine, CartStatus, Category, Demand, EventKind, GeoZone,
    IdempotencyKey, Level, MergeMode, Money, Movement, Order, OrderEvent, OrderId, OrderLine, OrderStatus,
    Owner, Product, ProductId, Reservation, ReservationId, ReservationStatus, Session, SessionId, Timestamp,
    UserId, ZoneStock,
};
use mw_store::carts::Merged;
use mw_store::export::Record;
use mw_store::idempotency::{Outcome, StoredOutcome};
use mw_store::migration::{CartKey, Change};
use mw_store::products::ImportProduct;
use mw_store::sessions::LoggedIn;
use mw_store::{Fingerprint, RequestIdentity};
use uuid::Uuid;

use crate::carts::header::{self, Absorbed, CartHeader, ClosedBucket, ClosedCart, OpenCart, OutboxRow};
use crate::changes::StoredChange;
use crate::changes::subjects::{ProductState, SessionState, Subject};
use crate::intents::close_reservation::CloseIntent;
use crate::intents::login::LoginIntent;
use crate::intents::merge::{MergeMarker, MergeSpec};
use crate::intents::order::OrderIntent;
use crate::intents::product::{ListingKey, ProductIntent};
use crate::intents::reserve::ReserveIntent;
use crate::intents::status::StatusIntent;
use crate::{
    Damaged, Reader, VERSION, Writer, carts, changes, export, idempotency, intents, migration, orders,
    products, sessions, stock,
};

/// The bytes that version 1 wrote.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/v1");

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000 + ms)
}

fn uuid(number: u128) -> Uuid {
    Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 | number)
}

fn product_id(name: &str) -> ProductId {
    ProductId::parse(name).unwrap()
}

fn cart_change() -> CartChange {
    CartChange {
        at: at(1),
        cart_id: CartId::new(uuid(1)),
        version: 2,
        product_id: product_id("phone"),
        quantity: 0,
    }
}

fn cart() -> Cart {
    let line = |name, quantity, ms| CartLine { product_id: product_id(name), quantity, updated_at: at(ms) };
    Cart {
        cart_id: CartId::new(uuid(1)),
        owner: Owner::Session(SessionId::parse("s-1").unwrap()),
        status: CartStatus::Abandoned,
        version: 300,
        lines: vec![line("case", 1, -5), line("phone", 10_000, 70_000)],
        created_at: at(0),
        updated_at: at(70_000),
        expires_at: at(86_470_000),
        merged_into: Some(CartId::new(uuid(2))),
        order_id: None,
    }
}

fn cart_header() -> CartHeader {
    let active = Cart { status: CartStatus::Active, merged_into: None, ..cart() };
    let absorbed = |number, cells: &[(&str, i64)]| Absorbed {
        cart: (at(0), CartId::new(uuid(number))),
        base: 1_790_000_000_000_063,
        cells: cells.iter().map(|(name, stamp)| (product_id(name), *stamp)).collect(),
    };
    CartHeader {
        open: Some(OpenCart { cart: active, base: 1_790_000_000_000_063 }),
        last_version: 1_790_000_000_000_000,
        claim: Some(uuid(3)),
        absorbed: vec![absorbed(1, &[("case", 1_790_000_000_000_005), ("phone", 1)]), absorbed(2, &[])],
        last_merge: Some(uuid(4)),
        outbox: Vec::new(),
        last_stamp: 0,
        closed_buckets: Vec::new(),
    }
}

fn cart_header_with_closed_carts() -> CartHeader {
    let stamp = 1_790_000_000_000_007;
    let row = |closed| OutboxRow { cart: (at(0), CartId::new(uuid(1))), stamp, closed };
    let closed = ClosedCart { cart: cart(), merge_id: Some(uuid(5)) };
    let bucket = |bucket, ms| ClosedBucket { bucket, until: at(ms) };
    CartHeader {
        outbox: vec![row(Some(closed)), row(None)],
        last_stamp: stamp,
        closed_buckets: vec![bucket(2_589, 1_000), bucket(-1, -1_000)],
        ..CartHeader::default()
    }
}

fn session() -> Session {
    Session {
        session_id: SessionId::parse("s-1").unwrap(),
        user_id: Some(UserId::parse("u-1").unwrap()),
        geo_zone: None,
        ip: Some("2001:db8::1".into()),
        user_agent: Some("Браузер/1.0".into()),
        device_type: None,
        data: BTreeMap::from([("theme".into(), "dark".into()), ("a".into(), String::new())]),
        created_at: at(0),
        last_activity: at(1_000),
        expires_at: at(86_401_000),
    }
}

fn product() -> Product {
    Product {
        product_id: product_id("phone"),
        name: "Смартфон X".into(),
        category: Category::parse("Телефоны").unwrap(),
        price: Money::from_minor(1_999_990),
        description: "A phone.".into(),
        attributes: [("color", "black")].into(),
        created_at: at(0),
        updated_at: at(9),
    }
}

fn movement() -> Movement {
    Movement {
        at: at(3),
        op: uuid(9),
        cause: Cause::Adjust,
        delta: Delta { on_hand: -3, reserved: 0 },
        note: Some("broken".into()),
    }
}

fn reservation() -> Reservation {
    Reservation {
        reservation_id: ReservationId::new(uuid(5)),
        geo_zone: GeoZone::parse("moscow").unwrap(),
        lines: vec![Demand { product_id: product_id("phone"), quantity: 2 }],
        status: ReservationStatus::Expired,
        created_at: at(0),
        expires_at: at(900_000),
    }
}

fn order() -> Order {
    Order {
        order_id: OrderId::parse("507f1f77bcf86cd799439011").unwrap(),
        user_id: UserId::parse("u-1").unwrap(),
        status: OrderStatus::Shipped,
        geo_zone: GeoZone::parse("moscow").unwrap(),
        lines: vec![OrderLine {
            product_id: product_id("phone"),
            name: "Смартфон X".into(),
            price: Money::from_minor(1_999_990),
            quantity: 2,
        }],
        total: Money::from_minor(3_999_980),
        delivery_address: Some("Тверская, 1".into()),
        payment_method: None,
        created_at: at(0),
        updated_at: at(60_000),
        version: 3,
        pay_by: at(1_800_000),
    }
}

fn events() -> Vec<OrderEvent> {
    let created =
        OrderEvent { at: at(0), kind: EventKind::Created, from: None, to: OrderStatus::Created, note: None };
    let paid = OrderEvent {
        at: at(5),
        kind: EventKind::Status,
        from: Some(OrderStatus::Created),
        to: OrderStatus::Paid,
        note: Some("card".into()),
    };
    vec![created, paid]
}

fn stored_outcome(outcome: Outcome) -> StoredOutcome {
    let key = IdempotencyKey::parse("key-1").unwrap().line(7);
    StoredOutcome {
        identity: RequestIdentity { key, fingerprint: Fingerprint([7; 32]), keep_until: at(172_800_000) },
        outcome,
    }
}

fn merge_spec(mode: MergeMode, expected_version: Option<u64>) -> MergeSpec {
    MergeSpec {
        user: Owner::User(UserId::parse("u-1").unwrap()),
        guest: cart().owner,
        mode,
        new_cart_id: CartId::new(uuid(8)),
        expected_version,
        lifetime: CartLifetime { user_ms: 2_592_000_000, guest_ms: 86_400_000 },
        now: at(70_001),
    }
}

fn merge_marker(mode: MergeMode, expected_version: Option<u64>) -> MergeMarker {
    MergeMarker { spec: merge_spec(mode, expected_version), guest_cart: cart(), target: CartId::new(uuid(2)) }
}

fn product_intent() -> ProductIntent {
    let Product { product_id, category, price, .. } = product();
    ProductIntent { product_id, previous: Some(ListingKey { category, band: 131, price }), rev: 7 }
}

fn import() -> ImportProduct {
    let zone = |name| GeoZone::parse(name).unwrap();
    ImportProduct {
        product: product(),
        stock: vec![(zone("moscow"), 500), (zone("spb"), 0)],
        op: uuid(9),
        now: at(9),
        identity: Some(stored_outcome(Outcome::Placed(order().order_id)).identity),
    }
}

fn order_intent() -> OrderIntent {
    OrderIntent {
        order: order(),
        closing: Some((cart(), CartLifetime { user_ms: 2_592_000_000, guest_ms: 86_400_000 })),
        identity: Some(stored_outcome(Outcome::Placed(order().order_id)).identity),
    }
}

fn reserve_intent() -> ReserveIntent {
    let stored = stored_outcome(Outcome::Reservation(reservation()));
    ReserveIntent { reservation: reservation(), identity: Some(stored.identity) }
}

fn close_intent() -> CloseIntent {
    let requested = Reservation { status: ReservationStatus::Released, ..reservation() };
    CloseIntent { requested, now: at(5) }
}

fn status_intent(cause: Option<Cause>) -> StatusIntent {
    StatusIntent { order_id: order().order_id, version: 3, op_token: uuid(7), cause }
}

fn zone_stock() -> ZoneStock {
    ZoneStock {
        product_id: product_id("phone"),
        geo_zone: GeoZone::parse("spb").unwrap(),
        level: Level { on_hand: 1_000_000_000, reserved: 3 },
        updated_at: at(4),
    }
}

fn outcomes() -> Vec<(&'static str, Outcome)> {
    let merged = Merged {
        cart: Some(cart()),
        changes: vec![MergeChange { product_id: product_id("case"), from: 0, to: 4 }],
    };
    vec![
        ("cart", Outcome::Cart(cart())),
        ("merged", Outcome::Merged(merged)),
        ("session", Outcome::Session(session())),
        ("logged_in", Outcome::LoggedIn(LoggedIn { session: session(), cart: None })),
        ("stock", Outcome::Stock(zone_stock())),
        ("reservation", Outcome::Reservation(reservation())),
        ("placed", Outcome::Placed(order().order_id)),
        ("order", Outcome::Order(order())),
        ("imported", Outcome::Imported { product_id: product_id("phone"), created: true }),
    ]
}

fn every_record() -> Vec<(&'static str, Record)> {
    vec![
        ("product", Record::Product(product())),
        ("stock", Record::Stock { stock: zone_stock(), ledger: vec![movement(), movement()] }),
        (
            "ledger",
            Record::Ledger {
                product_id: zone_stock().product_id,
                geo_zone: zone_stock().geo_zone,
                ledger: vec![movement()],
            },
        ),
        ("cart", Record::Cart(cart())),
        ("cart_change", Record::CartChange { owner: cart().owner, change: cart_change() }),
        ("session", Record::Session(session())),
        ("reservation", Record::Reservation(reservation())),
        ("order", Record::Order { order: order(), events: events() }),
        ("stored_outcome", Record::StoredOutcome(stored_outcome(Outcome::Placed(order().order_id)))),
    ]
}

/// Reads a fixture; it must equal the bytes that this release writes.
fn fixture(name: &str, written: &[u8]) -> Vec<u8> {
    let path = Path::new(FIXTURES).join(format!("{name}.hex"));
    let hex = written.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    });
    if !path.exists() && std::env::var_os("MW_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("{hex}\n")).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(stored.trim(), hex, "{name}: this release writes other bytes; give them a new version");
    let digits: Vec<char> = stored.trim().chars().collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}

#[test]
fn every_noun_reads_back_from_its_fixture() {
    assert_eq!(carts::decode(&fixture("cart", &carts::encode(&cart()))), Ok(cart()));
    let bytes = fixture("cart_change", &carts::encode_change(&cart_change(), at(99)));
    assert_eq!(carts::decode_change(&bytes), Ok(cart_change()));
    let bytes = fixture("cart_header", &header::encode(&cart_header()));
    assert_eq!(header::decode(&bytes), Ok(cart_header()));
    assert_eq!(header::decode(&header::encode(&CartHeader::default())), Ok(CartHeader::default()));
    let bytes = fixture("cart_header_closed", &header::encode(&cart_header_with_closed_carts()));
    assert_eq!(header::decode(&bytes), Ok(cart_header_with_closed_carts()));
    assert_eq!(sessions::decode(&fixture("session", &sessions::encode(&session()))), Ok(session()));
    fixture("session_by_user", &sessions::encode_until(at(7)));
    assert_eq!(products::decode(&fixture("product", &products::encode(&product()))), Ok(product()));
    let level = Level { on_hand: 128, reserved: 127 };
    let bytes = fixture("stock", &stock::encode_level(level, at(2)));
    assert_eq!(stock::decode_level(&bytes), Ok((level, at(2))));
    let bytes = fixture("movement", &stock::encode_movement(&movement()));
    assert_eq!(stock::decode_movement(&bytes), Ok(movement()));
    let bytes = fixture("reservation", &stock::encode_reservation(&reservation(), at(8)));
    assert_eq!(stock::decode_reservation(&bytes), Ok((reservation(), at(8))));
    let bytes = fixture("order", &orders::encode(&order(), &events()));
    assert_eq!(orders::decode(&bytes), Ok((order(), events())));
    let sums = mw_domain::orders::SalesSums { orders: 3, units: 400, revenue: Money::from_minor(1 << 40) };
    assert_eq!(orders::decode_sums(&fixture("sales", &orders::encode_sums(sums))), Ok(sums));
}

fn every_change() -> Vec<StoredChange> {
    vec![
        StoredChange::Order { order_id: order().order_id, version: 300 },
        StoredChange::Stock(zone_stock()),
        StoredChange::ProductPut(product()),
        StoredChange::ProductDeleted(product_id("phone"), at(5)),
        StoredChange::Cart(cart()),
        StoredChange::CartClosed(cart()),
        StoredChange::Session(session()),
        StoredChange::SessionEnded(session().session_id, at(-5)),
    ]
}

#[test]
fn a_row_of_changes_reads_back_from_its_fixture() {
    let mut encoded = Vec::new();
    let mut ends = vec![0];
    for change in every_change() {
        changes::append(&mut encoded, change.as_ref());
        ends.push(encoded.len());
    }
    let row = fixture("changes", &changes::encode(&encoded));
    assert_eq!(changes::decode(&row), Ok(every_change()));
    assert_eq!(changes::decode(&changes::encode(&[])), Ok(Vec::new()));
    for len in 0..encoded.len() {
        let read = changes::decode(&changes::encode(&encoded[..len]));
        match ends.iter().position(|end| *end == len) {
            Some(count) => assert_eq!(read, Ok(every_change()[..count].to_vec())),
            None => assert_eq!(read, Err(Damaged("changes")), "{len}"),
        }
    }
}

#[test]
fn changed_subjects_read_back_from_their_fixture() {
    let all = vec![
        Subject::Order { order_id: order().order_id, version: 300 },
        Subject::Stock { product_id: zone_stock().product_id, geo_zone: zone_stock().geo_zone },
        Subject::Product(Box::new(ProductState { product: product(), rev: 300, is_deleted: false })),
        Subject::Product(Box::new(ProductState { product: product(), rev: 301, is_deleted: true })),
    ];
    let bytes = fixture("changed_subjects", &changes::subjects::encode(&all));
    assert_eq!(changes::subjects::decode(&bytes), Ok(all));
    for len in 0..bytes.len() {
        assert_eq!(changes::subjects::decode(&bytes[..len]), Err(Damaged("changed subjects")), "{len}");
    }
}

#[test]
fn changed_carts_and_sessions_read_back_from_their_fixture() {
    let Session { session_id, .. } = session();
    let ended = SessionState { session_id: session_id.clone(), at: at(-5), stamp: 1 << 50, session: None };
    let all = vec![
        Subject::Cart { owner: cart().owner, created_at: at(3), cart_id: cart().cart_id },
        Subject::CartClosed(Box::new(cart())),
        Subject::Session(Box::new(SessionState {
            session_id,
            at: at(4),
            stamp: 7,
            session: Some(session()),
        })),
        Subject::Session(Box::new(ended)),
    ];
    let bytes = fixture("changed_carts_and_sessions", &changes::subjects::encode(&all));
    assert_eq!(changes::subjects::decode(&bytes), Ok(all));
}

#[test]
fn every_stored_outcome_reads_back_from_its_fixture() {
    for (name, outcome) in outcomes() {
        let stored_outcome = stored_outcome(outcome);
        let bytes = fixture(
            &format!("stored_outcome_{name}"),
            &idempotency::encode(&stored_outcome.identity, &stored_outcome.outcome),
        );
        assert_eq!(idempotency::decode(&bytes), Ok(stored_outcome), "{name}");
    }
}

#[test]
fn every_outcome_reads_back_from_its_fixture() {
    for (name, outcome) in outcomes() {
        let bytes = fixture(&format!("outcome_{name}"), &idempotency::encode_outcome(&outcome));
        assert_eq!(idempotency::decode_outcome(&bytes), Ok(outcome), "{name}");
    }
}

#[test]
fn every_record_reads_back_from_its_fixture() {
    for (name, record) in every_record() {
        let bytes = fixture(&format!("record_{name}"), &export::encode(&record));
        assert_eq!(export::decode(&bytes), Ok(record), "{name}");
    }
}

fn every_migrated_change() -> Vec<Change> {
    let ZoneStock { product_id, geo_zone, .. } = zone_stock();
    vec![
        Change::Product(product()),
        Change::RemoveProduct(product_id.clone()),
        Change::Stock { stock: zone_stock(), held: vec![movement()], released: vec![movement(), movement()] },
        Change::RemoveStock { product_id, geo_zone },
        Change::Cart(cart()),
        Change::RemoveCart(CartKey::of(&cart())),
        Change::Order { order: order(), events: events() },
        Change::RemoveOrder(order().order_id),
        Change::State { key: b"meta".to_vec(), value: Some(vec![0xff, 0]) },
        Change::State { key: b"doc/1".to_vec(), value: None },
    ]
}

#[test]
fn a_batch_of_a_migration_reads_back_from_its_fixture() {
    let bytes = fixture("migration", &migration::encode(&every_migrated_change()));
    assert_eq!(migration::decode(&bytes), Ok(every_migrated_change()));
    assert_eq!(migration::decode(&migration::encode(&[])), Ok(Vec::new()));
    for len in 0..bytes.len() {
        assert_eq!(migration::decode(&bytes[..len]), Err(Damaged("batch of a migration")), "{len}");
    }
}

#[test]
fn every_intent_reads_back_from_its_fixture() {
    let guest = cart().owner;
    let bytes = fixture("intent_merge", &intents::merge::encode(&guest));
    assert_eq!(intents::merge::decode(&bytes), Ok(guest));
    let marker = merge_marker(MergeMode::Sum, Some(300));
    let bytes = fixture("intent_merge_marker", &intents::merge::encode_marker(&marker));
    assert_eq!(intents::merge::decode_marker(&bytes), Ok(marker));
    let login = LoginIntent { session_id: session().session_id, merge: merge_spec(MergeMode::Max, None) };
    let bytes = fixture("intent_login", &intents::login::encode(&login));
    assert_eq!(intents::login::decode(&bytes), Ok(login));
    let bytes = fixture("intent_product", &intents::product::encode(&product_intent()));
    assert_eq!(intents::product::decode(&bytes), Ok(product_intent()));
    let bytes = fixture("intent_import", &intents::import::encode(&import()));
    assert_eq!(intents::import::decode(&bytes), Ok(import()));
    let bytes = fixture("intent_order", &intents::order::encode(&order_intent()));
    assert_eq!(intents::order::decode(&bytes), Ok(order_intent()));
    let status = status_intent(Some(Cause::Return));
    let bytes = fixture("intent_status", &intents::status::encode(&status));
    assert_eq!(intents::status::decode(&bytes), Ok(status));
    let bytes = fixture("intent_reserve", &intents::reserve::encode(&reserve_intent()));
    assert_eq!(intents::reserve::decode(&bytes), Ok(reserve_intent()));
    let bytes = fixture("intent_close_reservation", &intents::close_reservation::encode(&close_intent()));
    assert_eq!(intents::close_reservation::decode(&bytes), Ok(close_intent()));
}

#[test]
fn intents_read_back_in_every_mode_and_without_optional_parts() {
    for (mode, expected_version) in [
        (MergeMode::Sum, None),
        (MergeMode::Max, Some(0)),
        (MergeMode::Guest, Some(9)),
        (MergeMode::User, Some(u64::MAX)),
    ] {
        let marker = merge_marker(mode, expected_version);
        assert_eq!(intents::merge::decode_marker(&intents::merge::encode_marker(&marker)), Ok(marker));
    }
    let new_product = ProductIntent { previous: None, ..product_intent() };
    assert_eq!(intents::product::decode(&intents::product::encode(&new_product)), Ok(new_product));
    assert_eq!(intents::product::decode(&[1, 2, 3]), Err(Damaged("product intent")));
    let without_key = ImportProduct { identity: None, ..import() };
    assert_eq!(intents::import::decode(&intents::import::encode(&without_key)), Ok(without_key));
    let of_lines = OrderIntent { closing: None, identity: None, ..order_intent() };
    assert_eq!(intents::order::decode(&intents::order::encode(&of_lines)), Ok(of_lines));
    let without_key = ReserveIntent { identity: None, ..reserve_intent() };
    assert_eq!(intents::reserve::decode(&intents::reserve::encode(&without_key)), Ok(without_key));
    for cause in [None, Some(Cause::Take), Some(Cause::Release)] {
        let status = status_intent(cause);
        assert_eq!(intents::status::decode(&intents::status::encode(&status)), Ok(status));
    }
}

#[test]
fn no_truncated_or_longer_intent_reads_as_whole() {
    let order = intents::order::encode(&order_intent());
    let status = intents::status::encode(&status_intent(Some(Cause::Take)));
    for len in 0..order.len() {
        assert_eq!(intents::order::decode(&order[..len]), Err(Damaged("order intent")), "{len}");
    }
    for len in 0..status.len() {
        assert_eq!(intents::status::decode(&status[..len]), Err(Damaged("status intent")), "{len}");
    }
    let reserve = intents::reserve::encode(&reserve_intent());
    for len in 0..reserve.len() {
        assert_eq!(intents::reserve::decode(&reserve[..len]), Err(Damaged("reserve intent")), "{len}");
    }
    let close = intents::close_reservation::encode(&close_intent());
    for len in 0..close.len() {
        let read = intents::close_reservation::decode(&close[..len]);
        assert_eq!(read, Err(Damaged("close intent")), "{len}");
    }
    let longer = [order.as_slice(), &[0]].concat();
    assert_eq!(intents::order::decode(&longer), Err(Damaged("order intent")));
    let longer = [status.as_slice(), &[0]].concat();
    assert_eq!(intents::status::decode(&longer), Err(Damaged("status intent")));
}

#[test]
fn no_cut_or_longer_record_reads_as_whole() {
    for (name, record) in every_record() {
        let bytes = export::encode(&record);
        for len in 0..bytes.len() {
            assert_eq!(export::decode(&bytes[..len]), Err(Damaged("record")), "{name}: {len}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(export::decode(&longer), Err(Damaged("record")), "{name}");
    }
}

#[test]
fn the_tag_of_a_product_is_its_name_and_price() {
    let tag = products::decode_tag(&products::encode(&product()));
    assert_eq!(tag, Ok(("Смартфон X".into(), Money::from_minor(1_999_990))));
}

#[test]
fn no_cut_or_longer_value_reads_as_whole() {
    let bytes = orders::encode(&order(), &events());
    for len in 0..bytes.len() {
        assert_eq!(orders::decode(&bytes[..len]), Err(Damaged("order")), "{len}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert_eq!(orders::decode(&longer), Err(Damaged("order")));
}

#[test]
fn a_value_of_an_unknown_version_is_refused() {
    let mut bytes = carts::encode(&cart());
    bytes[0] = VERSION + 1;
    assert_eq!(carts::decode(&bytes), Err(Damaged("cart")));
}

#[test]
fn a_damaged_length_reserves_no_memory() {
    let mut writer = Writer::new(16);
    writer.unsigned(u64::MAX);
    let bytes = writer.done();
    let mut reader = Reader::new(&bytes, "list").unwrap();
    assert_eq!(reader.list(Reader::byte), Err(Damaged("list")));
}

#[test]
fn attributes_that_make_no_sense_are_damaged() {
    let read = |texts: &[&[u8]], count: u64| {
        let mut writer = Writer::new(64);
        writer.unsigned(count);
        for text in texts {
            writer.unsigned(text.len() as u64);
            writer.bytes(text);
        }
        let bytes = writer.done();
        Reader::new(&bytes, "product").unwrap().attributes()
    };
    assert_eq!(read(&[b"a", b"1", b"b", b"2"], 2), Ok(Attributes::from([("a", "1"), ("b", "2")])));
    for (texts, count) in [
        (&[b"b".as_slice(), b"1", b"a", b"2"][..], 2),
        (&[b"a", b"1", b"a", b"2"], 2),
        (&[b"a", b"1", b"b"], 2),
        (&[b"a", b"1"], u64::MAX),
        (&[b"a", &[0xff]], 1),
        // The bytes are valid UTF-8 together, but not each text alone.
        (&[&[0xd1], &[0x8f]], 1),
    ] {
        assert_eq!(read(texts, count), Err(Damaged("product")), "{texts:?}");
    }
}

#[test]
fn numbers_read_back_at_their_bounds() {
    for number in [0, 1, -1, 63, 64, -64, -65, i64::MAX, i64::MIN] {
        let mut writer = Writer::new(16);
        writer.signed(number);
        writer.unsigned(number.cast_unsigned());
        let bytes = writer.done();
        let mut reader = Reader::new(&bytes, "number").unwrap();
        assert_eq!((reader.signed(), reader.unsigned()), (Ok(number), Ok(number.cast_unsigned())));
    }
}
