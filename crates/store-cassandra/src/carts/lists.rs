//! Lists of carts: an owner's, the history of their lines, and the idle ones of everybody.

use std::cmp::Reverse;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use mw_domain::limits::CART_HISTORY_DAYS;
use mw_domain::{Cart, CartChange, CartId, CartStatus, Date, Owner, ProductId, SessionId, Timestamp, UserId};
use mw_store::{Page, PageRequest, Position, Refusal, Result, StoreError};
use scylla::response::PagingState;
use scylla::value::{CqlDate, CqlTimestamp};
use uuid::Uuid;

use super::rows::{CartRow, Gathering, Place, owner_kind, place, read_owner, status_name, status_named};
use super::{cql_date, date_of_cql, day_shard};
use crate::CassandraStore;
use crate::time::{from_cql, to_cql};

/// Pages of rows read for one page of a list; after that the list goes on with the next request.
const PAGES_MAX: usize = 16;
/// Owners looked at for one page of idle carts.
const OWNERS_MAX: usize = 1_000;
/// Owners whose carts are read at the same time.
const READS: usize = 16;
/// Before every cart in the order of the list, and after every one.
const NEWEST: Place = (Timestamp::from_millis(i64::MAX), CartId::new(Uuid::max()));
const OLDEST: Place = (Timestamp::from_millis(i64::MIN), CartId::new(Uuid::nil()));

pub(super) type ChangeRow = (CqlTimestamp, i64, String, Vec<u8>, Option<i32>);

/// A line change from its columns.
pub(super) fn read_change((at, version, product_id, cart_id, quantity): ChangeRow) -> Result<CartChange> {
    let damaged = || StoreError::Corrupt(format!("a line change of cart {cart_id:?}"));
    Ok(CartChange {
        at: from_cql(at),
        cart_id: CartId::new(Uuid::from_slice(&cart_id).map_err(|_| damaged())?),
        version: u64::try_from(version).map_err(|_| damaged())?,
        product_id: ProductId::parse(&product_id).map_err(|_| damaged())?,
        quantity: quantity.and_then(|quantity| u32::try_from(quantity).ok()).ok_or_else(damaged)?,
    })
}

/// Carts of an owner that follow a place, as far as they were read, and where to go on.
struct Walked {
    carts: Vec<Cart>,
    next: Option<Place>,
}

impl CassandraStore {
    /// Reads carts until there are more than `limit` that `is_shown`.
    async fn walk_carts(
        &self,
        owner: &Owner,
        after: Place,
        limit: usize,
        is_shown: impl Fn(&Cart) -> bool + Send + Sync,
    ) -> Result<Walked> {
        let (created_at, cart_id) = after;
        let key = (owner_kind(owner), owner.id(), to_cql(created_at), &cart_id.as_bytes()[..]);
        let (mut carts, mut seen) = (Vec::new(), after);
        let mut gathering = Gathering::default();
        let mut from = PagingState::start();
        for _ in 0..PAGES_MAX {
            let (rows, next) = self.cql.page::<CartRow>(&self.carts.list, &key, from).await?;
            for row in &rows {
                let Some(stored) = gathering.take(owner, row)? else { continue };
                seen = place(&stored.cart);
                if is_shown(&stored.cart) {
                    carts.push(stored.cart);
                }
                if carts.len() > limit {
                    carts.truncate(limit);
                    let next = carts.last().map(place);
                    return Ok(Walked { carts, next });
                }
            }
            let Some(next) = next else {
                carts.extend(gathering.end().map(|stored| stored.cart).filter(is_shown));
                let is_more = carts.len() > limit;
                carts.truncate(limit);
                let next = carts.last().filter(|_| is_more).map(place);
                return Ok(Walked { carts, next });
            };
            from = next;
        }
        Ok(Walked { carts, next: Some(seen) })
    }

    pub(super) async fn list_carts(
        &self,
        owner: &Owner,
        now: Timestamp,
        request: &PageRequest,
    ) -> Result<Page<Cart>> {
        let after = request.after.as_ref().map_or(Ok(NEWEST), read_place)?;
        let walked = self.walk_carts(owner, after, request.limit, |cart| !cart.is_expired(now)).await?;
        Ok(Page { items: walked.carts, next: walked.next.map(|at| Position(write_place(at))) })
    }

    pub(super) async fn list_changes(
        &self,
        owner: &Owner,
        now: Timestamp,
        request: &PageRequest,
    ) -> Result<Page<CartChange>> {
        let after = request.after.as_ref().map(read_change_place).transpose()?;
        let newest = after.as_ref().map_or(NEWEST.0, |(at, ..)| *at);
        let oldest = now.minus_seconds(CART_HISTORY_DAYS * 86_400);
        let after = after.map(rank);
        let key = (owner_kind(owner), owner.id(), to_cql(newest), to_cql(oldest));
        let mut items: Vec<CartChange> = Vec::new();
        let mut from = PagingState::start();
        loop {
            let (rows, next) = self.cql.page::<ChangeRow>(&self.carts.changes, &key, from).await?;
            for row in rows {
                let change = read_change(row)?;
                // Those of the same instant that the pages before have shown.
                if after.as_ref().is_some_and(|after| rank(place_of_change(&change)) <= *after) {
                    continue;
                }
                items.push(change);
                if items.len() > request.limit {
                    items.truncate(request.limit);
                    let next = items.last().map(|last| Position(write_change_place(last)));
                    return Ok(Page { items, next });
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(Page { items, next: None }),
            }
        }
    }

    /// Days and their shards are walked in their order, the owners of each in theirs; what an owner has is read and
    /// shown under the day of its own last change.
    pub(super) async fn list_idle(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        request: &PageRequest,
    ) -> Result<Page<Cart>> {
        let after = request.after.as_ref().map(IdlePlace::read).transpose()?;
        let mut walk =
            IdleWalk { idle_since, now, limit: request.limit, looks_left: OWNERS_MAX, items: Vec::new() };
        for (day, shard) in self.days().await? {
            let begin = match &after {
                Some(after) if (day, shard) < (after.day, after.shard()) => continue,
                Some(after) if (day, shard) == (after.day, after.shard()) => Some(after),
                _ => None,
            };
            if let Some(next) = self.walk_day(&mut walk, day, shard, begin).await? {
                return Ok(Page { items: walk.items, next: Some(Position(next.write())) });
            }
        }
        Ok(Page { items: walk.items, next: None })
    }

    /// The days that have any owner, with their shards, in order.
    async fn days(&self) -> Result<Vec<(Date, i32)>> {
        let mut days = Vec::new();
        let mut from = PagingState::start();
        loop {
            let (rows, next) = self.cql.page::<(CqlDate, i32)>(&self.carts.days, (), from).await?;
            days.extend(rows.into_iter().map(|(day, shard)| (date_of_cql(day), shard)));
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        days.sort_unstable();
        Ok(days)
    }

    /// Looks at the owners of one day and shard; answers where to go on if the page ends here.
    async fn walk_day(
        &self,
        walk: &mut IdleWalk,
        day: Date,
        shard: i32,
        begin: Option<&IdlePlace>,
    ) -> Result<Option<IdlePlace>> {
        // On days after the asked instant only abandoned carts count.
        let last = if day <= walk.idle_since.date() { CartStatus::Active } else { CartStatus::Abandoned };
        let first = begin.map_or(("", "", ""), |begin| {
            (status_name(begin.status), owner_kind(&begin.owner), begin.owner.id())
        });
        let key = (cql_date(day), shard, first.0, first.1, first.2, status_name(last));
        let mut from = PagingState::start();
        loop {
            let (rows, next) =
                self.cql.page::<(String, String, String)>(&self.carts.owners, &key, from).await?;
            let mut places = Vec::with_capacity(rows.len());
            for (status, kind, id) in rows {
                let status = status_named(&status)
                    .ok_or_else(|| StoreError::Corrupt(format!("a status of carts: {status}")))?;
                let owner = read_owner(&kind, &id)?;
                let cart = match begin {
                    Some(begin) if begin.status == status && begin.owner == owner => begin.cart,
                    _ => NEWEST,
                };
                places.push(IdlePlace { day, status, owner, cart });
            }
            let (idle_since, now, limit) = (walk.idle_since, walk.now, walk.limit);
            let reads = places.into_iter().map(|at| async move {
                let is_shown = |cart: &Cart| at.shows(cart, idle_since, now);
                let walked = self.walk_carts(&at.owner, at.cart, limit, is_shown).await?;
                Ok::<_, StoreError>((at, walked))
            });
            let mut reads = stream::iter(reads).buffered(READS);
            while let Some((at, walked)) = reads.try_next().await? {
                if let Some(next) = walk.take(at, walked) {
                    return Ok(Some(next));
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(None),
            }
        }
    }
}

/// A page of idle carts as it grows.
struct IdleWalk {
    idle_since: Timestamp,
    now: Timestamp,
    limit: usize,
    looks_left: usize,
    items: Vec<Cart>,
}

impl IdleWalk {
    /// Takes what was found of an owner; answers where the page ends, if it does.
    fn take(&mut self, at: IdlePlace, walked: Walked) -> Option<IdlePlace> {
        let mut last = at.cart;
        for cart in walked.carts {
            if self.items.len() == self.limit {
                return Some(IdlePlace { cart: last, ..at });
            }
            last = place(&cart);
            self.items.push(cart);
        }
        if let Some(next) = walked.next {
            return Some(IdlePlace { cart: next, ..at });
        }
        self.looks_left -= 1;
        (self.looks_left == 0).then_some(IdlePlace { cart: OLDEST, ..at })
    }
}

/// Where a page of idle carts ends: at a cart of an owner, on a day.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IdlePlace {
    day: Date,
    status: CartStatus,
    owner: Owner,
    cart: Place,
}

impl IdlePlace {
    fn shard(&self) -> i32 {
        day_shard(&self.owner)
    }

    /// Whether a cart belongs here and is idle.
    fn shows(&self, cart: &Cart, idle_since: Timestamp, now: Timestamp) -> bool {
        cart.status == self.status
            && cart.updated_at.date() == self.day
            && !cart.is_expired(now)
            && match cart.status {
                CartStatus::Active => cart.updated_at <= idle_since,
                CartStatus::Abandoned => cart.merged_into.is_none(),
                CartStatus::Ordered => false,
            }
    }

    fn write(&self) -> Vec<u8> {
        let status = u8::from(self.status == CartStatus::Active);
        let kind = u8::from(matches!(self.owner, Owner::User(_)));
        let day = self.day.as_days().to_be_bytes();
        [&day[..], &[status, kind], &write_place(self.cart), self.owner.id().as_bytes()].concat()
    }

    fn read(Position(bytes): &Position) -> Result<Self> {
        Self::parse(bytes).ok_or_else(|| Refusal::InvalidCursor.into())
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (day, rest) = bytes.split_first_chunk()?;
        let ([status, kind], rest) = rest.split_first_chunk()?;
        let (cart, id) = parse_place(rest)?;
        let id = std::str::from_utf8(id).ok()?;
        let status = match status {
            0 => CartStatus::Abandoned,
            1 => CartStatus::Active,
            _ => return None,
        };
        let owner = match kind {
            0 => Owner::Session(SessionId::parse(id).ok()?),
            1 => Owner::User(UserId::parse(id).ok()?),
            _ => return None,
        };
        Some(Self { day: Date::from_days(i32::from_be_bytes(*day)), status, owner, cart })
    }
}

fn write_place((created_at, cart_id): Place) -> Vec<u8> {
    [&created_at.as_millis().to_be_bytes()[..], cart_id.as_bytes()].concat()
}

/// A cart's place, and the bytes that follow it.
fn parse_place(bytes: &[u8]) -> Option<(Place, &[u8])> {
    let (created_at, rest) = bytes.split_first_chunk()?;
    let (cart_id, rest) = rest.split_first_chunk()?;
    Some(((Timestamp::from_millis(i64::from_be_bytes(*created_at)), CartId::from_bytes(*cart_id)), rest))
}

fn read_place(Position(bytes): &Position) -> Result<Place> {
    match parse_place(bytes) {
        Some((at, [])) => Ok(at),
        _ => Err(Refusal::InvalidCursor.into()),
    }
}

type ChangePlace = (Timestamp, u64, ProductId, CartId);

fn place_of_change(change: &CartChange) -> ChangePlace {
    (change.at, change.version, change.product_id.clone(), change.cart_id)
}

/// The order of the history: newest first, but the products of one change by their ids.
fn rank((at, version, product_id, cart_id): ChangePlace) -> impl Ord {
    (Reverse(at), Reverse(version), product_id, cart_id)
}

fn write_change_place(change: &CartChange) -> Vec<u8> {
    let at = change.at.as_millis().to_be_bytes();
    let version = change.version.to_be_bytes();
    [&at[..], &version, change.cart_id.as_bytes(), change.product_id.as_str().as_bytes()].concat()
}

fn read_change_place(Position(bytes): &Position) -> Result<ChangePlace> {
    let parse = || {
        let (at, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (cart_id, product_id) = rest.split_first_chunk()?;
        let product_id = ProductId::parse(std::str::from_utf8(product_id).ok()?).ok()?;
        let at = Timestamp::from_millis(i64::from_be_bytes(*at));
        Some((at, u64::from_be_bytes(*version), product_id, CartId::from_bytes(*cart_id)))
    };
    parse().ok_or_else(|| Refusal::InvalidCursor.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_of_idle_carts_reads_back() {
        for (owner, status) in [
            (Owner::User(UserId::parse("u").unwrap()), CartStatus::Active),
            (Owner::Session(SessionId::parse("long-id.1").unwrap()), CartStatus::Abandoned),
        ] {
            for cart in [NEWEST, OLDEST] {
                let place = IdlePlace { day: Date::from_days(20_522), status, owner: owner.clone(), cart };
                let bytes = place.write();
                assert_eq!(IdlePlace::parse(&bytes), Some(place));
                assert_eq!(IdlePlace::parse(&bytes[..30]), None);
            }
        }
    }
}
