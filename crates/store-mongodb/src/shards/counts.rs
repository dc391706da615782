//! What the service counts: calls by the number of shards they ask, and hot categories and products. Stored by every process
//! in one document of its own, so that `mw shards` sees all of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mongodb::Database;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::options::WriteConcern;
use uuid::Uuid;

use super::CALL_COUNTS;
use super::sketch::Sketch;
use super::targeting::{Operation, Targeting};
use crate::shard_keys::ShardKeys;

/// Keys of each kind in a stored document.
const TOP: usize = 50;
/// A document is removed this long after its process stored it last.
const KEPT: Duration = Duration::from_hours(24);
/// How often a process stores its counts.
const FLUSH_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct CallCounts {
    targeting: [Targeting; Operation::ALL.len()],
    calls: [AtomicU64; Operation::ALL.len()],
    categories: Mutex<Sketch>,
    products: Mutex<Sketch>,
}

/// The counts of one process since its start, or of several together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountsSnapshot {
    /// Per operation its name, and its calls that asked one, several and all shards.
    pub calls: Vec<(String, [u64; 3])>,
    pub categories: Vec<(String, u64)>,
    pub categories_total: u64,
    pub products: Vec<(String, u64)>,
    pub products_total: u64,
}

impl CallCounts {
    pub fn new(keys: &ShardKeys) -> Self {
        Self {
            targeting: Operation::ALL.map(|operation| operation.targeting(keys)),
            calls: [const { AtomicU64::new(0) }; Operation::ALL.len()],
            categories: Mutex::default(),
            products: Mutex::default(),
        }
    }

    pub fn count(&self, operation: Operation) {
        if let Some(count) = self.calls.get(operation as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn category(&self, category: &str) {
        self.categories.lock().unwrap_or_else(PoisonError::into_inner).add(category);
    }

    pub fn product(&self, product_id: &str) {
        self.products.lock().unwrap_or_else(PoisonError::into_inner).add(product_id);
    }

    pub fn snapshot(&self) -> CountsSnapshot {
        let calls =
            Operation::ALL.iter().zip(&self.calls).zip(self.targeting).map(|((operation, count), asked)| {
                let mut by_shards = [0; 3];
                if let Some(of_targeting) = by_shards.get_mut(asked as usize) {
                    *of_targeting = count.load(Ordering::Relaxed);
                }
                (operation.name().to_owned(), by_shards)
            });
        let calls = calls.collect();
        let categories = self.categories.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let products = self.products.lock().unwrap_or_else(PoisonError::into_inner).clone();
        CountsSnapshot {
            calls,
            categories: categories.top(TOP),
            categories_total: categories.total(),
            products: products.top(TOP),
            products_total: products.total(),
        }
    }
}

impl CountsSnapshot {
    fn to_document(&self, process: Uuid) -> Document {
        let calls: Vec<Document> = self
            .calls
            .iter()
            .map(|(name, [one, several, all])| {
                doc! { "call": name, "one": number(*one), "several": number(*several), "all": number(*all) }
            })
            .collect();
        let keys = |keys: &[(String, u64)]| -> Vec<Document> {
            keys.iter().map(|(key, count)| doc! { "key": key, "count": number(*count) }).collect()
        };
        let purge_at = DateTime::from_millis(
            DateTime::now()
                .timestamp_millis()
                .saturating_add(i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX)),
        );
        doc! {
            "_id": process.to_string(),
            "at": DateTime::now(),
            "purge_at": purge_at,
            "calls": calls,
            "categories": keys(&self.categories),
            "categories_total": number(self.categories_total),
            "products": keys(&self.products),
            "products_total": number(self.products_total),
        }
    }

    /// Adds a stored document; what cannot be read in it is left out.
    pub(super) fn add(&mut self, document: &Document) {
        for call in documents(document, "calls") {
            let Ok(name) = call.get_str("call") else { continue };
            let counts = Targeting::ALL.map(|targeting| read(call, targeting.name()));
            match self.calls.iter_mut().find(|(it, _)| it == name) {
                Some((_, sums)) => sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count),
                None => self.calls.push((name.to_owned(), counts)),
            }
        }
        add_keys(&mut self.categories, document, "categories");
        add_keys(&mut self.products, document, "products");
        self.categories_total += read(document, "categories_total");
        self.products_total += read(document, "products_total");
    }
}

fn add_keys(sums: &mut Vec<(String, u64)>, document: &Document, field: &str) {
    for entry in documents(document, field) {
        let Ok(key) = entry.get_str("key") else { continue };
        let count = read(entry, "count");
        match sums.iter_mut().find(|(it, _)| it == key) {
            Some((_, sum)) => *sum += count,
            None => sums.push((key.to_owned(), count)),
        }
    }
    sums.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
}

fn documents<'a>(document: &'a Document, field: &str) -> impl Iterator<Item = &'a Document> {
    document.get_array(field).into_iter().flatten().filter_map(Bson::as_document)
}

fn read(document: &Document, field: &str) -> u64 {
    let value = document.get(field);
    let number = value.and_then(|it| it.as_i64().or(it.as_i32().map(i64::from)));
    number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Stores the counts of this process from time to time. A crash loses those since the last time: they are statistics.
pub async fn flush_forever(counts: Arc<CallCounts>, database: Database) {
    let process = Uuid::new_v4();
    let mut stored = CountsSnapshot::default();
    loop {
        tokio::time::sleep(FLUSH_EVERY).await;
        let snapshot = counts.snapshot();
        if snapshot == stored {
            continue;
        }
        let document = snapshot.to_document(process);
        let collection = database.collection::<Document>(CALL_COUNTS);
        let replaced = collection
            .replace_one(doc! { "_id": process.to_string() }, document)
            .upsert(true)
            .write_concern(WriteConcern::builder().w(mongodb::options::Acknowledgment::Nodes(1)).build())
            .await;
        match replaced {
            Ok(_) => stored = snapshot,
            Err(error) => tracing::debug!(%error, "store the counts of calls"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    #[test]
    fn counts_of_several_processes_are_added() {
        let counts = CallCounts::new(&ShardKeys::of_shape(Shape::Customer));
        counts.count(Operation::OrderById);
        counts.count(Operation::UserOrders);
        counts.count(Operation::UserOrders);
        for _ in 0..3 {
            counts.category("phones");
        }
        counts.product("p1");
        let stored = counts.snapshot().to_document(Uuid::nil());
        let mut sum = CountsSnapshot::default();
        sum.add(&stored);
        sum.add(&stored);
        let call = |name: &str| sum.calls.iter().find(|(it, _)| it == name).unwrap().1;
        assert_eq!(call("order_by_id"), [0, 0, 2]);
        assert_eq!(call("user_orders"), [4, 0, 0]);
        assert_eq!((sum.categories, sum.categories_total), (vec![("phones".to_owned(), 6)], 6));
        assert_eq!((sum.products, sum.products_total), (vec![("p1".to_owned(), 2)], 2));
    }
}
