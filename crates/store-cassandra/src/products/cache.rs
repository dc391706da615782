//! The product cache of this process, for reads that may be stale.
//!
//! A process reads its own writes: a change puts the new product into the cache, or invalidates the entry where the
//! result of the change is not certain. Changes of other processes are seen when an entry's TTL is over. A reader never
//! waits for the read of another reader, so a slow replica delays only the reads that it serves.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_domain::{Product, ProductId};
use mw_store::Result;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, EntryAction, EntryResult};

/// The typical size of an entry, for the initial capacity.
const ENTRY_BYTES: u64 = 1_024;
/// The size of an entry without its product: all of it, where the product was deleted.
const OVERHEAD_BYTES: u64 = 160;

#[derive(Clone)]
struct Entry {
    /// `None` where this process has deleted the product.
    product: Option<Arc<Product>>,
    expires_at: Instant,
}

pub(crate) struct ProductCache {
    entries: Cache<ProductId, Entry, EntryWeight>,
    ttl: Duration,
}

impl fmt::Debug for ProductCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProductCache").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

impl ProductCache {
    /// A TTL of zero turns the cache off.
    pub(crate) fn new(ttl: Duration, bytes: u64) -> Self {
        let entries = usize::try_from(bytes / ENTRY_BYTES).unwrap_or(usize::MAX);
        Self { entries: Cache::with_weighter(entries, bytes, EntryWeight), ttl }
    }

    /// The cached product, or else the result of `read`.
    pub(crate) async fn product(
        &self,
        product_id: &ProductId,
        now: Instant,
        read: impl Future<Output = Result<Option<Arc<Product>>>>,
    ) -> Result<Option<Arc<Product>>> {
        if self.ttl.is_zero() {
            return read.await;
        }
        if let Some(entry) = self.entries.get(product_id).filter(|entry| now < entry.expires_at) {
            return Ok(entry.product);
        }
        let found = self.entries.entry(product_id, Some(Duration::ZERO), |_, entry| {
            if now < entry.expires_at {
                EntryAction::Retain(entry.product.clone())
            } else {
                EntryAction::ReplaceWithGuard
            }
        });
        let placeholder = match found {
            EntryResult::Retained(product) => return Ok(product),
            EntryResult::Vacant(placeholder) | EntryResult::Replaced(placeholder, _) => placeholder,
            EntryResult::Removed(..) | EntryResult::Timeout => return read.await,
        };
        let product = read.await?;
        if product.is_some() {
            // A change removes the placeholder, so that a product that was read before the change is not cached after
            // it.
            let _ = placeholder.insert(Entry { product: product.clone(), expires_at: now + self.ttl });
        }
        Ok(product)
    }

    /// To be called before a change of the product is sent.
    pub(crate) fn begin_change<'a>(&'a self, product_id: &'a ProductId, now: Instant) -> PendingChange<'a> {
        PendingChange { cache: self, product_id, expires_at: now + self.ttl }
    }
}

/// A change whose result is not known yet. Dropping it invalidates the entry.
pub(crate) struct PendingChange<'a> {
    cache: &'a ProductCache,
    product_id: &'a ProductId,
    expires_at: Instant,
}

impl PendingChange<'_> {
    /// The change was applied: caches the product, or that it was deleted.
    pub(crate) fn applied(self, product: Option<&Product>) {
        let (cache, product_id, expires_at) = (self.cache, self.product_id, self.expires_at);
        drop(self);
        if !cache.ttl.is_zero() {
            let product = product.cloned().map(Arc::new);
            cache.entries.insert(product_id.clone(), Entry { product, expires_at });
        }
    }
}

impl Drop for PendingChange<'_> {
    fn drop(&mut self) {
        self.cache.entries.remove(self.product_id);
    }
}

#[derive(Clone)]
struct EntryWeight;

impl Weighter<ProductId, Entry> for EntryWeight {
    fn weight(&self, _: &ProductId, entry: &Entry) -> u64 {
        OVERHEAD_BYTES + entry.product.as_ref().map_or(0, |product| product.memory_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use mw_domain::{Attributes, Category, Money, Timestamp};
    use mw_store::StoreError;

    use super::*;

    const TTL: Duration = Duration::from_secs(5);

    fn product(minor: i64) -> Product {
        Product {
            product_id: ProductId::parse("tea").unwrap(),
            name: "Tea".to_owned(),
            category: Category::parse("drinks").unwrap(),
            price: Money::from_minor(minor),
            description: String::new(),
            attributes: Attributes::default(),
            created_at: Timestamp::EPOCH,
            updated_at: Timestamp::EPOCH,
        }
    }

    fn found(minor: i64) -> impl Future<Output = Result<Option<Arc<Product>>>> {
        ready(Ok(Some(product(minor).into())))
    }

    fn tea() -> ProductId {
        product(0).product_id
    }

    /// The price of the product that the cache returns.
    async fn price(
        cache: &ProductCache,
        now: Instant,
        read: impl Future<Output = Result<Option<Arc<Product>>>>,
    ) -> Option<i64> {
        cache.product(&tea(), now, read).await.unwrap().map(|product| product.price.as_minor())
    }

    #[tokio::test]
    async fn expired_product_is_read_again() {
        let (cache, start) = (ProductCache::new(TTL, 1 << 20), Instant::now());
        assert_eq!(price(&cache, start, found(1)).await, Some(1));
        assert_eq!(price(&cache, start + TTL / 2, found(2)).await, Some(1));
        assert_eq!(price(&cache, start + TTL, found(3)).await, Some(3));
        assert_eq!(price(&cache, start + TTL, found(4)).await, Some(3));
    }

    #[tokio::test]
    async fn process_reads_its_own_changes_at_once() {
        let (cache, now) = (ProductCache::new(TTL, 1 << 20), Instant::now());
        assert_eq!(price(&cache, now, found(1)).await, Some(1));
        cache.begin_change(&tea(), now).applied(Some(&product(2)));
        assert_eq!(price(&cache, now, found(1)).await, Some(2));
        cache.begin_change(&tea(), now).applied(None);
        assert_eq!(price(&cache, now, found(1)).await, None);
        assert_eq!(price(&cache, now + TTL, found(3)).await, Some(3));
    }

    #[tokio::test]
    async fn ttl_of_a_slow_change_counts_from_its_start() {
        let (cache, start) = (ProductCache::new(TTL, 1 << 20), Instant::now());
        let tea = tea();
        let pending = cache.begin_change(&tea, start);
        assert_eq!(price(&cache, start + 2 * TTL, found(2)).await, Some(2));
        pending.applied(Some(&product(1)));
        assert_eq!(price(&cache, start + 2 * TTL, found(2)).await, Some(2));
    }

    #[tokio::test]
    async fn dropped_change_invalidates_the_entry() {
        let (cache, now) = (ProductCache::new(TTL, 1 << 20), Instant::now());
        assert_eq!(price(&cache, now, found(1)).await, Some(1));
        drop(cache.begin_change(&tea(), now));
        assert_eq!(price(&cache, now, found(2)).await, Some(2));
    }

    #[tokio::test]
    async fn product_read_before_a_change_is_not_cached_after_it() {
        let (cache, now) = (ProductCache::new(TTL, 1 << 20), Instant::now());
        let read_during_put = async {
            cache.begin_change(&tea(), now).applied(Some(&product(2)));
            found(1).await
        };
        assert_eq!(price(&cache, now, read_during_put).await, Some(1));
        assert_eq!(price(&cache, now, found(3)).await, Some(2));
        drop(cache.begin_change(&tea(), now));
        let read_during_invalidation = async {
            drop(cache.begin_change(&tea(), now));
            found(3).await
        };
        assert_eq!(price(&cache, now, read_during_invalidation).await, Some(3));
        assert_eq!(price(&cache, now, found(4)).await, Some(4));
    }

    #[tokio::test]
    async fn readers_do_not_wait_for_each_other_and_a_failed_read_is_not_cached() {
        let (cache, now) = (ProductCache::new(TTL, 1 << 20), Instant::now());
        let failing_read = async {
            assert_eq!(price(&cache, now, found(1)).await, Some(1));
            Err(StoreError::Unavailable("two nodes are down".to_owned()))
        };
        assert!(cache.product(&tea(), now, failing_read).await.is_err());
        assert_eq!(price(&cache, now, found(2)).await, Some(2));
    }

    #[tokio::test]
    async fn ttl_of_zero_turns_the_cache_off() {
        let (cache, now) = (ProductCache::new(Duration::ZERO, 1 << 20), Instant::now());
        cache.begin_change(&tea(), now).applied(Some(&product(1)));
        assert_eq!(price(&cache, now, found(2)).await, Some(2));
        assert_eq!(price(&cache, now, found(3)).await, Some(3));
    }
}
