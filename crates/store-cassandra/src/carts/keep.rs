//! Carts as records, out and in.

use mw_domain::{Cart, CartChange, CartStatus, Owner};
use mw_store::Result;
use mw_store::records::Record;
use scylla::response::PagingState;
use scylla::value::CqlTimestamp;

use super::lists::read_change;
use super::rows::{CartRow, Change, Gathering, Kept, place, read_owner};
use super::turn;
use crate::CassandraStore;
use crate::cql::Led;
use crate::guard::Rounds;
use crate::records::Spool;
use crate::scan::Scan;

impl CassandraStore {
    /// Writes the cart as it is, in place of what is there of it.
    pub(crate) async fn keep_cart(&self, cart: &Cart) -> Result<()> {
        let owner = &cart.owner;
        let kept = Kept::whole(cart);
        let at = place(cart);
        let mut rounds = Rounds::of("a cart");
        let _turn = self.locks.one(&turn(owner)).await;
        loop {
            let found = self.partition(owner).await?;
            let before = self.cart_at(owner, at).await?;
            let pointer = match found.pointer {
                Some(open) if cart.status == CartStatus::Active => Some(open.max(at)),
                None if cart.status == CartStatus::Active => Some(at),
                pointer => pointer.filter(|open| *open != at),
            };
            self.note_day(None, cart, kept).await?;
            let mut change = Change::new(&self.carts, &found, pointer, kept);
            change.cart(before.as_ref(), cart, None);
            if change.settle(&self.cql, &mut rounds).await? {
                return Ok(());
            }
        }
    }

    pub(crate) async fn keep_change(&self, owner: &Owner, change: &CartChange) -> Result<()> {
        self.note_changes(owner, [change.clone()]).await
    }

    /// Every cart of every owner.
    pub(crate) async fn export_carts(&self, into: &mut Spool) -> Result<()> {
        let mut from = PagingState::start();
        loop {
            let (rows, next) =
                self.cql.page::<Led<String, String, CartRow>>(&self.carts.all, (), from).await?;
            let mut gathering = Gathering::default();
            for Led { first: kind, second: id, row } in &rows {
                if let Some(stored) = gathering.take(&read_owner(kind, id)?, row)? {
                    into.push(&Record::Cart(stored.cart))?;
                }
            }
            let last = gathering.end().map(|stored| stored.cart);
            let Some(next) = next else {
                return last.map_or(Ok(()), |cart| into.push(&Record::Cart(cart)));
            };
            // It may go on with the next page, which is of a later moment: it is read again as a whole.
            if let Some(last) = last
                && let Some(stored) = self.cart_at(&last.owner, place(&last)).await?
            {
                into.push(&Record::Cart(stored.cart))?;
            }
            from = next;
        }
    }

    /// Every line change of every owner.
    pub(crate) async fn export_cart_changes(&self, into: &mut Spool) -> Result<()> {
        type Row = (String, String, CqlTimestamp, i64, String, Vec<u8>, Option<i32>);
        let mut rows: Scan<'_, Row> = Scan::new(&self.cql, &self.carts.all_changes);
        while let Some((kind, id, at, version, product_id, cart_id, quantity)) = rows.next().await? {
            let owner = read_owner(&kind, &id)?;
            let change = read_change((at, version, product_id, cart_id, quantity))?;
            into.push(&Record::CartChange { owner, change })?;
        }
        Ok(())
    }
}
