//! Keys of all tables: a partition prefix, then the clustering columns, so that every list is one forward scan.
//!
//! Invariants: keys sort as their columns do. Text before another column ends with a zero byte, which no id or category contains.
//! Numbers are big-endian with the sign bit flipped; columns in descending order are inverted.

use mw_codec::Damaged;
use mw_domain::stock::Cause;
use mw_domain::{
    Cart, CartChange, CartId, Category, Date, GeoZone, Money, OrderId, Owner, ProductId, ReservationId,
    SessionId, Timestamp, UserId,
};
use uuid::Uuid;

pub(crate) type Key = Vec<u8>;

/// Bytes of a time and a UUID, the last columns of most list keys.
pub(crate) const TIME_ID_LEN: usize = 24;

/// Builds a key column by column.
struct Builder(Key);

impl Builder {
    fn new(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    fn byte(mut self, byte: u8) -> Self {
        self.0.push(byte);
        self
    }

    /// Text before another column.
    fn text(mut self, text: &str) -> Self {
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
        self
    }

    /// Text as the last column.
    fn last_text(mut self, text: &str) -> Key {
        self.0.extend_from_slice(text.as_bytes());
        self.0
    }

    fn ascending(mut self, number: i64) -> Self {
        self.0.extend_from_slice(&flip(number).to_be_bytes());
        self
    }

    fn descending(mut self, number: i64) -> Self {
        self.0.extend_from_slice(&(!flip(number)).to_be_bytes());
        self
    }

    fn uuid(mut self, uuid: &[u8; 16]) -> Self {
        self.0.extend_from_slice(uuid);
        self
    }

    fn descending_uuid(mut self, uuid: &[u8; 16]) -> Self {
        self.0.extend(uuid.iter().map(|byte| !byte));
        self
    }

    fn done(self) -> Key {
        self.0
    }
}

/// Maps signed to unsigned numbers in the same order.
const fn flip(number: i64) -> u64 {
    number.cast_unsigned() ^ (1 << 63)
}

const fn unflip(number: u64) -> i64 {
    (number ^ (1 << 63)).cast_signed()
}

const fn owner_kind(owner: &Owner) -> u8 {
    match owner {
        Owner::User(_) => b'u',
        Owner::Session(_) => b's',
    }
}

fn read_owner(kind: u8, id: &[u8]) -> Option<Owner> {
    let id = std::str::from_utf8(id).ok()?;
    Some(match kind {
        b'u' => Owner::User(UserId::parse(id).ok()?),
        _ => Owner::Session(SessionId::parse(id).ok()?),
    })
}

pub(crate) fn active_cart(owner: &Owner) -> Key {
    Builder::new(1 + owner.id().len()).byte(owner_kind(owner)).last_text(owner.id())
}

fn of_owner(owner: &Owner, rest: usize) -> Builder {
    Builder::new(2 + owner.id().len() + rest).byte(owner_kind(owner)).text(owner.id())
}

pub(crate) fn closed_carts(owner: &Owner) -> Key {
    of_owner(owner, 0).done()
}

/// The clustering columns of a closed cart: newest first.
pub(crate) fn cart_rank(cart: &Cart) -> Key {
    Builder::new(TIME_ID_LEN)
        .descending(cart.created_at.as_millis())
        .descending_uuid(cart.cart_id.as_bytes())
        .done()
}

pub(crate) fn closed_cart(cart: &Cart) -> Key {
    closed_cart_of(&cart.owner, cart.created_at, cart.cart_id)
}

pub(crate) fn closed_cart_of(owner: &Owner, created_at: Timestamp, cart_id: CartId) -> Key {
    of_owner(owner, TIME_ID_LEN).descending(created_at.as_millis()).descending_uuid(cart_id.as_bytes()).done()
}

/// The last column of a closed cart.
pub(crate) fn descending_id(cart_id: CartId) -> Key {
    Builder::new(16).descending_uuid(cart_id.as_bytes()).done()
}

/// The value of an abandoned cart in the activity index: its creation time, the column of its key that the index key lacks.
pub(crate) fn created_at(at: Timestamp) -> Vec<u8> {
    Builder::new(8).ascending(at.as_millis()).done()
}

/// The creation time in the value of an index row; `None` in a row of format 1.
pub(crate) fn read_created_at(value: &[u8]) -> Result<Option<Timestamp>, Damaged> {
    if value.is_empty() {
        return Ok(None);
    }
    let at = value.try_into().map_err(|_| Damaged("cart activity value"))?;
    Ok(Some(Timestamp::from_millis(unflip(u64::from_be_bytes(at)))))
}

pub(crate) fn cart_changes(owner: &Owner) -> Key {
    of_owner(owner, 0).done()
}

pub(crate) fn cart_change(owner: &Owner, change: &CartChange) -> Key {
    of_owner(owner, 33 + change.product_id.as_str().len())
        .descending(change.at.as_millis())
        .descending(change.version.cast_signed())
        .text(change.product_id.as_str())
        .uuid(change.cart_id.as_bytes())
        .done()
}

/// The owner of a line change.
pub(crate) fn read_change_owner(key: &[u8]) -> Result<Owner, Damaged> {
    let damaged = || Damaged("cart change key");
    let (kind, rest) = key.split_first().ok_or_else(damaged)?;
    let end = rest.iter().position(|byte| *byte == 0).ok_or_else(damaged)?;
    rest.get(..end).and_then(|id| read_owner(*kind, id)).ok_or_else(damaged)
}

/// Whether bytes can be the clustering columns of a line change: time, version, product and cart.
pub(crate) fn is_change_position(tail: &[u8]) -> bool {
    let product = tail
        .get(16..)
        .and_then(|rest| rest.split_last_chunk::<16>())
        .and_then(|(id, _)| id.strip_suffix(&[0]));
    product.is_some_and(|id| is_id(id, ProductId::parse))
}

/// Whether bytes can be the clustering columns of a user's session: time and session.
pub(crate) fn is_session_position(tail: &[u8]) -> bool {
    tail.get(8..).is_some_and(|id| is_id(id, SessionId::parse))
}

/// Whether bytes can be the clustering columns of a category: price and product.
pub(crate) fn is_category_position(tail: &[u8]) -> bool {
    tail.get(8..).is_some_and(|id| is_id(id, ProductId::parse))
}

fn is_id<T, E>(bytes: &[u8], parse: impl FnOnce(&str) -> Result<T, E>) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| parse(text).is_ok())
}

/// Which half of the activity index a cart is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    Abandoned = 0,
    Active = 1,
}

/// A cart by the hour of its last change, so that idle carts are found without reading the busy ones.
pub(crate) fn activity(half: Activity, cart: &Cart) -> Key {
    Builder::new(28 + cart.owner.id().len())
        .byte(half as u8)
        .ascending(cart.updated_at.hour())
        .byte(owner_kind(&cart.owner))
        .text(cart.owner.id())
        .uuid(cart.cart_id.as_bytes())
        .done()
}

/// The first key of a half after all carts changed in `hour` or earlier.
pub(crate) fn activity_after_hour(half: Activity, hour: i64) -> Key {
    Builder::new(9).byte(half as u8).ascending(hour.saturating_add(1)).done()
}

/// The columns of an activity key: half, hour, owner, cart.
pub(crate) fn read_activity(key: &[u8]) -> Result<(Activity, i64, Owner, CartId), Damaged> {
    let damaged = || Damaged("cart activity key");
    let (half, rest) = key.split_first().ok_or_else(damaged)?;
    let half = if *half == 0 { Activity::Abandoned } else { Activity::Active };
    let (hour, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    let (kind, rest) = rest.split_first().ok_or_else(damaged)?;
    let (rest, cart_id) = rest.split_last_chunk::<16>().ok_or_else(damaged)?;
    let owner = rest.strip_suffix(&[0]).and_then(|id| read_owner(*kind, id)).ok_or_else(damaged)?;
    Ok((half, unflip(u64::from_be_bytes(*hour)), owner, CartId::from_bytes(*cart_id)))
}

pub(crate) fn session(session_id: &SessionId) -> Key {
    session_id.as_str().as_bytes().to_vec()
}

pub(crate) fn user_sessions(user_id: &UserId) -> Key {
    Builder::new(129).text(user_id.as_str()).done()
}

pub(crate) fn user_session(user_id: &UserId, created_at: Timestamp, session_id: &SessionId) -> Key {
    Builder::new(64).text(user_id.as_str()).descending(created_at.as_millis()).last_text(session_id.as_str())
}

pub(crate) fn product(product_id: &ProductId) -> Key {
    product_id.as_str().as_bytes().to_vec()
}

pub(crate) fn category(category: &Category) -> Key {
    Builder::new(64).text(category.as_str()).done()
}

/// The first key of the products in a category that cost `price` or more.
pub(crate) fn category_from(category: &Category, price: Money) -> Key {
    Builder::new(64).text(category.as_str()).ascending(price.as_minor()).done()
}

pub(crate) fn in_category(category: &Category, price: Money, product_id: &ProductId) -> Key {
    Builder::new(96).text(category.as_str()).ascending(price.as_minor()).last_text(product_id.as_str())
}

/// The category of a row of the category index.
pub(crate) fn read_category(key: &[u8]) -> Result<Category, Damaged> {
    let damaged = || Damaged("category key");
    let end = key.iter().position(|byte| *byte == 0).ok_or_else(damaged)?;
    let text = key.get(..end).and_then(|text| std::str::from_utf8(text).ok()).ok_or_else(damaged)?;
    Category::parse(text).map_err(|_| damaged())
}

pub(crate) fn zones(product_id: &ProductId) -> Key {
    Builder::new(64).text(product_id.as_str()).done()
}

pub(crate) fn stock(product_id: &ProductId, geo_zone: &GeoZone) -> Key {
    Builder::new(64).text(product_id.as_str()).last_text(geo_zone.as_str())
}

/// Writes the key of a stock row into a buffer that is used again for many keys.
pub(crate) fn write_stock(key: &mut Key, product_id: &[u8], geo_zone: &GeoZone) {
    key.clear();
    key.extend_from_slice(product_id);
    key.push(0);
    key.extend_from_slice(geo_zone.as_str().as_bytes());
}

/// Product and zone of a stock row.
pub(crate) fn read_stock(key: &[u8]) -> Result<(ProductId, GeoZone), Damaged> {
    let damaged = || Damaged("stock key");
    let text = std::str::from_utf8(key).map_err(|_| damaged())?;
    let (product_id, zone) = text.split_once('\0').ok_or_else(damaged)?;
    Ok((ProductId::parse(product_id).map_err(|_| damaged())?, GeoZone::parse(zone).map_err(|_| damaged())?))
}

pub(crate) fn ledger(product_id: &ProductId, geo_zone: &GeoZone) -> Key {
    Builder::new(64).text(product_id.as_str()).text(geo_zone.as_str()).done()
}

pub(crate) fn movement(
    product_id: &ProductId,
    geo_zone: &GeoZone,
    at: Timestamp,
    op: &Uuid,
    cause: Cause,
) -> Key {
    Builder::new(96)
        .text(product_id.as_str())
        .text(geo_zone.as_str())
        .ascending(at.as_millis())
        .uuid(op.as_bytes())
        .byte(cause as u8)
        .done()
}

/// The sum of the compacted movements, before all other rows of its ledger.
pub(crate) fn ledger_sum(product_id: &ProductId, geo_zone: &GeoZone) -> Key {
    movement(product_id, geo_zone, Timestamp::from_millis(i64::MIN), &Uuid::nil(), Cause::Set)
}

/// Bytes of a movement's time, operation and cause.
const MOVEMENT_LEN: usize = TIME_ID_LEN + 1;

/// The columns of a movement: the prefix of its ledger, time and operation.
pub(crate) fn read_movement(key: &[u8]) -> Result<(&[u8], Timestamp, Uuid), Damaged> {
    let damaged = || Damaged("ledger key");
    let (ledger, columns) = key.split_last_chunk::<MOVEMENT_LEN>().ok_or_else(damaged)?;
    let (at, rest) = columns.split_first_chunk::<8>().ok_or_else(damaged)?;
    let op = rest.first_chunk::<16>().ok_or_else(damaged)?;
    Ok((ledger, Timestamp::from_millis(unflip(u64::from_be_bytes(*at))), Uuid::from_bytes(*op)))
}

/// The key of the stock level that a movement belongs to.
pub(crate) fn ledger_stock(key: &[u8]) -> Result<Key, Damaged> {
    let (ledger, ..) = read_movement(key)?;
    let stock_key = ledger.strip_suffix(&[0]).ok_or(Damaged("ledger key"))?;
    read_stock(stock_key)?;
    Ok(stock_key.to_vec())
}

pub(crate) fn reservation(id: ReservationId) -> Key {
    id.as_bytes().to_vec()
}

/// The timer of a hold or of an unpaid order.
pub(crate) fn timer(at: Timestamp, id: &[u8; 16]) -> Key {
    Builder::new(TIME_ID_LEN).ascending(at.as_millis()).uuid(id).done()
}

/// The first key of the timers that fire at `at` or later.
pub(crate) fn timer_from(at: Timestamp) -> Key {
    Builder::new(8).ascending(at.as_millis()).done()
}

/// Moment and id of a timer.
pub(crate) fn read_timer(key: &[u8]) -> Result<(Timestamp, [u8; 16]), Damaged> {
    let damaged = || Damaged("timer key");
    let (at, id) = key.split_first_chunk::<8>().ok_or_else(damaged)?;
    let id = id.try_into().map_err(|_| damaged())?;
    Ok((Timestamp::from_millis(unflip(u64::from_be_bytes(*at))), id))
}

pub(crate) fn order(order_id: OrderId) -> Key {
    order_id.as_bytes().to_vec()
}

/// One of the lists of orders: of a user, of a zone, or all.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OrderList<'a> {
    User(&'a UserId),
    Zone(&'a GeoZone),
    All,
}

impl OrderList<'_> {
    pub(crate) fn prefix(&self) -> Key {
        match self {
            Self::User(id) => Builder::new(64).text(id.as_str()).done(),
            Self::Zone(zone) => Builder::new(64).text(zone.as_str()).done(),
            Self::All => Vec::new(),
        }
    }

    pub(crate) fn key(&self, created_at: Timestamp, order_id: OrderId) -> Key {
        Builder(self.prefix()).descending(created_at.as_millis()).descending_uuid(order_id.as_bytes()).done()
    }

    /// Sorts before every order created before `end`, and after every order created at `end` or later.
    pub(crate) fn before(&self, end: Timestamp) -> Key {
        Builder(self.prefix()).descending(end.as_millis().saturating_sub(1)).done()
    }

    /// Sorts after every order created at `start` or later.
    pub(crate) fn until(&self, start: Timestamp) -> Option<Key> {
        let below = start.as_millis().checked_sub(1)?;
        Some(Builder(self.prefix()).descending(below).done())
    }
}

/// The clustering columns of an order list: creation time and id.
pub(crate) fn read_order(key: &[u8]) -> Result<(Timestamp, OrderId), Damaged> {
    let damaged = || Damaged("order list key");
    let (_, tail) = key.split_last_chunk::<TIME_ID_LEN>().ok_or_else(damaged)?;
    let (at, id) = tail.split_first_chunk::<8>().ok_or_else(damaged)?;
    let mut uuid: [u8; 16] = id.try_into().map_err(|_| damaged())?;
    for byte in &mut uuid {
        *byte = !*byte;
    }
    let at = unflip(!u64::from_be_bytes(*at));
    Ok((Timestamp::from_millis(at), OrderId::from_bytes(uuid)))
}

pub(crate) fn sales_of_day(date: Date) -> Key {
    Builder::new(8).ascending(i64::from(date.as_days())).done()
}

pub(crate) fn sales(date: Date, geo_zone: &GeoZone) -> Key {
    Builder::new(64).ascending(i64::from(date.as_days())).last_text(geo_zone.as_str())
}

pub(crate) fn read_sales(key: &[u8]) -> Result<(Date, GeoZone), Damaged> {
    let damaged = || Damaged("sales key");
    let (days, zone) = key.split_first_chunk::<8>().ok_or_else(damaged)?;
    let days = i32::try_from(unflip(u64::from_be_bytes(*days))).map_err(|_| damaged())?;
    let zone = std::str::from_utf8(zone).map_err(|_| damaged())?;
    Ok((Date::from_days(days), GeoZone::parse(zone).map_err(|_| damaged())?))
}

pub(crate) fn sales_of_hour(hour: i64) -> Key {
    Builder::new(8).ascending(hour).done()
}

pub(crate) fn hourly_sales(hour: i64, geo_zone: &GeoZone) -> Key {
    Builder::new(64).ascending(hour).last_text(geo_zone.as_str())
}

pub(crate) fn read_hourly_sales(key: &[u8]) -> Result<(i64, GeoZone), Damaged> {
    let damaged = || Damaged("hourly sales key");
    let (hour, zone) = key.split_first_chunk::<8>().ok_or_else(damaged)?;
    let zone = std::str::from_utf8(zone).map_err(|_| damaged())?;
    Ok((unflip(u64::from_be_bytes(*hour)), GeoZone::parse(zone).map_err(|_| damaged())?))
}

/// The first key after all keys with `prefix`; `None` where every later key has it.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Key> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix.get(..=last)?.to_vec();
    if let Some(byte) = end.last_mut() {
        *byte += 1;
    }
    Some(end)
}

/// The first key after `key`.
pub(crate) fn just_after(mut key: Key) -> Key {
    key.push(0);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order_key(ms: i64, id: u128) -> Key {
        OrderList::All.key(Timestamp::from_millis(ms), OrderId::new(Uuid::from_u128(id)))
    }

    #[test]
    fn newer_orders_come_first_and_then_higher_ids() {
        let keys = [order_key(5, 1), order_key(4, 9), order_key(4, 8), order_key(-1, 0)];
        assert!(keys.is_sorted());
        assert_eq!(read_order(&keys[1]).unwrap().0, Timestamp::from_millis(4));
        assert_eq!(read_order(&keys[1]).unwrap().1, OrderId::new(Uuid::from_u128(9)));
    }

    #[test]
    fn a_period_bounds_a_list_to_its_orders() {
        let at = Timestamp::from_millis;
        let (before, until) = (OrderList::All.before(at(10)), OrderList::All.until(at(5)).unwrap());
        let inside = |ms| (&before..&until).contains(&&order_key(ms, u128::MAX / 3));
        assert!(inside(9) && inside(5));
        assert!(!inside(10) && !inside(4));
    }

    #[test]
    fn one_owner_is_never_the_prefix_of_another() {
        let owner = |name| Owner::User(UserId::parse(name).unwrap());
        assert!(!closed_carts(&owner("ab")).starts_with(&closed_carts(&owner("a"))));
        assert_ne!(closed_carts(&owner("a")), closed_carts(&Owner::Session(SessionId::parse("a").unwrap())));
    }

    #[test]
    fn keys_read_back() {
        let (product_id, zone) = (ProductId::parse("p").unwrap(), GeoZone::parse("z").unwrap());
        assert_eq!(read_stock(&stock(&product_id, &zone)).unwrap(), (product_id, zone.clone()));
        let day = Date::from_days(-3);
        assert_eq!(read_sales(&sales(day, &zone)).unwrap(), (day, zone));
        let at = Timestamp::from_millis(-7);
        assert_eq!(read_timer(&timer(at, &[9; 16])).unwrap(), (at, [9; 16]));
        let owner = Owner::Session(SessionId::parse("s").unwrap());
        let opened_at = Timestamp::from_millis(5 * 3_600_000);
        let cart = Cart::open(CartId::new(Uuid::from_u128(7)), owner.clone(), opened_at, 0);
        let read = read_activity(&activity(Activity::Active, &cart)).unwrap();
        assert_eq!(read, (Activity::Active, 5, owner, cart.cart_id));
    }

    #[test]
    fn the_end_of_a_prefix_is_past_all_its_keys() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(&[1, 255]), Some(vec![2]));
        assert_eq!(after_prefix(&[255, 255]), None);
        assert_eq!(after_prefix(b""), None);
    }
}
