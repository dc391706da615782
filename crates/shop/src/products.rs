//! The catalogue: products, categories by price, and the import of a product together with its stock.

use std::sync::Arc;
use std::time::Duration;

use mw_domain::products::ProductPatch;
use mw_domain::{Attributes, Category, GeoZone, Money, Product, ProductId, Timestamp};
use mw_store::products::{CategoryQuery, ImportProduct, Imported, Listed, Put};
use mw_store::{Done, Freshness, Page, PageRequest, Result, StoreError};

use crate::{KeyedRequest, Shop};

/// An overloaded store is tried again: nothing was done, and the import itself is what loads it.
const IMPORT_RETRIES_MAX: u32 = 200;
const IMPORT_RETRY_AFTER: Duration = Duration::from_millis(10);

/// A product that a caller wants to store.
#[derive(Debug, Clone)]
pub struct ProductDraft {
    pub product_id: ProductId,
    pub name: String,
    pub category: Category,
    pub price: Money,
    pub description: String,
    pub attributes: Attributes,
}

impl ProductDraft {
    /// The product as of now; a limit that it breaks is `InvalidField`.
    fn stamp(self, now: Timestamp) -> Result<Product> {
        let product = Product {
            product_id: self.product_id,
            name: self.name,
            category: self.category,
            price: self.price,
            description: self.description,
            attributes: self.attributes,
            created_at: now,
            updated_at: now,
        };
        product.check()?;
        Ok(product)
    }
}

impl Shop {
    pub async fn product(
        &self,
        product_id: &ProductId,
        freshness: Freshness,
    ) -> Result<Option<Arc<Product>>> {
        self.store.product(product_id, freshness).await
    }

    /// Stores the whole product; a replaced one keeps its `created_at`. Refuses: `InvalidField`.
    pub async fn put_product(&self, draft: ProductDraft) -> Result<Put> {
        self.store.put_product(draft.stamp(self.now())?).await
    }

    pub async fn patch_product(&self, product_id: &ProductId, patch: ProductPatch) -> Result<Product> {
        self.store.patch_product(product_id, patch, self.now()).await
    }

    /// Removes the product from the catalogue; its stock levels stay.
    pub async fn delete_product(&self, product_id: &ProductId) -> Result<()> {
        self.store.delete_product(product_id, self.now()).await
    }

    /// Stores the product and sets its stock in the zones named: all of it or nothing. Retries while the store is
    /// overloaded. Refuses, besides what the store refuses: `InvalidField`.
    pub async fn import_product(
        &self,
        draft: ProductDraft,
        stock: Vec<(GeoZone, u64)>,
        request: Option<KeyedRequest>,
    ) -> Result<Done<Imported>> {
        let now = self.now();
        let command = ImportProduct {
            product: draft.stamp(now)?,
            stock,
            op: self.ids.movement(),
            now,
            identity: request.map(|request| request.identity(now)),
        };
        let mut retries = 0;
        loop {
            match self.store.import_product(command.clone()).await {
                Err(StoreError::Overloaded) if retries < IMPORT_RETRIES_MAX => {
                    retries += 1;
                    tokio::time::sleep(IMPORT_RETRY_AFTER).await;
                }
                result => return result,
            }
        }
    }

    /// The category by price, then id.
    pub async fn category(
        &self,
        query: &CategoryQuery,
        freshness: Freshness,
        page: PageRequest,
    ) -> Result<Page<Listed>> {
        self.store.category(query, freshness, self.now(), page).await
    }

    /// The categories that have products, by name.
    pub async fn categories(&self, page: PageRequest) -> Result<Page<Category>> {
        self.store.categories(page).await
    }
}
