//! A card as its row keeps it: with its revision, its last writers, and where it is listed.

use std::collections::BTreeMap;

use mw_domain::{Attributes, Category, Money, Product, ProductId};
use mw_store::{Result, StoreError};
use scylla::DeserializeRow;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use super::place::{self, Place};
use crate::guard::{Guard, Next};
use crate::time::from_cql;

pub(super) const COLUMNS: &str = "product_id, name, category, price, band, description, attributes, created_at, updated_at, \
                                  deleted, rev, marks";

#[derive(Debug, DeserializeRow)]
pub(super) struct Row {
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
    marks: Option<Vec<Uuid>>,
}

/// A card, and the change that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) product: Product,
    pub(super) band: i32,
    /// It left the catalogue; the rest is what it was then.
    pub(super) is_deleted: bool,
    pub(super) rev: i64,
}

impl Card {
    /// The card that a change leads to, in a category that is cut into `slices` partitions a band of prices.
    pub(super) fn new(product: Product, is_deleted: bool, slices: u32, change: &Next) -> Self {
        let band = place::band(product.price, slices);
        Self { product, band, is_deleted, rev: change.rev }
    }

    pub(super) fn place(&self) -> Place {
        Place::of(&self.product, self.band)
    }
}

impl Row {
    pub(super) fn read(self) -> Result<(Card, Guard)> {
        let damaged = || StoreError::Corrupt(format!("the card of product {}", self.product_id));
        let product = Product {
            product_id: ProductId::parse(&self.product_id).map_err(|_| damaged())?,
            name: self.name.ok_or_else(damaged)?,
            category: self.category.and_then(|text| Category::parse(&text).ok()).ok_or_else(damaged)?,
            price: self.price.map(Money::from_minor).ok_or_else(damaged)?,
            description: self.description.unwrap_or_default(),
            attributes: self.attributes.map(Attributes::from).unwrap_or_default(),
            created_at: self.created_at.map(from_cql).ok_or_else(damaged)?,
            updated_at: self.updated_at.map(from_cql).ok_or_else(damaged)?,
        };
        let card = Card {
            product,
            band: self.band.ok_or_else(damaged)?,
            is_deleted: self.deleted.unwrap_or_default(),
            rev: self.rev.ok_or_else(damaged)?,
        };
        Ok((card, Guard::new(self.rev, self.marks)))
    }
}
