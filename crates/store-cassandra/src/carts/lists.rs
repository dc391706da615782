//! Lists of carts: the carts of one owner, the history of their lines, and the idle carts of all owners.
//!
//! A page has a bound on what it reads, so that it may come back short or empty with a cursor to go on from.

use std::cmp::Reverse;
use std::collections::HashSet;

use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use mw_domain::limits::CART_HISTORY_DAYS;
use mw_domain::{Cart, CartChange, CartId, CartStatus, Date, Owner, ProductId, SessionId, Timestamp, UserId};
use mw_store::{Page, PageRequest, Position, Refusal, Result, StoreError};
use scylla::response::PagingState;
use scylla::value::{CqlDate, CqlTimestamp};
use uuid::Uuid;

use super::closed::{start_of, unwritten};
use super::rows::{CartKey, CartPartition, cart_key, owner_kind, parse_owner};
use super::{cql_date, day_shard, from_cql_date};
use crate::CassandraStore;
use crate::driver::time::{from_cql, to_cql};

/// CQL pages read for one page of a list.
const PAGES_MAX: usize = 16;
/// Owners read for one page of idle carts.
const OWNERS_MAX: usize = 1_000;
/// Owners whose carts, and partitions of the index that, are read at the same time.
const CONCURRENT_READS: usize = 16;
/// Keys before and after every cart. Lists are in descending order of the key.
const NEWEST: CartKey = (Timestamp::from_millis(i64::MAX), CartId::new(Uuid::max()));
const OLDEST: CartKey = (Timestamp::from_millis(i64::MIN), CartId::new(Uuid::nil()));

pub(super) type ChangeRow = (CqlTimestamp, i64, String, Vec<u8>, Option<i32>);

pub(super) fn read_change((at, version, product_id, cart_id, quantity): ChangeRow) -> Result<CartChange> {
    let corrupt = || StoreError::Corrupt(format!("cannot read a change of {product_id} in cart_changes"));
    Ok(CartChange {
        at: from_cql(at),
        cart_id: CartId::new(Uuid::from_slice(&cart_id).map_err(|_| corrupt())?),
        version: u64::try_from(version).map_err(|_| corrupt())?,
        product_id: ProductId::parse(&product_id).map_err(|_| corrupt())?,
        quantity: quantity.and_then(|quantity| u32::try_from(quantity).ok()).ok_or_else(corrupt)?,
    })
}

/// A part of an owner's carts, and the key to go on after; `None` at the end.
struct CartPage {
    carts: Vec<Cart>,
    next: Option<CartKey>,
}

impl CassandraStore {
    /// Reads an owner's carts after a key until there are more than `limit` that are `wanted`.
    async fn read_carts_after(
        &self,
        owner: &Owner,
        after: CartKey,
        limit: usize,
        wanted: impl Fn(&Cart) -> bool + Send + Sync,
    ) -> Result<CartPage> {
        // The header first: a cart that is closed, or gets its row, in between is then in both, and not in neither.
        let partition = self.settled_partition(owner).await?;
        let header = &partition.view.header;
        // The header overrides the rows.
        let known: HashSet<CartKey> =
            header.outbox.iter().map(|row| row.cart).chain(partition.open.iter().map(cart_key)).collect();
        let wanted_row = |cart: &Cart| !known.contains(&cart_key(cart)) && wanted(cart);
        let mut page = self.read_closed_after(&partition, after, limit, &wanted_row).await?;
        let end = page.next;
        let is_within = |cart: &&Cart| cart_key(cart) < after && end.is_none_or(|end| cart_key(cart) > end);
        let of_header = partition.open.iter().chain(unwritten(header)).filter(is_within);
        page.carts.extend(of_header.filter(|cart| wanted(cart)).cloned());
        page.carts.sort_unstable_by_key(|cart| Reverse(cart_key(cart)));
        let page = truncated(page.carts, limit);
        Ok(CartPage { next: page.next.or(end), ..page })
    }

    /// Reads an owner's closed carts after a key until there are more than `limit` that are `wanted`.
    async fn read_closed_after(
        &self,
        partition: &CartPartition,
        after: CartKey,
        limit: usize,
        wanted: &(impl Fn(&Cart) -> bool + Send + Sync),
    ) -> Result<CartPage> {
        let (mut carts, mut last_read) = (Vec::new(), after);
        let buckets = partition.view.header.closed_buckets.iter().map(|known| known.bucket);
        let mut buckets = buckets.skip_while(|bucket| start_of(*bucket) > after.0);
        let mut next_read = buckets.next().map(|bucket| (bucket, PagingState::start()));
        for _ in 0..PAGES_MAX {
            let Some((bucket, from)) = next_read else { return Ok(truncated(carts, limit)) };
            let (closed, next) = self.closed_page(&partition.owner, bucket, after, from).await?;
            for cart in closed {
                last_read = cart_key(&cart);
                if wanted(&cart) {
                    carts.push(cart);
                }
                if carts.len() > limit {
                    return Ok(truncated(carts, limit));
                }
            }
            next_read = if let Some(next) = next {
                Some((bucket, next))
            } else {
                last_read = (start_of(bucket), OLDEST.1);
                buckets.next().map(|bucket| (bucket, PagingState::start()))
            };
        }
        Ok(CartPage { carts, next: next_read.map(|_| last_read) })
    }

    pub(super) async fn list_carts(
        &self,
        owner: &Owner,
        now: Timestamp,
        request: &PageRequest,
    ) -> Result<Page<Cart>> {
        let after = request.after.as_ref().map_or(Ok(NEWEST), read_cart_cursor)?;
        let page = self.read_carts_after(owner, after, request.limit, |cart| !cart.is_expired(now)).await?;
        Ok(Page { items: page.carts, next: page.next.map(|key| Position(encode_cart_key(key))) })
    }

    pub(super) async fn list_changes(
        &self,
        owner: &Owner,
        now: Timestamp,
        request: &PageRequest,
    ) -> Result<Page<CartChange>> {
        let after = request.after.as_ref().map(read_change_cursor).transpose()?;
        let newest = after.as_ref().map_or(NEWEST.0, |(at, ..)| *at);
        let oldest = now.minus_seconds(CART_HISTORY_DAYS * 86_400);
        let after = after.map(history_order);
        let key = (owner_kind(owner), owner.id(), to_cql(newest), to_cql(oldest));
        let mut items: Vec<CartChange> = Vec::new();
        let mut from = PagingState::start();
        loop {
            let (rows, next) = self.cql.page::<ChangeRow>(&self.carts.read_changes, &key, from).await?;
            for row in rows {
                let change = read_change(row)?;
                // The query selects by the instant only: earlier pages have returned some changes of the first one.
                if after.as_ref().is_some_and(|after| history_order(change_cursor(&change)) <= *after) {
                    continue;
                }
                items.push(change);
                if items.len() > request.limit {
                    items.truncate(request.limit);
                    let next = items.last().map(|last| Position(encode_change_cursor(last)));
                    return Ok(Page { items, next });
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(Page { items, next: None }),
            }
        }
    }

    /// Reads the index `carts_by_day` in the order of days, shards and owners, and the carts of every owner found
    /// there. A cart is listed under the day of its last change only.
    pub(super) async fn list_idle(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        request: &PageRequest,
    ) -> Result<Page<Cart>> {
        let after = request.after.as_ref().map(IdleCursor::read).transpose()?;
        let mut page = IdlePage {
            idle_since,
            now,
            limit: request.limit,
            owners_remaining: OWNERS_MAX,
            items: Vec::new(),
        };
        let mut partitions = self.days().await?;
        if let Some(after) = &after {
            partitions.retain(|partition| *partition >= (after.day, after.shard()));
        }
        for partitions in partitions.chunks(CONCURRENT_READS) {
            if let Some(next) = self.read_idle_partitions(&mut page, partitions, after.as_ref()).await? {
                return Ok(Page { items: page.items, next: Some(Position(next.encode())) });
            }
        }
        Ok(Page { items: page.items, next: None })
    }

    /// The partitions of `carts_by_day`, in order.
    async fn days(&self) -> Result<Vec<(Date, i32)>> {
        let mut days = Vec::new();
        let mut from = PagingState::start();
        loop {
            let (rows, next) = self.cql.page::<(CqlDate, i32)>(&self.carts.read_days, (), from).await?;
            days.extend(rows.into_iter().map(|(day, shard)| (from_cql_date(day), shard)));
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        days.sort_unstable();
        Ok(days)
    }

    /// Adds the idle carts of some partitions of the index; returns the cursor if the page ends there. Most partitions have
    /// few owners, so the first CQL pages of all are read together.
    async fn read_idle_partitions(
        &self,
        page: &mut IdlePage,
        partitions: &[(Date, i32)],
        after: Option<&IdleCursor>,
    ) -> Result<Option<IdleCursor>> {
        let is_after = |(day, shard)| after.filter(|after| (after.day, after.shard()) == (day, shard));
        let (idle_since, start) = (page.idle_since, PagingState::start);
        let firsts = partitions
            .iter()
            .map(|partition| self.read_owners(*partition, is_after(*partition), idle_since, start()));
        let mut cursors = Vec::new();
        for (partition, (owners, mut next)) in partitions.iter().zip(try_join_all(firsts).await?) {
            cursors.extend(owners);
            while let Some(from) = next {
                if let Some(end) = self.read_idle_owners(page, std::mem::take(&mut cursors)).await? {
                    return Ok(Some(end));
                }
                (cursors, next) =
                    self.read_owners(*partition, is_after(*partition), idle_since, from).await?;
            }
        }
        self.read_idle_owners(page, cursors).await
    }

    /// A CQL page of the owners in a partition of the index, and where the next one begins.
    async fn read_owners(
        &self,
        (day, shard): (Date, i32),
        after: Option<&IdleCursor>,
        idle_since: Timestamp,
        from: PagingState,
    ) -> Result<(Vec<IdleCursor>, Option<PagingState>)> {
        // An active cart that changed after `idle_since` is not idle; an abandoned one is, whenever it was abandoned.
        let last = if day <= idle_since.date() { CartStatus::Active } else { CartStatus::Abandoned };
        let first = after.map_or(("", "", ""), |after| {
            (after.status.as_str(), owner_kind(&after.owner), after.owner.id())
        });
        let key = (cql_date(day), shard, first.0, first.1, first.2, last.as_str());
        let (rows, next) = self.cql.page::<IndexRow>(&self.carts.read_owners, &key, from).await?;
        let cursors = rows.into_iter().map(|row| IdleCursor::before_owner(day, row, after));
        Ok((cursors.collect::<Result<_>>()?, next))
    }

    /// Adds the idle carts of owners; returns the cursor if the page ends with one of them.
    async fn read_idle_owners(
        &self,
        page: &mut IdlePage,
        cursors: Vec<IdleCursor>,
    ) -> Result<Option<IdleCursor>> {
        let (idle_since, now, limit) = (page.idle_since, page.now, page.limit);
        let reads = cursors.into_iter().map(|cursor| async move {
            let wanted = |cart: &Cart| cursor.lists(cart, idle_since, now);
            let carts = self.read_carts_after(&cursor.owner, cursor.cart, limit, wanted).await?;
            Ok::<_, StoreError>((cursor, carts))
        });
        let mut reads = stream::iter(reads).buffered(CONCURRENT_READS);
        while let Some((cursor, carts)) = reads.try_next().await? {
            if let Some(next) = page.push_owner(cursor, carts) {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }
}

/// At most `limit` carts; there is a next page where more were read.
fn truncated(mut carts: Vec<Cart>, limit: usize) -> CartPage {
    let has_more = carts.len() > limit;
    carts.truncate(limit);
    let next = carts.last().filter(|_| has_more).map(cart_key);
    CartPage { carts, next }
}

/// A row of `carts_by_day`: status, and kind and id of the owner.
type IndexRow = (String, String, String);

/// A page of idle carts while it is read.
struct IdlePage {
    idle_since: Timestamp,
    now: Timestamp,
    limit: usize,
    owners_remaining: usize,
    items: Vec<Cart>,
}

impl IdlePage {
    /// Adds the carts of an owner; returns the cursor if the page ends with them.
    fn push_owner(&mut self, cursor: IdleCursor, read: CartPage) -> Option<IdleCursor> {
        let mut last = cursor.cart;
        for cart in read.carts {
            if self.items.len() == self.limit {
                return Some(IdleCursor { cart: last, ..cursor });
            }
            last = cart_key(&cart);
            self.items.push(cart);
        }
        if let Some(next) = read.next {
            return Some(IdleCursor { cart: next, ..cursor });
        }
        self.owners_remaining -= 1;
        (self.owners_remaining == 0).then_some(IdleCursor { cart: OLDEST, ..cursor })
    }
}

/// Where a page of idle carts ends: after a cart of an owner in the index of a day.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IdleCursor {
    day: Date,
    status: CartStatus,
    owner: Owner,
    cart: CartKey,
}

impl IdleCursor {
    /// The cursor before the first cart of an owner, or `after` where that page ended within this owner.
    fn before_owner(day: Date, (status, kind, id): IndexRow, after: Option<&Self>) -> Result<Self> {
        let status = CartStatus::parse(&status)
            .ok_or_else(|| StoreError::Corrupt(format!("cannot read a status in carts_by_day: {status}")))?;
        let owner = parse_owner(&kind, &id)?;
        let cart = match after {
            Some(after) if after.status == status && after.owner == owner => after.cart,
            _ => NEWEST,
        };
        Ok(Self { day, status, owner, cart })
    }

    fn shard(&self) -> i32 {
        day_shard(&self.owner)
    }

    /// Whether a cart of the owner is idle and listed under this day and status.
    fn lists(&self, cart: &Cart, idle_since: Timestamp, now: Timestamp) -> bool {
        cart.status == self.status
            && cart.updated_at.date() == self.day
            && !cart.is_expired(now)
            && cart.is_idle(idle_since)
    }

    fn encode(&self) -> Vec<u8> {
        let status = u8::from(self.status == CartStatus::Active);
        let kind = u8::from(matches!(self.owner, Owner::User(_)));
        let day = self.day.as_days().to_be_bytes();
        [&day[..], &[status, kind], &encode_cart_key(self.cart), self.owner.id().as_bytes()].concat()
    }

    fn read(Position(bytes): &Position) -> Result<Self> {
        Self::decode(bytes).ok_or_else(|| Refusal::InvalidCursor.into())
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (day, rest) = bytes.split_first_chunk()?;
        let ([status, kind], rest) = rest.split_first_chunk()?;
        let (cart, id) = decode_cart_key(rest)?;
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

fn encode_cart_key((created_at, cart_id): CartKey) -> Vec<u8> {
    [&created_at.as_millis().to_be_bytes()[..], cart_id.as_bytes()].concat()
}

/// A cart's key, and the bytes that follow it.
fn decode_cart_key(bytes: &[u8]) -> Option<(CartKey, &[u8])> {
    let (created_at, rest) = bytes.split_first_chunk()?;
    let (cart_id, rest) = rest.split_first_chunk()?;
    Some(((Timestamp::from_millis(i64::from_be_bytes(*created_at)), CartId::from_bytes(*cart_id)), rest))
}

fn read_cart_cursor(Position(bytes): &Position) -> Result<CartKey> {
    match decode_cart_key(bytes) {
        Some((key, [])) => Ok(key),
        _ => Err(Refusal::InvalidCursor.into()),
    }
}

/// Where a page of the history ends.
type ChangeCursor = (Timestamp, u64, ProductId, CartId);

fn change_cursor(change: &CartChange) -> ChangeCursor {
    (change.at, change.version, change.product_id.clone(), change.cart_id)
}

/// The order of the history: newest first, but the products of one change by their ids.
fn history_order((at, version, product_id, cart_id): ChangeCursor) -> impl Ord {
    (Reverse(at), Reverse(version), product_id, cart_id)
}

fn encode_change_cursor(change: &CartChange) -> Vec<u8> {
    let at = change.at.as_millis().to_be_bytes();
    let version = change.version.to_be_bytes();
    [&at[..], &version, change.cart_id.as_bytes(), change.product_id.as_str().as_bytes()].concat()
}

fn read_change_cursor(Position(bytes): &Position) -> Result<ChangeCursor> {
    let decode = || {
        let (at, rest) = bytes.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk()?;
        let (cart_id, product_id) = rest.split_first_chunk()?;
        let product_id = ProductId::parse(std::str::from_utf8(product_id).ok()?).ok()?;
        let at = Timestamp::from_millis(i64::from_be_bytes(*at));
        Some((at, u64::from_be_bytes(*version), product_id, CartId::from_bytes(*cart_id)))
    };
    decode().ok_or_else(|| Refusal::InvalidCursor.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_cursor_reads_back() {
        for (owner, status) in [
            (Owner::User(UserId::parse("u").unwrap()), CartStatus::Active),
            (Owner::Session(SessionId::parse("long-id.1").unwrap()), CartStatus::Abandoned),
        ] {
            for cart in [NEWEST, OLDEST] {
                let cursor = IdleCursor { day: Date::from_days(20_522), status, owner: owner.clone(), cart };
                let bytes = cursor.encode();
                assert_eq!(IdleCursor::decode(&bytes), Some(cursor));
                assert_eq!(IdleCursor::decode(&bytes[..30]), None);
            }
        }
    }
}
