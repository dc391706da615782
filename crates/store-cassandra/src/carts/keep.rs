//! Carts as records: taken in whole, and all of them walked through.

use mw_domain::{Cart, CartChange, CartStatus, Owner};
use mw_store::Result;
use scylla::response::PagingState;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use super::lists::read_change;
use super::rows::{CartRow, Change, Gathering, Kept, place, read_owner};
use super::turn;
use crate::CassandraStore;
use crate::cql::Led;
use crate::guard::Rounds;

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

    /// Hands over every cart there is.
    pub(crate) async fn each_cart(&self, mut take: impl FnMut(Cart) -> Result<()> + Send) -> Result<()> {
        let mut gathering = Gathering::default();
        let mut from = PagingState::start();
        loop {
            let (rows, next) =
                self.cql.page::<Led<String, String, CartRow>>(&self.carts.all, (), from).await?;
            for Led { first: kind, second: id, row } in &rows {
                if let Some(stored) = gathering.take(&read_owner(kind, id)?, row)? {
                    take(stored.cart)?;
                }
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        gathering.end().map_or(Ok(()), |stored| take(stored.cart))
    }

    /// Hands over every line change there is.
    pub(crate) async fn each_cart_change(
        &self,
        mut take: impl FnMut(Owner, CartChange) -> Result<()> + Send,
    ) -> Result<()> {
        type Row = (String, String, CqlTimestamp, i64, String, Uuid, Option<i32>);
        let mut from = PagingState::start();
        loop {
            let (rows, next) = self.cql.page::<Row>(&self.carts.all_changes, (), from).await?;
            for (kind, id, at, version, product_id, cart_id, quantity) in rows {
                take(read_owner(&kind, &id)?, read_change((at, version, product_id, cart_id, quantity))?)?;
            }
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }
}
