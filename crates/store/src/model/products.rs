//! The catalogue of the model.

use std::collections::BTreeSet;

use mw_domain::product::ProductPatch;
use mw_domain::{Category, Product, ProductId, Timestamp};

use super::page::{Direction, page};
use super::stock::Change;
use super::{Model, State};
use crate::once::Outcome;
use crate::products::{Card, CategoryQuery, ImportProduct, Imported, Listed, Put};
use crate::{Done, Freshness, Page, PageRequest, Products, Refusal, Result};

impl State {
    fn put(&mut self, mut product: Product) -> Put {
        let replaced = self.products.get(&product.product_id);
        let created = replaced.is_none();
        if let Some(replaced) = replaced {
            product.created_at = replaced.created_at;
        }
        self.products.insert(product.product_id.clone(), product.clone());
        Put { product, created }
    }

    fn listed(&self, product: &Product, query: &CategoryQuery, now: Timestamp) -> Option<Listed> {
        let is_asked = product.category == query.category
            && query.min_price.is_none_or(|min| product.price >= min)
            && query.max_price.is_none_or(|max| product.price <= max);
        let available = query.geo_zone.as_ref().map(|zone| self.available(&product.product_id, zone, now));
        let is_missing = query.in_stock && available == Some(0);
        (is_asked && !is_missing).then(|| Listed { product: product.clone().into(), available })
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
        Ok(product)
    }

    async fn product(&self, product_id: &ProductId, _freshness: Freshness) -> Result<Option<Card>> {
        Ok(self.state().products.get(product_id).cloned().map(Card::from))
    }

    async fn delete_product(&self, product_id: &ProductId) -> Result<()> {
        match self.state().products.remove(product_id) {
            Some(_) => Ok(()),
            None => Err(Refusal::ProductNotFound(product_id.clone()).into()),
        }
    }

    async fn import_product(&self, command: ImportProduct) -> Result<Done<Imported>> {
        let mut state = self.state();
        let first = state.recall(command.once.as_ref(), command.now, |outcome| match outcome {
            Outcome::Imported { product_id, created } => {
                Some(Imported { product_id: product_id.clone(), created: *created })
            }
            _ => None,
        })?;
        if let Some(first) = first {
            return Ok(first);
        }
        state.settle(command.now, usize::MAX);
        let product_id = command.product.product_id.clone();
        for (zone, on_hand) in &command.stock {
            state.check_on_hand(&product_id, zone, *on_hand, command.now)?;
        }
        for (zone, on_hand) in &command.stock {
            let change = Change::set(command.op, command.now);
            state.put_on_hand(&product_id, zone, *on_hand, change);
        }
        let created = state.put(command.product).created;
        state.remember(command.once, || Outcome::Imported { product_id: product_id.clone(), created });
        Ok(Done::first(Imported { product_id, created }))
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
                let place = (product.price.as_minor(), product.product_id.to_string());
                Some((place, state.listed(product, query, now)?))
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
