//! Carts and their history as export records: all of them out, one at a time in.

use mw_domain::{Cart, CartChange, CartStatus, Owner};
use mw_store::Result;
use mw_store::export::Record;
use scylla::response::PagingState;
use scylla::value::CqlTimestamp;

use super::lists::read_change;
use super::rows::{CartAssembler, CartBatch, CartRow, RowTtl, cart_key, parse_owner};
use super::{lock_key, subject};
use crate::CassandraStore;
use crate::driver::scan::Scan;
use crate::driver::statements::Prefixed;
use crate::export::Spool;
use crate::revision::CasLoop;

impl CassandraStore {
    /// Writes an exported cart exactly as it is, over what is stored of it. After a crash the import is started again.
    pub(crate) async fn import_cart(&self, cart: &Cart) -> Result<()> {
        let owner = &cart.owner;
        let ttl = RowTtl::of_imported(cart);
        let key = cart_key(cart);
        let mut cas_loop = CasLoop::of(subject(owner));
        let _lock = self.locks.partition(&lock_key(owner)).await;
        loop {
            let partition = self.cart_partition(owner).await?;
            let before = self.stored_cart(owner, key).await?;
            let active_key = match partition.active_key {
                Some(active) if cart.status == CartStatus::Active => Some(active.max(key)),
                None if cart.status == CartStatus::Active => Some(key),
                active => active.filter(|active| *active != key),
            };
            self.index_day(None, cart, ttl).await?;
            let mut batch = CartBatch::new(&self.carts, &partition, active_key, ttl);
            batch.put_cart(before.as_ref(), cart, None);
            if batch.apply(&self.cql, &mut cas_loop).await? {
                return Ok(());
            }
        }
    }

    pub(crate) async fn import_cart_change(&self, owner: &Owner, change: &CartChange) -> Result<()> {
        self.append_changes(owner, [change.clone()]).await
    }

    pub(crate) async fn export_carts(&self, into: &mut Spool) -> Result<()> {
        let mut from = PagingState::start();
        loop {
            let (rows, next) =
                self.cql.page::<Prefixed<String, String, CartRow>>(&self.carts.scan, (), from).await?;
            let mut assembler = CartAssembler::default();
            for Prefixed { first: kind, second: id, row } in &rows {
                if let Some(stored) = assembler.push(&parse_owner(kind, id)?, row)? {
                    into.push(&Record::Cart(stored.cart))?;
                }
            }
            let last = assembler.finish().map(|stored| stored.cart);
            let Some(next) = next else {
                return last.map_or(Ok(()), |cart| into.push(&Record::Cart(cart)));
            };
            // Its rows may go on in the next page, which is read at a later moment: read the cart again whole.
            if let Some(last) = last
                && let Some(stored) = self.stored_cart(&last.owner, cart_key(&last)).await?
            {
                into.push(&Record::Cart(stored.cart))?;
            }
            from = next;
        }
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
