//! Names and prices of products for those who buy: always fresh, and read once for all who ask at the same time.
//!
//! A hit product's card would otherwise be read for every buyer. Whoever asks while a read is under way waits for the
//! next one, so that nobody is answered with what was read before they asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::{Money, ProductId};
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use tokio::sync::oneshot;

use crate::cql::{Access, Cql};
use crate::tables::Table;

/// Cards read at once for one request.
const AT_ONCE: usize = 16;

/// What an order needs of a product.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) name: String,
    pub(crate) price: Money,
}

/// A product is here while its card is being read.
type Waiting = HashMap<ProductId, Vec<oneshot::Sender<Result<Option<Offer>>>>>;

#[derive(Debug)]
pub(crate) struct Cards {
    read: Arc<PreparedStatement>,
    waiting: Arc<Mutex<Waiting>>,
}

impl Cards {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let read = "SELECT name, price, deleted FROM {} WHERE product_id = ?";
        let read = cql.prepare(Table::ProductById, Access::Read, read).await?;
        Ok(Self { read: Arc::new(read), waiting: Arc::default() })
    }

    /// The offers of products, in the asked order; `None` for what is not in the catalogue.
    pub(crate) async fn offers<'a>(
        &self,
        cql: &Arc<Cql>,
        products: impl Iterator<Item = &'a ProductId>,
    ) -> Result<Vec<Option<Offer>>> {
        let reads: Vec<_> = products.map(|product_id| self.offer(cql, product_id.clone())).collect();
        stream::iter(reads).buffered(AT_ONCE).try_collect().await
    }

    pub(crate) async fn offer(&self, cql: &Arc<Cql>, product_id: ProductId) -> Result<Option<Offer>> {
        let (sender, receiver) = oneshot::channel();
        let is_first = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(others) = waiting.get_mut(&product_id) {
                others.push(sender);
                false
            } else {
                waiting.insert(product_id.clone(), vec![sender]);
                true
            }
        };
        if is_first {
            let (cql, read, waiting) = (Arc::clone(cql), Arc::clone(&self.read), Arc::clone(&self.waiting));
            tokio::spawn(answer(cql, read, waiting, product_id));
        }
        receiver
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("the read of a card was dropped".to_owned())))
    }
}

async fn answer(
    cql: Arc<Cql>,
    read: Arc<PreparedStatement>,
    waiting: Arc<Mutex<Waiting>>,
    product_id: ProductId,
) {
    loop {
        let group = {
            let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
            match waiting.get_mut(&product_id) {
                Some(group) if !group.is_empty() => std::mem::take(group),
                _ => {
                    waiting.remove(&product_id);
                    return;
                }
            }
        };
        let row = cql.first::<OfferRow>(&read, (product_id.as_str(),)).await;
        let offer = row.map(|row| row.and_then(read_offer));
        for sender in group {
            // Whoever went away does not need the answer.
            let _ = sender.send(offer.clone());
        }
    }
}

type OfferRow = (Option<String>, Option<i64>, Option<bool>);

fn read_offer((name, price, deleted): OfferRow) -> Option<Offer> {
    let is_listed = !deleted.unwrap_or_default();
    let (name, price) = name.zip(price).filter(|_| is_listed)?;
    Some(Offer { name, price: Money::from_minor(price) })
}
