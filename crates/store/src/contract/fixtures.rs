//! Fixtures of the suite: instants, ids, and a [`Fixture`] whose commands have defaults.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mw_domain::carts::CartLifetime;
use mw_domain::sessions::SessionLifetime;
use mw_domain::{
    Cart, CartId, Category, Demand, GeoZone, IdempotencyKey, MergeMode, Money, Order, OrderId, OrderStatus,
    Owner, Product, ProductId, Reservation, ReservationId, SessionId, Timestamp, UserId, ZoneStock,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::carts::{Abandon, Merge, Merged, RemoveLine, SetLine};
use crate::orders::{Basket, PlaceOrder, SetStatus};
use crate::stock::{Adjust, Audit, Reserve, SetOnHand};
use crate::{
    Fingerprint, Freshness, Page, PageRequest, Position, Refusal, RequestIdentity, Result, SharedStore,
};

pub(super) const MINUTE: i64 = 60;
pub(super) const HOUR: i64 = 3_600;
pub(super) const DAY: i64 = 86_400;

pub(super) const LIFETIME: CartLifetime = CartLifetime { user_ms: 30 * DAY * 1_000, guest_ms: DAY * 1_000 };
pub(super) const SESSION_LIFETIME: SessionLifetime = SessionLifetime { ttl_ms: DAY * 1_000 };
/// Seconds that a reservation of the fixture holds its units.
pub(super) const HOLD: i64 = 15 * MINUTE;
/// Seconds that an order of the fixture waits for payment.
pub(super) const PAYMENT_WINDOW: i64 = 30 * MINUTE;
/// Seconds a key made by [`identity`] is kept.
pub(super) const KEY_LIFE: i64 = 48 * HOUR;

/// The instant this many seconds after noon of 2026-03-10.
pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(1_773_144_000_000).plus_seconds(seconds)
}

/// The last instant before `instant`.
pub(super) fn just_before(instant: Timestamp) -> Timestamp {
    instant.plus_millis(-1)
}

pub(super) fn user_id(name: &str) -> UserId {
    UserId::parse(name).unwrap()
}

pub(super) fn session_id(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

pub(super) fn user(name: &str) -> Owner {
    Owner::User(user_id(name))
}

pub(super) fn guest(name: &str) -> Owner {
    Owner::Session(session_id(name))
}

pub(super) fn product_id(name: &str) -> ProductId {
    ProductId::parse(name).unwrap()
}

pub(super) fn zone(name: &str) -> GeoZone {
    GeoZone::parse(name).unwrap()
}

pub(super) fn category(name: &str) -> Category {
    Category::parse(name).unwrap()
}

pub(super) fn demands(lines: &[(&str, u32)]) -> Vec<Demand> {
    lines
        .iter()
        .map(|(name, quantity)| Demand { product_id: product_id(name), quantity: *quantity })
        .collect()
}

/// A product of the category `phones`, created at `at(0)`.
pub(super) fn priced_product(name: &str, minor: i64) -> Product {
    Product {
        product_id: product_id(name),
        name: format!("The {name}"),
        category: category("phones"),
        price: Money::from_minor(minor),
        description: String::new(),
        attributes: [("colour".to_owned(), "black".to_owned())].into(),
        created_at: at(0),
        updated_at: at(0),
    }
}

/// The identity of a request; `request` makes the fingerprint.
pub(super) fn identity(key: &str, request: u8, now: Timestamp) -> RequestIdentity {
    RequestIdentity {
        key: IdempotencyKey::parse(key).unwrap(),
        fingerprint: Fingerprint([request; 32]),
        keep_until: now.plus_seconds(KEY_LIFE),
    }
}

/// The refusal of a command; any other result fails the case.
#[track_caller]
pub(super) fn refusal<T: Debug>(result: Result<T>) -> Refusal {
    match result {
        Ok(value) => panic!("expected a refusal, got {value:?}"),
        Err(error) => match error.refusal() {
            Some(refusal) => refusal.clone(),
            None => panic!("expected a refusal, got {error:?}"),
        },
    }
}

pub(super) fn quantities(cart: &Cart) -> Vec<(&str, u32)> {
    cart.lines.iter().map(|line| (line.product_id.as_str(), line.quantity)).collect()
}

/// Positions that no list returns.
pub(super) fn bad_positions() -> [PageRequest; 3] {
    [vec![], vec![0xff; 3], vec![0xff; 400]]
        .map(|bytes| PageRequest { limit: 10, after: Some(Position(bytes)) })
}

/// Reads a list to its end in pages of `limit`.
pub(super) async fn walk<T>(
    limit: usize,
    mut read: impl AsyncFnMut(PageRequest) -> Result<Page<T>>,
) -> Result<Vec<T>> {
    const PAGES_MAX: usize = 10_000;
    let mut items = Vec::new();
    let mut request = PageRequest::first(limit);
    for _ in 0..PAGES_MAX {
        let page = read(request.clone()).await?;
        assert!(page.items.len() <= limit, "a page of more than {limit} items");
        items.extend(page.items);
        match page.next {
            Some(_) => request.after = page.next,
            None => return Ok(items),
        }
    }
    panic!("a list of more than {PAGES_MAX} pages");
}

/// Reads a list in pages of every size up to its length plus two; all must agree.
pub(super) async fn walk_every_way<T: PartialEq + Debug>(
    mut read: impl AsyncFnMut(PageRequest) -> Result<Page<T>>,
) -> Vec<T> {
    let whole = walk(1_000, &mut read).await.unwrap();
    for limit in 1..=whole.len() + 2 {
        assert_eq!(walk(limit, &mut read).await.unwrap(), whole, "pages of {limit}");
    }
    whole
}

/// Runs many tasks at once; returns their results by task number.
pub(super) async fn concurrently<T, F>(
    fixture: &Arc<Fixture>,
    size: usize,
    act: impl Fn(Arc<Fixture>, usize) -> F,
) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let start = Arc::new(Barrier::new(size));
    let mut tasks = JoinSet::new();
    for number in 0..size {
        let (start, action) = (Arc::clone(&start), act(Arc::clone(fixture), number));
        tasks.spawn(async move {
            start.wait().await;
            (number, action.await)
        });
    }
    let mut results = tasks.join_all().await;
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A store, and ids that rise from 1.
pub(super) struct Fixture {
    pub(super) store: SharedStore,
    made: AtomicU64,
}

impl Fixture {
    pub(super) fn new(store: SharedStore) -> Self {
        Self { store, made: AtomicU64::new(0) }
    }

    pub(super) fn uuid(&self) -> Uuid {
        Uuid::from_u128(u128::from(self.made.fetch_add(1, Ordering::Relaxed)) + 1)
    }

    pub(super) async fn active(&self, owner: &Owner, now: Timestamp) -> Option<Cart> {
        self.store.active_cart(owner, now).await.unwrap()
    }

    pub(super) fn line(&self, owner: &Owner, product: &str, quantity: u32, now: Timestamp) -> SetLine {
        SetLine {
            owner: owner.clone(),
            product_id: product_id(product),
            quantity,
            new_cart_id: CartId::new(self.uuid()),
            expected_version: None,
            lifetime: LIFETIME,
            now,
        }
    }

    pub(super) async fn set(&self, owner: &Owner, product: &str, quantity: u32, now: Timestamp) -> Cart {
        let command = self.line(owner, product, quantity, now);
        self.store.set_line(command).await.unwrap()
    }

    pub(super) async fn set_all(&self, owner: &Owner, lines: &[(&str, u32)], now: Timestamp) -> Option<Cart> {
        for (product, quantity) in lines {
            self.set(owner, product, *quantity, now).await;
        }
        self.active(owner, now).await
    }

    pub(super) async fn remove(&self, owner: &Owner, product: &str, now: Timestamp) -> Option<Cart> {
        let command = removal(owner, product, now);
        self.store.remove_line(command).await.unwrap()
    }

    pub(super) fn merging(&self, user: &str, guest: &str, mode: MergeMode, now: Timestamp) -> Merge {
        Merge {
            user_id: user_id(user),
            session_id: session_id(guest),
            mode,
            new_cart_id: CartId::new(self.uuid()),
            expected_version: None,
            lifetime: LIFETIME,
            now,
            identity: None,
        }
    }

    pub(super) async fn merge(&self, user: &str, guest: &str, mode: MergeMode, now: Timestamp) -> Merged {
        let command = self.merging(user, guest, mode, now);
        self.store.merge(command).await.unwrap().value
    }

    pub(super) async fn put(&self, product: Product) {
        self.store.put_product(product).await.unwrap();
    }

    /// A product at 1.00 with units in the zone `north`.
    pub(super) async fn stocked(&self, product: &str, on_hand: u64) {
        self.put(priced_product(product, 100)).await;
        self.on_hand(product, "north", on_hand, at(0)).await.unwrap();
    }

    pub(super) fn setting(&self, product: &str, geo_zone: &str, on_hand: u64, now: Timestamp) -> SetOnHand {
        SetOnHand {
            product_id: product_id(product),
            geo_zone: zone(geo_zone),
            on_hand,
            expected_on_hand: None,
            op: self.uuid(),
            now,
        }
    }

    pub(super) async fn on_hand(
        &self,
        product: &str,
        geo_zone: &str,
        on_hand: u64,
        now: Timestamp,
    ) -> Result<ZoneStock> {
        let command = self.setting(product, geo_zone, on_hand, now);
        self.store.set_on_hand(command).await
    }

    pub(super) fn adjusting(&self, product: &str, delta: i64, now: Timestamp) -> Adjust {
        Adjust {
            product_id: product_id(product),
            geo_zone: zone("north"),
            delta,
            reason: "counted".to_owned(),
            op: self.uuid(),
            now,
            identity: None,
        }
    }

    /// On hand and reserved in a zone.
    pub(super) async fn level(&self, product: &str, geo_zone: &str, now: Timestamp) -> (u64, u64) {
        let (product_id, geo_zone) = (product_id(product), zone(geo_zone));
        let stock =
            self.store.zone_stock(&product_id, &geo_zone, Freshness::Latest, now).await.unwrap().unwrap();
        (stock.level.on_hand, stock.level.reserved)
    }

    pub(super) fn reserving(&self, lines: &[(&str, u32)], now: Timestamp) -> Reserve {
        Reserve {
            reservation_id: ReservationId::new(self.uuid()),
            geo_zone: zone("north"),
            lines: demands(lines),
            expires_at: now.plus_seconds(HOLD),
            now,
            identity: None,
        }
    }

    pub(super) async fn reserve(&self, lines: &[(&str, u32)], now: Timestamp) -> Result<Reservation> {
        let command = self.reserving(lines, now);
        Ok(self.store.reserve(command).await?.value)
    }

    pub(super) fn ordering(&self, user: &str, basket: Basket, now: Timestamp) -> PlaceOrder {
        PlaceOrder {
            order_id: OrderId::new(self.uuid()),
            user_id: user_id(user),
            geo_zone: zone("north"),
            basket,
            expected_total: None,
            delivery_address: None,
            payment_method: None,
            pay_by: now.plus_seconds(PAYMENT_WINDOW),
            now,
            identity: None,
        }
    }

    /// An order in the zone `north`.
    pub(super) async fn order(&self, user: &str, lines: &[(&str, u32)], now: Timestamp) -> Result<Order> {
        let command = self.ordering(user, Basket::Lines(demands(lines)), now);
        Ok(self.store.place_order(command).await?.value)
    }

    pub(super) async fn checkout(&self, user: &str, now: Timestamp) -> Result<Order> {
        let command = self.ordering(user, whole_cart(), now);
        Ok(self.store.place_order(command).await?.value)
    }

    pub(super) async fn status(&self, order_id: OrderId, to: OrderStatus, now: Timestamp) -> Result<Order> {
        Ok(self.store.set_status(moving(order_id, to, now)).await?.value)
    }

    pub(super) async fn audit(&self) -> Audit {
        self.store.audit(&|_| ()).await.unwrap()
    }

    /// Every stock level equals the sum of its ledger and of its open holds.
    pub(super) async fn audit_closes(&self) {
        let audit = self.audit().await;
        assert_eq!(audit.drifts, [], "the ledger does not explain the levels");
    }
}

/// The maximum age of a stale read.
const STALE_READ_MAX: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A stale read returns the expected value within [`STALE_READ_MAX`].
pub(super) async fn eventually<T: PartialEq + Debug>(expected: &T, read: impl AsyncFn() -> T) {
    let started = Instant::now();
    loop {
        let found = read().await;
        if found == *expected {
            return;
        }
        assert!(started.elapsed() < STALE_READ_MAX, "still {found:?} in place of {expected:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

pub(super) fn removal(owner: &Owner, product: &str, now: Timestamp) -> RemoveLine {
    RemoveLine {
        owner: owner.clone(),
        product_id: product_id(product),
        expected_version: None,
        lifetime: LIFETIME,
        now,
    }
}

pub(super) fn abandoning(owner: &Owner, now: Timestamp) -> Abandon {
    Abandon { owner: owner.clone(), expected_version: None, lifetime: LIFETIME, now, identity: None }
}

/// The user's cart without a version check.
pub(super) fn whole_cart() -> Basket {
    Basket::Cart { expected_version: None, lifetime: LIFETIME }
}

pub(super) fn moving(order_id: OrderId, to: OrderStatus, now: Timestamp) -> SetStatus {
    SetStatus { order_id, of_user: None, to, note: None, expected_version: None, now, identity: None }
}
