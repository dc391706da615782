//! Carts and their history as export records: all of them out, one at a time in.

use std::collections::HashSet;

use mw_codec::carts::decode as decode_cart;
use mw_domain::{Cart, CartChange, CartId, CartStatus, Owner};
use mw_store::Result;
use mw_store::export::Record;
use scylla::value::CqlTimestamp;

use super::closed::unwritten;
use super::decisions::{Plan, Planned};
use super::lists::read_change;
use super::lock_key;
use super::rows::{CartPartition, OPEN_PART, RowTtl, cart_key, parse_owner};
use crate::CassandraStore;
use crate::driver::scan::Scan;
use crate::export::Spool;

impl CassandraStore {
    /// Writes an exported cart exactly as it is, over what is stored of it. After a crash the import is started again.
    pub(crate) async fn import_cart(&self, cart: &Cart) -> Result<()> {
        let owner = &cart.owner;
        let ttl = RowTtl::of_imported(cart);
        let key = cart_key(cart);
        let _lock = self.locks.partition(&lock_key(owner)).await;
        let plan = |partition: &CartPartition| {
            let other = partition.open.as_ref().filter(|open| cart_key(open) != key);
            let is_newest = other.is_none_or(|other| cart_key(other) < key);
            let mut plan = Plan { indexed: Some((None, cart.clone())), ..Plan::default() };
            if cart.status == CartStatus::Active && is_newest {
                plan.after = Some(cart.clone());
                plan.reopened = vec![cart.clone()];
                plan.closed = other.map(|other| (other.clone(), None)).into_iter().collect();
            } else {
                plan.after = other.cloned();
                plan.closed = vec![(cart.clone(), None)];
            }
            Ok(Planned::Change(Box::new(plan), ()))
        };
        self.decide(owner, None, ttl, plan).await.map(drop)
    }

    pub(crate) async fn import_cart_change(&self, owner: &Owner, change: &CartChange) -> Result<()> {
        self.append_changes(owner, [change.clone()]).await
    }

    pub(crate) async fn export_carts(&self, into: &mut Spool) -> Result<()> {
        type Row = (String, String, i32, Option<Vec<u8>>);
        let mut rows: Scan<'_, Row> = Scan::new(&self.cql, &self.carts.scan);
        let mut exported: HashSet<CartId> = HashSet::new();
        while let Some((kind, id, part, state)) = rows.next().await? {
            if part != OPEN_PART || state.is_none() {
                continue;
            }
            // Its lines may go on in the next page, which is read at a later moment: read the partition whole.
            let partition = self.settled_partition(&parse_owner(&kind, &id)?).await?;
            for cart in partition.open.iter().chain(unwritten(&partition.view.header)) {
                into.push(&Record::Cart(cart.clone()))?;
                exported.insert(cart.cart_id);
            }
        }
        // After the headers: a cart that is in neither was closed and written in between, so it is in the rows now.
        let mut rows: Scan<'_, (Option<Vec<u8>>,)> = Scan::new(&self.cql, &self.carts.scan_closed);
        while let Some((closed,)) = rows.next().await? {
            let Some(closed) = closed else { continue };
            let cart = decode_cart(&closed)?;
            if !exported.contains(&cart.cart_id) {
                into.push(&Record::Cart(cart))?;
            }
        }
        Ok(())
    }

    pub(crate) async fn export_cart_changes(&self, into: &mut Spool) -> Result<()> {
        type Row = (String, String, CqlTimestamp, i64, String, Vec<u8>, Option<i32>);
        let mut rows: Scan<'_, Row> = Scan::new(&self.cql, &self.carts.scan_changes);
        while let Some((kind, id, at, version, product_id, cart_id, quantity)) = rows.next().await? {
            let owner = parse_owner(&kind, &id)?;
            let change = read_change((at, version, product_id, cart_id, quantity))?;
            into.push(&Record::CartChange { owner, change })?;
        }
        Ok(())
    }
}
