//! Encoded products: a bounded cache of their JSON.
//!
//! A store that caches products gives the same `Arc` to every reader, so the address of that `Arc` is the key. A slot keeps its
//! product alive: no other product can have the address while the slot holds it. A product that only the request holds will not
//! be read at this address again and is not kept. A product replaces the one that had its slot before.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use mw_domain::{Currency, Product};

use crate::wire::{json, products::ProductView};

/// Slots of the cache, as a power of two.
const SLOTS_LOG2: u32 = 14;
/// Longer JSON is encoded for each request, so that the cache takes at most 128 MiB and usually a tenth of it.
const ENCODED_BYTES_MAX: usize = 8 * 1_024;

/// The JSON of the products that were read last. A shop has one currency.
pub(crate) struct EncodedProducts {
    currency: Currency,
    slots: Box<[RwLock<Option<Slot>>]>,
}

struct Slot {
    product: Arc<Product>,
    json: Bytes,
}

impl EncodedProducts {
    pub(crate) fn new(currency: Currency) -> Self {
        Self { currency, slots: (0..1 << SLOTS_LOG2).map(|_| RwLock::new(None)).collect() }
    }

    /// The product as JSON.
    pub(crate) fn json(&self, product: &Arc<Product>) -> Bytes {
        self.with_json(product, Bytes::clone)
    }

    /// Reads the JSON of the product where it is kept.
    pub(crate) fn with_json<T>(&self, product: &Arc<Product>, read: impl FnOnce(&Bytes) -> T) -> T {
        // The slot index has fewer bits than there are slots; a missing slot would only mean that nothing is kept.
        let Some(lock) = self.slots.get(slot_index(product)) else {
            return read(&self.encode(product));
        };
        if let Some(slot) = &*lock.read().unwrap_or_else(PoisonError::into_inner)
            && Arc::ptr_eq(&slot.product, product)
        {
            return read(&slot.json);
        }
        let json = self.encode(product);
        if Arc::strong_count(product) > 1 && json.len() <= ENCODED_BYTES_MAX {
            let slot = Slot { product: Arc::clone(product), json: json.clone() };
            let replaced = lock.write().unwrap_or_else(PoisonError::into_inner).replace(slot);
            // Freed after the lock is released.
            drop(replaced);
        }
        read(&json)
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
fn slot_index(product: &Arc<Product>) -> usize {
    let address = Arc::as_ptr(product).addr() as u64;
    let mixed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SLOTS_LOG2);
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

    fn cache() -> EncodedProducts {
        EncodedProducts::new(Currency::parse("RUB").unwrap())
    }

    #[test]
    fn json_of_a_product_is_that_of_its_view() {
        let (cache, product) = (cache(), product("два \"слова\"\n"));
        let view = serde_json::to_vec(&ProductView::new(&product, &cache.currency)).unwrap();
        assert_eq!(cache.json(&product), view);
        let shared = Arc::clone(&product);
        assert_eq!((cache.json(&shared), cache.json(&product)), (view.clone().into(), view.into()));
    }

    #[test]
    fn shared_product_is_encoded_once() {
        let (cache, product) = (cache(), product("shared"));
        let _held_by_the_store = Arc::clone(&product);
        let first = cache.json(&product);
        assert_eq!(cache.json(&product).as_ptr(), first.as_ptr());
        assert_eq!(Arc::strong_count(&product), 3);
    }

    #[test]
    fn product_that_only_the_request_holds_or_with_long_json_is_not_kept() {
        let (cache, alone, long) = (cache(), product("alone"), product(&"x".repeat(ENCODED_BYTES_MAX)));
        let _held_by_the_store = Arc::clone(&long);
        drop((cache.json(&alone), cache.json(&long)));
        assert_eq!((Arc::strong_count(&alone), Arc::strong_count(&long)), (1, 2));
    }

    #[test]
    fn product_replaces_the_one_in_its_slot() {
        let cache = cache();
        let products: Vec<Arc<Product>> = (0..3 << SLOTS_LOG2).map(|_| product("")).collect();
        let shared = products.clone();
        for product in &products {
            cache.json(product);
        }
        let kept = shared.iter().filter(|product| Arc::strong_count(product) == 3).count();
        // How evenly the slots fill depends on the addresses that the allocator chose.
        assert!(kept <= 1 << SLOTS_LOG2 && kept > 1 << (SLOTS_LOG2 - 2), "{kept}");
    }
}
