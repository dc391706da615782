//! Rows of `product_by_id`: a product, its revision, and the partition it is listed in.

use std::collections::BTreeMap;

use mw_codec::intents::product::ListingKey;
use mw_domain::{Attributes, Category, Money, Product, ProductId};
use mw_store::{Result, StoreError};
use scylla::DeserializeRow;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use super::bands;
use crate::driver::time::from_cql;
use crate::revision::{NextRevision, Revision};

pub(super) const COLUMNS: &str = "product_id, name, category, price, band, description, attributes, created_at, updated_at, \
                                  deleted, rev, recent_op_tokens";

#[derive(Debug, DeserializeRow)]
pub(super) struct ProductRow {
    product_id: String,
    name: Option<String>,
    category: Option<String>,
    price: Option<i64>,
    band: Option<i32>,
    description: Option<String>,
    attributes: Option<BTreeMap<String, String>>,
    created_at: Option<CqlTimestamp>,
    updated_at: Option<CqlTimestamp>,
    deleted: Option<bool>,
    rev: Option<i64>,
    recent_op_tokens: Option<Vec<Uuid>>,
}

/// A product as its row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredProduct {
    pub(crate) product: Product,
    /// The partition of the listing.
    pub(crate) band: i32,
    /// The product has left the catalogue; the other fields are from before that. The row stays for its revision.
    pub(crate) is_deleted: bool,
    pub(crate) rev: i64,
}

impl StoredProduct {
    /// The row that a change writes, in a category that has `slices` partitions a band of prices.
    pub(super) fn new(product: Product, is_deleted: bool, slices: u32, next: &NextRevision) -> Self {
        let band = bands::band(product.price, slices);
        Self { product, band, is_deleted, rev: next.rev }
    }

    pub(super) fn listing_key(&self) -> ListingKey {
        let Product { category, price, .. } = &self.product;
        ListingKey { category: category.clone(), band: self.band, price: *price }
    }
}

impl ProductRow {
    /// The product, and the revision of its row. A row without a product has been fenced before its first change.
    pub(super) fn into_stored(self) -> Result<(Option<StoredProduct>, Revision)> {
        if self.name.is_none() && self.category.is_none() && self.created_at.is_none() {
            return Ok((None, Revision::new(self.rev, self.recent_op_tokens)));
        }
        let corrupt =
            || StoreError::Corrupt(format!("cannot read product {} in product_by_id", self.product_id));
        let product = Product {
            product_id: ProductId::parse(&self.product_id).map_err(|_| corrupt())?,
            name: self.name.ok_or_else(corrupt)?,
            category: self.category.and_then(|text| Category::parse(&text).ok()).ok_or_else(corrupt)?,
            price: self.price.map(Money::from_minor).ok_or_else(corrupt)?,
            description: self.description.unwrap_or_default(),
            attributes: self.attributes.map(Attributes::from).unwrap_or_default(),
            created_at: self.created_at.map(from_cql).ok_or_else(corrupt)?,
            updated_at: self.updated_at.map(from_cql).ok_or_else(corrupt)?,
        };
        let stored = StoredProduct {
            product,
            band: self.band.ok_or_else(corrupt)?,
            is_deleted: self.deleted.unwrap_or_default(),
            rev: self.rev.ok_or_else(corrupt)?,
        };
        Ok((Some(stored), Revision::new(self.rev, self.recent_op_tokens)))
    }
}
