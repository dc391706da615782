//! Encoded products: a bounded cache of their JSON and of its tag.
//!
//! A store that caches products gives the same `Arc` to every reader, so the address of that `Arc` is the key. A slot keeps its
//! product alive: no other product can have the address while the slot holds it. A product that only the request holds will not
//! be read at this address again and is not kept. A product replaces the older one of its set.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use mw_domain::{Currency, Product};

use crate::conditional::Tag;
use crate::wire::{json, products::ProductView};

/// Sets of the cache, as a power of two. A set has two slots, so that two products that are often read with each other do not
/// replace each other all the time.
const SETS_LOG2: u32 = 13;
/// Longer JSON is encoded for each request, so that the cache takes at most 128 MiB and usually a tenth of it.
const ENCODED_BYTES_MAX: usize = 8 * 1_024;

/// The JSON of the products that were read last. A shop has one currency.
pub(crate) struct EncodedProducts {
    currency: Currency,
    sets: Box<[RwLock<[Option<Slot>; 2]>]>,
}

struct Slot {
    product: Arc<Product>,
    json: Bytes,
    tag: Tag,
}

impl EncodedProducts {
    pub(crate) fn new(currency: Currency) -> Self {
        Self { currency, sets: (0..1 << SETS_LOG2).map(|_| RwLock::default()).collect() }
    }

    /// Reads the JSON of the product, and its tag, where they are kept.
    pub(crate) fn with_json<T>(&self, product: &Arc<Product>, read: impl FnOnce(&Bytes, Tag) -> T) -> T {
        // The index has as many bits as there are sets; a missing set would only mean that nothing is kept.
        let Some(lock) = self.sets.get(set_index(product)) else {
            let json = self.encode(product);
            return read(&json, Tag::of(&json));
        };
        for slot in lock.read().unwrap_or_else(PoisonError::into_inner).iter().flatten() {
            if Arc::ptr_eq(&slot.product, product) {
                return read(&slot.json, slot.tag);
            }
        }
        let json = self.encode(product);
        let tag = Tag::of(&json);
        if Arc::strong_count(product) > 1 && json.len() <= ENCODED_BYTES_MAX {
            let slot = Slot { product: Arc::clone(product), json: json.clone(), tag };
            let mut set = lock.write().unwrap_or_else(PoisonError::into_inner);
            let [newer, older] = &mut *set;
            let replaced = std::mem::replace(older, newer.replace(slot));
            drop(set);
            // Freed after the lock is released.
            drop(replaced);
        }
        read(&json, tag)
    }

    fn encode(&self, product: &Product) -> Bytes {
        let view = ProductView::new(product, &self.currency);
        let mut out = Vec::with_capacity(view.size());
        match json::write(&mut out, &view) {
            Ok(()) => out.into_boxed_slice().into(),
            Err(error) => unreachable!("every field of a product has a form in JSON: {error}"),
        }
    }
}

/// Addresses differ in their middle bits; a multiplication moves them to the top.
fn set_index(product: &Arc<Product>) -> usize {
    let address = Arc::as_ptr(product).addr() as u64;
    let mixed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SETS_LOG2);
    usize::try_from(mixed).unwrap_or_default()
}

impl fmt::Debug for EncodedProducts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodedProducts").field("currency", &self.currency).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use mw_domain::{Attributes, Category, Money, ProductId, Timestamp};

    use super::*;

    fn product(description: &str) -> Arc<Product> {
        Arc::new(Product {
            product_id: ProductId::parse("a-1").unwrap(),
            name: "Чай".to_owned(),
            category: Category::parse("tea").unwrap(),
            price: Money::from_minor(12_345),
            description: description.to_owned(),
            attributes: Attributes::from([("leaf", "green")]),
            created_at: Timestamp::EPOCH,
            updated_at: Timestamp::from_millis(1),
        })
    }

    const SLOTS_LOG2: u32 = SETS_LOG2 + 1;

    fn json_of(cache: &EncodedProducts, product: &Arc<Product>) -> Bytes {
        cache.with_json(product, |json, tag| {
            assert_eq!(tag, Tag::of(json));
            json.clone()
        })
    }

    fn cache() -> EncodedProducts {
        EncodedProducts::new(Currency::parse("RUB").unwrap())
    }

    #[test]
    fn json_of_a_product_is_that_of_its_view() {
        let (cache, product) = (cache(), product("два \"слова\"\n"));
        let view = serde_json::to_vec(&ProductView::new(&product, &cache.currency)).unwrap();
        assert_eq!(json_of(&cache, &product), view);
        let shared = Arc::clone(&product);
        assert_eq!((json_of(&cache, &shared), json_of(&cache, &product)), (view.clone().into(), view.into()));
    }

    #[test]
    fn shared_product_is_encoded_once() {
        let (cache, product) = (cache(), product("shared"));
        let _held_by_the_store = Arc::clone(&product);
        let first = json_of(&cache, &product);
        assert_eq!(json_of(&cache, &product).as_ptr(), first.as_ptr());
        assert_eq!(Arc::strong_count(&product), 3);
    }

    #[test]
    fn product_that_only_the_request_holds_or_with_long_json_is_not_kept() {
        let (cache, alone, long) = (cache(), product("alone"), product(&"x".repeat(ENCODED_BYTES_MAX)));
        let _held_by_the_store = Arc::clone(&long);
        drop((json_of(&cache, &alone), json_of(&cache, &long)));
        assert_eq!((Arc::strong_count(&alone), Arc::strong_count(&long)), (1, 2));
    }

    #[test]
    fn product_replaces_the_older_one_of_its_set() {
        let cache = cache();
        let products: Vec<Arc<Product>> = (0..3 << SLOTS_LOG2).map(|_| product("")).collect();
        let shared = products.clone();
        for product in &products {
            json_of(&cache, product);
        }
        let kept = shared.iter().filter(|product| Arc::strong_count(product) == 3).count();
        // How evenly the slots fill depends on the addresses that the allocator chose.
        assert!(kept <= 1 << SLOTS_LOG2 && kept > 1 << (SLOTS_LOG2 - 2), "{kept}");
    }
}
