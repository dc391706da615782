//! Names and prices of products for orders and reservations: always fresh, and read once for all concurrent requests.
//!
//! Single-flight reads: without them a hit product would be read for every buyer. A request that arrives while a read is in
//! flight waits for the next one, so it never gets a result that was read before it arrived.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{Money, ProductId};
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;

use crate::driver::coalesce::{Coalescer, Execute, Job};
use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;

/// Products read at the same time for one request.
const CONCURRENT_READS: usize = 16;

/// What an order needs of a product.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) name: String,
    pub(crate) price: Money,
}

#[derive(Debug)]
pub(crate) struct OfferReader {
    coalescer: Coalescer<ProductId, (), Result<Option<Offer>>>,
    statement: Arc<OfferRead>,
}

impl OfferReader {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let read = "SELECT name, price, deleted FROM {} WHERE product_id = ?";
        let read = cql.prepare(Table::ProductById, Access::Read, read).await?;
        Ok(Self { coalescer: Coalescer::default(), statement: Arc::new(OfferRead(read)) })
    }

    /// The offers of products, in the order of `products`; `None` for a product that is not in the catalogue.
    pub(crate) async fn offers<'a>(
        &self,
        cql: &Arc<Cql>,
        products: impl Iterator<Item = &'a ProductId>,
    ) -> Result<Vec<Option<Offer>>> {
        let reads: Vec<_> = products.map(|product_id| self.offer(cql, product_id.clone())).collect();
        stream::iter(reads).buffered(CONCURRENT_READS).try_collect().await
    }

    pub(crate) async fn offer(&self, cql: &Arc<Cql>, product_id: ProductId) -> Result<Option<Offer>> {
        let offer = self.coalescer.submit(&self.statement, cql, product_id, ())?;
        let dropped = |_| Err(StoreError::Unavailable("the read of a product was dropped".to_owned()));
        offer.await.unwrap_or_else(dropped)
    }
}

type OfferJob = Job<(), Result<Option<Offer>>>;

#[derive(Debug)]
struct OfferRead(PreparedStatement);

impl Execute<ProductId, (), Result<Option<Offer>>> for OfferRead {
    type Context = Cql;

    // As many as may wait for the stock of a product.
    const WAITING_MAX: usize = 16_384;

    fn take_group(waiting: &mut Vec<OfferJob>) -> Vec<OfferJob> {
        std::mem::take(waiting)
    }

    async fn execute(&self, cql: &Cql, product_id: &ProductId, group: Vec<OfferJob>) {
        let row = cql.first::<OfferRow>(&self.0, (product_id.as_str(),)).await;
        let offer = row.map(|row| row.and_then(read_offer));
        for job in group {
            job.caller.respond(offer.clone());
        }
    }
}

type OfferRow = (Option<String>, Option<i64>, Option<bool>);

fn read_offer((name, price, deleted): OfferRow) -> Option<Offer> {
    let is_listed = !deleted.unwrap_or_default();
    let (name, price) = name.zip(price).filter(|_| is_listed)?;
    Some(Offer { name, price: Money::from_minor(price) })
}
