//! Builders of domain values: what a test does not set has a default.
#![expect(clippy::unwrap_used, reason = "a value that does not parse fails the test")]

use std::sync::Arc;

use mw_domain::carts::CartLifetime;
use mw_domain::sessions::SessionLifetime;
use mw_domain::{
    Attributes, CartId, Category, Currency, Demand, GeoZone, IdempotencyKey, Money, OrderId, Owner, Product,
    ProductId, ReservationId, SessionId, Timestamp, UserId,
};
use mw_shop::{Clock, Settings, Shop};
use mw_store::{Fingerprint, RequestIdentity, SharedStore};
use uuid::Uuid;

use crate::FakeClock;

/// A function that parses an id from a text.
macro_rules! parsed {
    ($($name:ident: $id:ident;)*) => {
        $(
            /// # Panics
            /// If the text is not such an id.
            pub fn $name(text: &str) -> $id {
                $id::parse(text).unwrap()
            }
        )*
    };
}

parsed! {
    user_id: UserId;
    session_id: SessionId;
    product_id: ProductId;
    zone: GeoZone;
    category: Category;
    key: IdempotencyKey;
}

/// An order id that is the same for the same number.
pub const fn order_id(number: u64) -> OrderId {
    OrderId::new(uuid(number))
}

/// A cart id that is the same for the same number.
pub const fn cart_id(number: u64) -> CartId {
    CartId::new(uuid(number))
}

/// A reservation id that is the same for the same number.
pub const fn reservation_id(number: u64) -> ReservationId {
    ReservationId::new(uuid(number))
}

/// A version 7 UUID that is the same for the same number and rises with it.
pub const fn uuid(number: u64) -> Uuid {
    let (high, low) = ((number >> 12) as u128, (number & 0xfff) as u128);
    Uuid::from_u128(high << 80 | 0x7 << 76 | low << 64 | 0b10 << 62)
}

pub fn user(name: &str) -> Owner {
    Owner::User(user_id(name))
}

pub fn guest(name: &str) -> Owner {
    Owner::Session(session_id(name))
}

/// # Panics
/// If the text is not an amount.
pub fn money(amount: &str) -> Money {
    Money::parse(amount).unwrap()
}

/// # Panics
/// If the text is not a time.
pub fn time(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

pub fn demand(product: &str, quantity: u32) -> Demand {
    Demand { product_id: product_id(product), quantity }
}

/// An idempotency key that is kept for two days; `request` makes the fingerprint.
pub fn identity(name: &str, request: &str, now: Timestamp) -> RequestIdentity {
    let mut digest = [0; 32];
    for (index, byte) in request.bytes().enumerate() {
        if let Some(cell) = digest.get_mut(index % 32) {
            *cell = byte.wrapping_add(u8::rotate_left(*cell, 3));
        }
    }
    RequestIdentity {
        key: key(name),
        fingerprint: Fingerprint(digest),
        keep_until: now.plus_seconds(172_800),
    }
}

/// A product of the category `phones` at 100.00, created at [`FakeClock::START`].
pub fn product(id: &str) -> ProductBuilder {
    ProductBuilder(Product {
        product_id: product_id(id),
        name: format!("Product {id}"),
        category: category("phones"),
        price: Money::from_minor(10_000),
        description: String::new(),
        attributes: Attributes::default(),
        created_at: FakeClock::START,
        updated_at: FakeClock::START,
    })
}

#[derive(Debug, Clone)]
pub struct ProductBuilder(Product);

impl ProductBuilder {
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.0.name);
        self
    }

    #[must_use]
    pub fn price(mut self, amount: &str) -> Self {
        self.0.price = money(amount);
        self
    }

    #[must_use]
    pub fn category(mut self, name: &str) -> Self {
        self.0.category = category(name);
        self
    }

    #[must_use]
    pub fn description(mut self, text: &str) -> Self {
        text.clone_into(&mut self.0.description);
        self
    }

    #[must_use]
    pub fn attribute(mut self, key: &str, value: &str) -> Self {
        self.0.attributes = self.0.attributes.iter().chain([(key, value)]).collect();
        self
    }

    #[must_use]
    pub fn made_at(mut self, now: Timestamp) -> Self {
        (self.0.created_at, self.0.updated_at) = (now, now);
        self
    }

    pub fn build(self) -> Product {
        self.0
    }
}

impl From<ProductBuilder> for Product {
    fn from(builder: ProductBuilder) -> Self {
        builder.build()
    }
}

/// The default currency and lifetimes of the API.
///
/// # Panics
/// Never: the currency is a valid one.
pub fn settings() -> Settings {
    const DAY_MS: i64 = 86_400_000;
    Settings {
        currency: Currency::parse("RUB").unwrap(),
        carts: CartLifetime { user_ms: 30 * DAY_MS, guest_ms: DAY_MS },
        sessions: SessionLifetime { ttl_ms: DAY_MS },
        payment_window_ms: 1_800_000,
        reservation_ttl_seconds: 900,
    }
}

/// A shop with the default settings.
pub fn shop(store: SharedStore, clock: &Arc<FakeClock>) -> Shop {
    let clock: Arc<dyn Clock> = Arc::<FakeClock>::clone(clock);
    Shop::new(store, clock, settings())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_has_what_was_set_and_defaults_for_the_rest() {
        let made = product("p1").price("10.50").category("cables").attribute("colour", "red").build();
        assert_eq!((made.price, made.category.as_str()), (Money::from_minor(1_050), "cables"));
        assert_eq!(made.attributes.get("colour"), Some("red"));
        assert_eq!(made.check(), Ok(()));
    }

    #[test]
    fn numbered_ids_are_version_7_and_rise() {
        let ids: Vec<Uuid> = [0, 1, 4_095, 4_096, 1 << 40].map(uuid).into();
        assert!(ids.is_sorted_by(|a, b| a < b));
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
        assert_eq!(OrderId::parse(&order_id(7).to_string()), Ok(order_id(7)));
    }

    #[test]
    fn different_requests_have_different_fingerprints() {
        let print = |request| identity("k", request, FakeClock::START).fingerprint;
        assert_eq!(print("a"), print("a"));
        assert_ne!(print("a"), print("b"));
    }
}
