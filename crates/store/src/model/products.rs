//! The catalogue of the model.

use std::collections::BTreeSet;
use std::sync::Arc;

use mw_domain::products::ProductPatch;
use mw_domain::{Category, Product, ProductId, Timestamp};

use super::page::{Direction, page};
use super::stock::MovementHeader;
use super::{Model, State};
use crate::changes::Changed;
use crate::idempotency::StoredValue as _;
use crate::products::{CategoryQuery, ImportProduct, Imported, Listed, Put};
use crate::{Done, Freshness, Page, PageRequest, Products, Refusal, Result};

impl State {
    fn put(&mut self, mut product: Product) -> Put {
        let replaced = self.products.get(&product.product_id);
        let created = replaced.is_none();
        if let Some(replaced) = replaced {
            product.created_at = replaced.created_at;
        }
        self.products.insert(product.product_id.clone(), product.clone());
        self.record(product.updated_at, Changed::ProductPut(product.clone()));
        Put { product, created }
    }

    fn listed(&self, product: &Product, query: &CategoryQuery, now: Timestamp) -> Option<Listed> {
        let is_wanted = product.category == query.category
            && query.min_price.is_none_or(|min| product.price >= min)
            && query.max_price.is_none_or(|max| product.price <= max);
        let available = query.geo_zone.as_ref().map(|zone| self.available(&product.product_id, zone, now));
        let is_missing = query.in_stock && available == Some(0);
        (is_wanted && !is_missing).then(|| Listed { product: product.clone().into(), available })
    }
}

#[async_trait::async_trait]
impl Products for Model {
    async fn put_product(&self, product: Product) -> Result<Put> {
        Ok(self.state().put(product))
    }

    async fn patch_product(
        &self,
        product_id: &ProductId,
        patch: ProductPatch,
        now: Timestamp,
    ) -> Result<Product> {
        let mut state = self.state();
        let mut product = state
            .products
            .get(product_id)
            .cloned()
            .ok_or_else(|| Refusal::ProductNotFound(product_id.clone()))?;
        product.patch(patch, now);
        product.check()?;
        state.products.insert(product_id.clone(), product.clone());
        state.record(product.updated_at, Changed::ProductPut(product.clone()));
        Ok(product)
    }

    async fn product(&self, product_id: &ProductId, _freshness: Freshness) -> Result<Option<Arc<Product>>> {
        Ok(self.state().products.get(product_id).cloned().map(Arc::new))
    }

    async fn delete_product(&self, product_id: &ProductId, now: Timestamp) -> Result<()> {
        let mut state = self.state();
        if state.products.remove(product_id).is_none() {
            return Err(Refusal::ProductNotFound(product_id.clone()).into());
        }
        state.record(now, Changed::ProductDeleted(product_id.clone()));
        Ok(())
    }

    async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>> {
        let mut state = self.state();
        if let Some(first) = state.replay(command.identity.as_ref(), command.now)? {
            return Ok(first);
        }
        state.expire_holds(command.now, usize::MAX);
        let product_id = command.product.product_id.clone();
        for (zone, on_hand) in &command.stock {
            state.check_on_hand(&product_id, zone, *on_hand, command.now)?;
        }
        for (zone, on_hand) in &command.stock {
            let change = MovementHeader::set(command.op, command.now);
            state.put_on_hand(&product_id, zone, *on_hand, change);
        }
        let created = state.put(command.product).created;
        let imported = Imported { product_id, created };
        state.store_outcome(command.identity, || imported.to_outcome());
        Ok(Done::first(imported))
    }

    async fn category(
        &self,
        query: &CategoryQuery,
        _freshness: Freshness,
        now: Timestamp,
        request: PageRequest,
    ) -> Result<Page<Listed>> {
        let state = self.state();
        let listed = state
            .products
            .values()
            .filter_map(|product| {
                let key = (product.price.as_minor(), product.product_id.to_string());
                Some((key, state.listed(product, query, now)?))
            })
            .collect();
        let direction = if query.descending { Direction::Falling } else { Direction::Rising };
        page(listed, direction, &request)
    }

    async fn categories(&self, request: PageRequest) -> Result<Page<Category>> {
        let state = self.state();
        let names: BTreeSet<&Category> = state.products.values().map(|product| &product.category).collect();
        let categories = names.into_iter().map(|name| ((0, name.to_string()), name.clone())).collect();
        page(categories, Direction::Rising, &request)
    }
}
