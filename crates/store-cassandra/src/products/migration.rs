//! Products of a live migration: written over what is stored of them, and read back with their place in the catalogue.
//!
//! The product's own row says where it is listed. So it is written last: after a crash in between the repeated write finds the
//! same row and deletes the same row of the listing.

use std::collections::BTreeMap;

use mw_domain::{Product, ProductId};
use mw_store::Result;
use mw_store::migration::ProductViews;
use scylla::statement::prepared::PreparedStatement;

use super::bands;
use super::rows::StoredProduct;
use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::to_cql;
use crate::migration::Stamp;
use crate::schema::tables::Table;

/// The revision of a migrated product: the first change of the service makes it the second one.
const REV: i64 = 1;

#[derive(Debug)]
pub(crate) struct Statements {
    put: PreparedStatement,
    mark_deleted: PreparedStatement,
    listed: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let put = "UPDATE {} USING TIMESTAMP ? SET name = ?, category = ?, price = ?, band = ?, description = ?, \
                   attributes = ?, created_at = ?, updated_at = ?, deleted = false, rev = ? WHERE product_id = ?";
        let mark_deleted = "UPDATE {} USING TIMESTAMP ? SET deleted = true WHERE product_id = ?";
        let listed = "SELECT price, product_id, name, description, attributes, created_at, updated_at FROM {} \
             WHERE category = ? AND band = ? AND price = ? AND product_id = ?";
        Ok(Self {
            put: cql.prepare(Table::ProductById, Access::Write, put).await?,
            mark_deleted: cql.prepare(Table::ProductById, Access::Write, mark_deleted).await?,
            listed: cql.prepare(Table::ProductsByCategory, Access::Read, listed).await?,
        })
    }
}

impl CassandraStore {
    /// Writes a product over what is stored of it.
    pub(crate) async fn migrate_product(&self, product: &Product, stamp: Stamp) -> Result<()> {
        self.bucketing.keep_fresh(&self.cql).await?;
        let (before, _) = self.stored_product(&self.products.read, &product.product_id).await?;
        let current = before.as_ref().filter(|stored| !stored.is_deleted);
        let plan =
            self.bucketing.at(Table::ProductsByCategory, product.category.as_str(), product.updated_at);
        let band = bands::band(product.price, plan.buckets);
        let stored = StoredProduct { product: product.clone(), band, is_deleted: false, rev: REV };
        self.register_partition(&stored, current).await?;
        let previous = current.map(StoredProduct::listing_key);
        self.write_listing(&stored, previous.as_ref(), stamp.get()).await?;
        let attributes: BTreeMap<&str, &str> = product.attributes.iter().collect();
        let values = (
            stamp.get(),
            &product.name,
            product.category.as_str(),
            product.price.as_minor(),
            band,
            &product.description,
            attributes,
            to_cql(product.created_at),
            to_cql(product.updated_at),
            REV,
            product.product_id.as_str(),
        );
        self.cql.write(&self.migration().await?.products.put, values).await
    }

    /// Takes a product out of the catalogue. Its row stays, marked as deleted, as after a deletion by the service.
    pub(crate) async fn remove_migrated_product(&self, product_id: &ProductId, stamp: Stamp) -> Result<()> {
        let (before, _) = self.stored_product(&self.products.read, product_id).await?;
        let Some(stored) = before.filter(|stored| !stored.is_deleted) else { return Ok(()) };
        let gone = StoredProduct { is_deleted: true, ..stored };
        self.write_listing(&gone, None, stamp.get()).await?;
        let values = (stamp.get(), product_id.as_str());
        self.cql.write(&self.migration().await?.products.mark_deleted, values).await
    }

    pub(crate) async fn product_views(&self, product_id: &ProductId) -> Result<ProductViews> {
        let levels = self.stored_levels(product_id).await?;
        let (stored, _) = self.stored_product(&self.products.read, product_id).await?;
        let Some(stored) = stored.filter(|stored| !stored.is_deleted) else {
            return Ok(ProductViews { levels, ..ProductViews::default() });
        };
        let key = stored.listing_key();
        let values = (key.category.as_str(), key.band, key.price.as_minor(), product_id.as_str());
        let row = self.cql.first(&self.migration().await?.products.listed, values).await?;
        let listed = row.map(|row| super::listing::read_row(row, &key.category)).transpose()?;
        let is_registered = self.is_band_listed(&key.category, key.band).await?;
        let is_unlisted = !is_registered || listed.as_ref() != Some(&stored.product);
        Ok(ProductViews { product: Some(stored.product), is_unlisted, levels })
    }
}
