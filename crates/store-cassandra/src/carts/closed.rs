//! Closed carts: rows in partitions of an owner and [`BUCKET_DAYS`], so that no partition grows with an owner's past carts.
//!
//! The LWT that closes a cart keeps it in the header's outbox, and the next decision writes its row before it replaces the header. So a
//! closed cart is in the header, or in a row, or in both at every instant, whichever process dies in between, and no process has to
//! finish anything. The header overrides the row. The write timestamp of a row is that of its decision, above those of all earlier decisions of
//! the owner: written again it changes nothing, and one that arrives late does not replace a later one. The header also says which partitions have rows; it
//! lives at least as long as they do.

use std::cmp::Reverse;

use futures_util::future::try_join_all;
use mw_codec::carts::header::{CartHeader, ClosedBucket, ClosedCart, OutboxRow};
use mw_codec::carts::{decode as decode_cart, encode as encode_cart};
use mw_domain::{Cart, Date, Owner, Timestamp};
use mw_store::Result;
use scylla::response::PagingState;
use uuid::Uuid;

use super::decisions::Plan;
use super::rows::{CartKey, CartPartition, cart_key, owner_kind};
use crate::CassandraStore;
use crate::driver::time::to_cql;

/// Days of a partition, by the creation of its carts.
const BUCKET_DAYS: i32 = 8;
/// Partitions that a header names: those of a year and a half. Older rows stay until their TTL and are not listed.
pub(super) const BUCKETS_MAX: usize = 64;

pub(super) fn bucket_of(created_at: Timestamp) -> i32 {
    created_at.date().as_days().div_euclid(BUCKET_DAYS)
}

/// Puts the rows of a decision into the header that it writes.
pub(super) fn fill_outbox(header: &mut CartHeader, plan: &Plan, clock_micros: i64) {
    let stamp = clock_micros.max(header.last_stamp + 1);
    header.outbox = outbox_of(plan, stamp);
    if !header.outbox.is_empty() {
        header.last_stamp = stamp;
    }
}

fn outbox_of(plan: &Plan, stamp: i64) -> Vec<OutboxRow> {
    let closed = plan.closed.iter().map(|(cart, merge_id)| OutboxRow {
        cart: cart_key(cart),
        stamp,
        closed: Some(ClosedCart { cart: cart.clone(), merge_id: *merge_id }),
    });
    let reopened = plan.reopened.iter().map(|cart| OutboxRow { cart: cart_key(cart), stamp, closed: None });
    closed.chain(reopened).collect()
}

/// The first instant of a partition.
pub(super) fn start_of(bucket: i32) -> Timestamp {
    Date::from_days(bucket.saturating_mul(BUCKET_DAYS)).midnight()
}

/// The partitions with rows once those of the header's outbox are written.
pub(super) fn buckets_after(header: &CartHeader, now: Timestamp) -> Vec<ClosedBucket> {
    let mut buckets = header.closed_buckets.clone();
    for OutboxRow { cart: (created_at, _), closed, .. } in &header.outbox {
        let Some(ClosedCart { cart, .. }) = closed else { continue };
        let (bucket, until) = (bucket_of(*created_at), cart.expires_at);
        match buckets.iter_mut().find(|known| known.bucket == bucket) {
            Some(known) => known.until = known.until.max(until),
            None => buckets.push(ClosedBucket { bucket, until }),
        }
    }
    buckets.retain(|bucket| bucket.until > now);
    buckets.sort_unstable_by_key(|bucket| Reverse(bucket.bucket));
    buckets.truncate(BUCKETS_MAX);
    buckets
}

/// The closed carts of a header, whose rows may be older or missing.
pub(super) fn unwritten(header: &CartHeader) -> impl Iterator<Item = &Cart> {
    header.outbox.iter().filter_map(|row| row.closed.as_ref()).map(|closed| &closed.cart)
}

impl CassandraStore {
    /// Writes the rows of the header's outbox, before a decision replaces the header. A crash in here leaves rows that the header
    /// has as well: the next decision writes them again.
    pub(super) async fn write_outbox(&self, partition: &CartPartition, ttl_seconds: i32) -> Result<()> {
        let owner = &partition.owner;
        let writes = partition.view.header.outbox.iter().map(async |row| {
            let OutboxRow { cart: (created_at, cart_id), stamp, closed } = row;
            let (kind, id, bucket) = (owner_kind(owner), owner.id(), bucket_of(*created_at));
            let (created_at, cart_id) = (to_cql(*created_at), &cart_id.as_bytes()[..]);
            if let Some(ClosedCart { cart, merge_id }) = closed {
                let cart = encode_cart(cart);
                let row = (kind, id, bucket, created_at, cart_id, cart, *merge_id, *stamp, ttl_seconds);
                self.cql.write(&self.carts.insert_closed, row).await
            } else {
                let key = (*stamp, kind, id, bucket, created_at, cart_id);
                self.cql.write(&self.carts.delete_closed, key).await
            }
        });
        try_join_all(writes).await.map(drop)
    }

    /// A closed cart of the owner. The partition must be read before the row: a row that is written in between is then found in
    /// one of them.
    pub(super) async fn closed_cart(
        &self,
        partition: &CartPartition,
        key: CartKey,
    ) -> Result<Option<ClosedCart>> {
        if let Some(row) = partition.view.header.outbox.iter().find(|row| row.cart == key) {
            return Ok(row.closed.clone());
        }
        let (owner, (created_at, cart_id)) = (&partition.owner, key);
        let bucket = bucket_of(created_at);
        let key = (owner_kind(owner), owner.id(), bucket, to_cql(created_at), &cart_id.as_bytes()[..]);
        let row: Option<(Option<Vec<u8>>, Option<Uuid>)> =
            self.cql.first(&self.carts.read_closed, key).await?;
        let closed = row.and_then(|(cart, merge_id)| Some((cart?, merge_id)));
        closed.map(|(cart, merge_id)| Ok(ClosedCart { cart: decode_cart(&cart)?, merge_id })).transpose()
    }

    /// A page of the rows in a partition after a key, newest first, and where to read on.
    pub(super) async fn closed_page(
        &self,
        owner: &Owner,
        bucket: i32,
        (created_at, cart_id): CartKey,
        from: PagingState,
    ) -> Result<(Vec<Cart>, Option<PagingState>)> {
        let key = (owner_kind(owner), owner.id(), bucket, to_cql(created_at), &cart_id.as_bytes()[..]);
        let (rows, next) = self.cql.page::<(Option<Vec<u8>>,)>(&self.carts.list, &key, from).await?;
        let carts = rows.into_iter().filter_map(|(cart,)| cart).map(|cart| Ok(decode_cart(&cart)?));
        Ok((carts.collect::<Result<_>>()?, next))
    }
}

#[cfg(test)]
mod tests {
    use mw_domain::carts::CartLifetime;
    use mw_domain::{CartId, SessionId};

    use super::*;

    const DAY_MS: i64 = 86_400_000;

    fn at(day: i64) -> Timestamp {
        Timestamp::from_millis(day * DAY_MS)
    }

    fn closed_on(day: i64) -> OutboxRow {
        let owner = Owner::Session(SessionId::parse("s").unwrap());
        let mut cart = Cart::open(CartId::new(Uuid::nil()), owner, at(day), 0);
        cart.abandon(at(day), &CartLifetime { user_ms: 1, guest_ms: 30 * DAY_MS });
        OutboxRow { cart: cart_key(&cart), stamp: 1, closed: Some(ClosedCart { cart, merge_id: None }) }
    }

    #[test]
    fn rows_of_a_later_decision_replace_those_of_an_earlier_one_whatever_the_clocks() {
        let Some(ClosedCart { cart, .. }) = closed_on(1).closed else { unreachable!("a closed cart") };
        let plan = Plan { closed: vec![(cart, None)], ..Plan::default() };
        let mut header = CartHeader::default();
        let mut stamps = Vec::new();
        for clock in [1_000, 500, 500, 2_000] {
            fill_outbox(&mut header, &plan, clock);
            stamps.extend(header.outbox.iter().map(|row| row.stamp));
        }
        assert_eq!(stamps, [1_000, 1_001, 1_002, 2_000]);
        fill_outbox(&mut header, &Plan::default(), 3_000);
        assert!(header.outbox.is_empty() && header.last_stamp == 2_000);
    }

    #[test]
    fn header_names_the_partitions_of_carts_that_have_not_expired() {
        let mut header = CartHeader::default();
        for (day, buckets) in [(0, &[0][..]), (7, &[0]), (8, &[1, 0]), (25, &[3, 1, 0]), (50, &[6, 3])] {
            header.outbox = vec![closed_on(day), OutboxRow { closed: None, ..closed_on(200) }];
            header.closed_buckets = buckets_after(&header, at(day));
            let named: Vec<i32> = header.closed_buckets.iter().map(|bucket| bucket.bucket).collect();
            assert_eq!(named, buckets, "day {day}");
        }
        let of_year: Vec<OutboxRow> = (0..3_000).map(closed_on).collect();
        assert!(buckets_after(&CartHeader { outbox: of_year, ..header }, at(0)).len() <= BUCKETS_MAX);
    }
}
