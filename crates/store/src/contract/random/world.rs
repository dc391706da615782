//! The state of the generator: a few names, the time, and the choice of the next operation.

use std::collections::{BTreeMap, BTreeSet};

use mw_domain::limits::RESERVATION_HISTORY_DAYS;
use mw_domain::products::ProductPatch;
use mw_domain::{
    Attributes, CartId, Category, Demand, GeoZone, IdempotencyKey, MergeMode, Money, OrderId, OrderStatus,
    Owner, Product, ProductId, ReservationId, Session, SessionId, Timestamp, UserId,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

use super::step::Step;
use crate::carts::{Abandon, Merge, RemoveLine, SetLine};
use crate::contract::fixtures::{
    DAY, HOUR, KEY_LIFE, LIFETIME, MINUTE, PAYMENT_WINDOW, SESSION_LIFETIME, at, category, product_id,
    session_id, user_id, zone,
};
use crate::orders::{Basket, PlaceOrder, SetStatus};
use crate::products::ImportProduct;
use crate::sessions::{CreateSession, Login, TouchSession};
use crate::stock::{Adjust, Reserve, SetOnHand};
use crate::{Fingerprint, RequestIdentity};

/// Orders and reservations that later steps may refer to.
const REMEMBERED_MAX: usize = 60;

pub(super) struct World {
    rng: SmallRng,
    pub(super) now: Timestamp,
    pub(super) users: Vec<UserId>,
    pub(super) sessions: Vec<SessionId>,
    pub(super) products: Vec<ProductId>,
    pub(super) zones: Vec<GeoZone>,
    pub(super) categories: Vec<Category>,
    pub(super) orders: Vec<OrderId>,
    pub(super) reservations: Vec<ReservationId>,
    /// Instants at which a created row expires.
    deadlines: BTreeSet<Timestamp>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let start = at(rng.random_range(0..DAY));
        Self {
            rng,
            now: start,
            users: ["u1", "u2", "u3"].map(user_id).into(),
            sessions: ["s1", "s2", "s3", "s4"].map(session_id).into(),
            // One id is a prefix of another, and one product is never put.
            products: ["p", "p1", "p10", "q", "r", "never"].map(product_id).into(),
            zones: ["north", "north-east"].map(zone).into(),
            categories: ["phones", "Чехлы"].map(category).into(),
            orders: Vec::new(),
            reservations: Vec::new(),
            deadlines: BTreeSet::new(),
        }
    }

    pub(super) fn owners(&self) -> Vec<Owner> {
        let users = self.users.iter().cloned().map(Owner::User);
        users.chain(self.sessions.iter().cloned().map(Owner::Session)).collect()
    }

    pub(super) fn restarts(&mut self) -> bool {
        self.rng.random_ratio(1, 60)
    }

    pub(super) fn page_size(&mut self) -> usize {
        self.rng.random_range(1..6)
    }

    /// Advances the time and chooses the next step.
    pub(super) fn step(&mut self) -> Step {
        self.pass_time();
        match self.rng.random_range(0..100) {
            0..28 => self.of_carts(),
            28..38 => self.of_sessions(),
            38..50 => self.of_products(),
            50..69 => self.of_stock(),
            69..94 => self.of_orders(),
            94..96 => Step::CancelUnpaid(self.now),
            96..98 => Step::ExpireReservations(self.now),
            _ => Step::PurgeExpired(self.now),
        }
    }

    /// Remembers the ids that a step created, and sometimes ids that it failed to create.
    pub(super) fn learn(&mut self, step: &Step, is_done: bool) {
        if !is_done && self.rng.random_bool(0.95) {
            return;
        }
        match step {
            Step::PlaceOrder(command) => remember(&mut self.orders, command.order_id),
            Step::Reserve(command) => remember(&mut self.reservations, command.reservation_id),
            _ => {}
        }
    }

    /// Often by nothing, sometimes to the exact instant of an expiry or just before it.
    fn pass_time(&mut self) {
        let (now, rng) = (self.now, &mut self.rng);
        self.now = match rng.random_range(0..1_000) {
            0..450 => now,
            450..750 => now.plus_millis(rng.random_range(1..2_000)),
            750..880 => now.plus_seconds(rng.random_range(1..5 * MINUTE)),
            880..940 => {
                let near = self.deadlines.range(now..).nth(rng.random_range(0..3)).copied();
                let early = i64::from(rng.random_bool(0.3));
                near.map_or(now, |deadline| deadline.plus_millis(-early).max(now))
            }
            940..975 => now.plus_seconds(rng.random_range(1..40 * MINUTE)),
            975..996 => now.plus_seconds(rng.random_range(1..30 * HOUR)),
            _ => now.plus_seconds(rng.random_range(1..35 * DAY)),
        };
        self.deadlines = self.deadlines.split_off(&self.now);
    }

    fn due_in(&mut self, seconds: i64) -> Timestamp {
        let deadline = self.now.plus_seconds(seconds);
        self.deadlines.insert(deadline);
        deadline
    }

    fn pick<T: Clone>(rng: &mut SmallRng, from: &[T]) -> T {
        from.choose(rng).unwrap().clone()
    }

    fn uuid(&mut self) -> Uuid {
        Uuid::from_u128(self.rng.random())
    }

    fn user(&mut self) -> UserId {
        Self::pick(&mut self.rng, &self.users)
    }

    fn session(&mut self) -> SessionId {
        Self::pick(&mut self.rng, &self.sessions)
    }

    fn owner(&mut self) -> Owner {
        if self.rng.random() { Owner::User(self.user()) } else { Owner::Session(self.session()) }
    }

    /// Mostly a product that may be in the catalogue.
    fn product(&mut self) -> ProductId {
        if self.rng.random_bool(0.95) {
            self.known_product()
        } else {
            Self::pick(&mut self.rng, &self.products)
        }
    }

    /// A product that may be in the catalogue.
    fn known_product(&mut self) -> ProductId {
        let known = self.products.len() - 1;
        Self::pick(&mut self.rng, &self.products[..known])
    }

    fn zone(&mut self) -> GeoZone {
        Self::pick(&mut self.rng, &self.zones)
    }

    fn category(&mut self) -> Category {
        Self::pick(&mut self.rng, &self.categories)
    }

    fn quantity(&mut self) -> u32 {
        self.rng.random_range(1..5)
    }

    /// Mostly enough for some orders, often none.
    fn on_hand(&mut self) -> u64 {
        Self::pick(&mut self.rng, &[0, 1, 3, 8, 20, 50, 200])
    }

    fn mode(&mut self) -> MergeMode {
        let modes = [MergeMode::Sum, MergeMode::Max, MergeMode::Guest, MergeMode::User];
        Self::pick(&mut self.rng, &modes)
    }

    fn expected_version(&mut self) -> Option<u64> {
        self.rng.random_bool(0.2).then(|| self.rng.random_range(0..5))
    }

    /// One of few keys, mostly one of the noun; the noun is part of the fingerprint, as the path of a request is.
    fn identity(&mut self, noun: u8) -> Option<RequestIdentity> {
        if self.rng.random_bool(0.6) {
            return None;
        }
        let space = if self.rng.random_bool(0.85) { noun } else { 0 };
        let key = format!("{space}-{}", self.rng.random_range(0..2));
        let keep_until = self.due_in(KEY_LIFE);
        Some(RequestIdentity {
            key: IdempotencyKey::parse(&key).unwrap(),
            fingerprint: Fingerprint([noun * 2 + u8::from(self.rng.random_bool(0.15)); 32]),
            keep_until,
        })
    }

    fn demands(&mut self) -> Vec<Demand> {
        let count = self.rng.random_range(1..4);
        // The last product is never put.
        let known = self.products.len() - usize::from(self.rng.random_bool(0.95));
        let products: Vec<ProductId> =
            self.products[..known].choose_multiple(&mut self.rng, count).cloned().collect();
        products.into_iter().map(|product_id| Demand { product_id, quantity: self.quantity() }).collect()
    }

    fn of_carts(&mut self) -> Step {
        let (owner, now) = (self.owner(), self.now);
        let expected_version = self.expected_version();
        let life_ms = LIFETIME.expiry(&owner, now).as_millis() - now.as_millis();
        self.due_in(life_ms / 1_000);
        match self.rng.random_range(0..10) {
            0..6 => Step::SetLine(SetLine {
                owner,
                product_id: self.product(),
                quantity: self.quantity(),
                new_cart_id: CartId::new(self.uuid()),
                expected_version,
                lifetime: LIFETIME,
                now,
            }),
            6..8 => Step::RemoveLine(RemoveLine {
                owner,
                product_id: self.product(),
                expected_version,
                lifetime: LIFETIME,
                now,
            }),
            8 => {
                let identity = self.identity(1);
                Step::Abandon(Abandon { owner, expected_version, lifetime: LIFETIME, now, identity })
            }
            _ => Step::Merge(Merge {
                user_id: self.user(),
                session_id: self.session(),
                mode: self.mode(),
                new_cart_id: CartId::new(self.uuid()),
                expected_version,
                lifetime: LIFETIME,
                now,
                identity: self.identity(2),
            }),
        }
    }

    fn of_sessions(&mut self) -> Step {
        let now = self.now;
        let expires_at = self.due_in(SESSION_LIFETIME.ttl_ms / 1_000);
        match self.rng.random_range(0..14) {
            0..5 => {
                let session = Session {
                    session_id: self.session(),
                    user_id: self.rng.random::<bool>().then(|| self.user()),
                    geo_zone: Some(self.zone()),
                    ip: None,
                    user_agent: Some("browser".to_owned()),
                    device_type: None,
                    data: BTreeMap::new(),
                    created_at: now,
                    last_activity: now,
                    expires_at,
                };
                Step::CreateSession(CreateSession { session, id_seed: None, now, identity: self.identity(3) })
            }
            5..8 => {
                let session_id = self.session();
                let data = self.data();
                Step::TouchSession(TouchSession { session_id, data, lifetime: SESSION_LIFETIME, now })
            }
            8..12 => Step::Login(Login {
                session_id: self.session(),
                user_id: self.user(),
                mode: self.mode(),
                new_cart_id: CartId::new(self.uuid()),
                session_lifetime: SESSION_LIFETIME,
                cart_lifetime: LIFETIME,
                now,
                identity: self.identity(4),
            }),
            12 => Step::DeleteSession(self.session(), now),
            _ => Step::RevokeSessions(self.user(), now),
        }
    }

    /// Mostly little, sometimes nothing, sometimes more than a session may hold.
    fn data(&mut self) -> BTreeMap<String, Option<String>> {
        let count = Self::pick(&mut self.rng, &[0, 1, 1, 2, 65]);
        (0..count)
            .map(|number| {
                let value = self.rng.random_bool(0.7).then(|| self.rng.random::<u8>().to_string());
                let key = if count > 2 { number } else { self.rng.random_range(0..4) };
                (format!("k{key}"), if count > 2 { Some(String::new()) } else { value })
            })
            .collect()
    }

    fn price(&mut self) -> Money {
        Money::from_minor(Self::pick(&mut self.rng, &[0, 100, 100, 250, 251, 99_999]))
    }

    fn new_product(&mut self) -> Product {
        Product {
            product_id: self.known_product(),
            name: format!("name {}", self.rng.random_range(0..3)),
            category: self.category(),
            price: self.price(),
            description: String::new(),
            attributes: Attributes::default(),
            created_at: self.now,
            updated_at: self.now,
        }
    }

    fn of_products(&mut self) -> Step {
        let now = self.now;
        match self.rng.random_range(0..12) {
            0..5 => Step::PutProduct(self.new_product()),
            5..8 => {
                let patch = ProductPatch {
                    price: self.rng.random::<bool>().then(|| self.price()),
                    category: self.rng.random_bool(0.3).then(|| self.category()),
                    name: self.rng.random_bool(0.1).then(String::new),
                    ..ProductPatch::default()
                };
                Step::PatchProduct(self.known_product(), patch, now)
            }
            8 => Step::DeleteProduct(self.known_product(), now),
            _ => {
                let count = self.rng.random_range(0..3);
                let zones: Vec<GeoZone> = self.zones.iter().take(count).cloned().collect();
                let stock = zones.into_iter().map(|zone| (zone, self.on_hand())).collect();
                let product = self.new_product();
                Step::ImportProduct(ImportProduct {
                    product,
                    stock,
                    op: self.uuid(),
                    now,
                    identity: self.identity(5),
                })
            }
        }
    }

    fn of_stock(&mut self) -> Step {
        let (product_id, geo_zone, now) = (self.product(), self.zone(), self.now);
        match self.rng.random_range(0..10) {
            0..2 => Step::SetOnHand(SetOnHand {
                product_id,
                geo_zone,
                on_hand: self.on_hand(),
                expected_on_hand: self.rng.random_bool(0.2).then(|| self.on_hand()),
                op: self.uuid(),
                now,
            }),
            2..4 => Step::Adjust(Adjust {
                product_id,
                geo_zone,
                delta: Self::pick(&mut self.rng, &[1, 3, 8, -1, -4, 2_000_000_000]),
                reason: "counted".to_owned(),
                op: self.uuid(),
                now,
                identity: self.identity(6),
            }),
            4..7 => {
                let id = ReservationId::new(self.uuid());
                let ttl = self.rng.random_range(1..20 * MINUTE);
                self.due_in(ttl + RESERVATION_HISTORY_DAYS * DAY);
                Step::Reserve(Reserve {
                    reservation_id: id,
                    geo_zone,
                    lines: self.demands(),
                    expires_at: self.due_in(ttl),
                    now,
                    identity: self.identity(7),
                })
            }
            part => {
                let unknown = ReservationId::new(self.uuid());
                let young = self.reservations.len().saturating_sub(6);
                let id = self.reservations[young..].choose(&mut self.rng).copied().unwrap_or(unknown);
                if part < 9 { Step::Confirm(id, now, self.identity(8)) } else { Step::Release(id, now) }
            }
        }
    }

    fn of_orders(&mut self) -> Step {
        if self.rng.random::<bool>() { self.placing() } else { self.moving() }
    }

    fn placing(&mut self) -> Step {
        let order_id = OrderId::new(self.uuid());
        let basket = if self.rng.random::<bool>() {
            Basket::Lines(self.demands())
        } else {
            Basket::Cart { expected_version: self.expected_version(), lifetime: LIFETIME }
        };
        let totals = [200, 250, 300, 400, 500];
        let expected_total = self.rng.random_bool(0.2).then(|| Self::pick(&mut self.rng, &totals));
        self.due_in(LIFETIME.user_ms / 1_000);
        Step::PlaceOrder(PlaceOrder {
            order_id,
            user_id: self.user(),
            geo_zone: self.zone(),
            basket,
            expected_total: expected_total.map(Money::from_minor),
            delivery_address: None,
            payment_method: self.rng.random::<bool>().then(|| "card".to_owned()),
            pay_by: self.due_in(PAYMENT_WINDOW),
            now: self.now,
            identity: self.identity(9),
        })
    }

    fn moving(&mut self) -> Step {
        let unknown = OrderId::new(self.uuid());
        // Mostly a recent order: an old one has reached a final status.
        let young = self.orders.len().saturating_sub(5);
        let among = if self.rng.random_bool(0.8) { &self.orders[young..] } else { &self.orders[..] };
        let order_id = among.choose(&mut self.rng).copied().unwrap_or(unknown);
        let (paid, shipped, delivered) = (OrderStatus::Paid, OrderStatus::Shipped, OrderStatus::Delivered);
        let steps = [paid, paid, paid, shipped, shipped, delivered, OrderStatus::Returned];
        let to = if self.rng.random_bool(0.8) {
            Self::pick(&mut self.rng, &steps)
        } else {
            Self::pick(&mut self.rng, &OrderStatus::ALL)
        };
        Step::SetStatus(SetStatus {
            order_id,
            of_user: self.rng.random_bool(0.1).then(|| self.user()),
            to,
            note: self.rng.random_bool(0.3).then(|| "note".to_owned()),
            expected_version: self.expected_version(),
            now: self.now,
            identity: self.identity(10),
        })
    }
}

/// Keeps the newest ids only, so that comparisons stay short.
fn remember<T>(known: &mut Vec<T>, new: T) {
    if known.len() == REMEMBERED_MAX {
        known.remove(0);
    }
    known.push(new);
}
