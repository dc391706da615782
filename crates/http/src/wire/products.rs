//! Products and their listing in JSON.

use std::collections::BTreeMap;

use mw_domain::product::ProductPatch;
use mw_domain::{Attributes, Category, Currency, GeoZone, Product, ProductId, Timestamp};
use mw_store::products::Listed;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::scalars::{At, MoneyView};
use super::take::MoneyBody;
use super::{schema, take};
use crate::error::Problem;

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Product)]
pub(crate) struct ProductView<'a> {
    #[schema(value_type = schema::Name)]
    product_id: &'a str,
    name: &'a str,
    #[schema(value_type = schema::CategoryName)]
    category: &'a str,
    #[schema(value_type = MoneyView)]
    price: MoneyView<'a>,
    description: &'a str,
    #[schema(value_type = BTreeMap<String, String>)]
    #[serde(serialize_with = "attributes")]
    attributes: &'a Attributes,
    #[schema(value_type = schema::Time)]
    created_at: At,
    #[schema(value_type = schema::Time)]
    updated_at: At,
    /// In a listing with `geo_zone`: units available there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u64, required = false)]
    available: Option<u64>,
}

fn attributes<S: Serializer>(attributes: &Attributes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(attributes.iter())
}

impl<'a> ProductView<'a> {
    pub(crate) fn new(product: &'a Product, currency: &'a Currency) -> Self {
        Self {
            product_id: product.product_id.as_str(),
            name: &product.name,
            category: product.category.as_str(),
            price: MoneyView::new(product.price, currency),
            description: &product.description,
            attributes: &product.attributes,
            created_at: At(product.created_at),
            updated_at: At(product.updated_at),
            available: None,
        }
    }

    pub(crate) fn listed(listed: &'a Listed, currency: &'a Currency) -> Self {
        Self { available: listed.available, ..Self::new(&listed.product, currency) }
    }

    /// About as many bytes as the JSON has.
    pub(crate) fn size(&self) -> usize {
        384 + self.name.len()
            + self.description.len()
            + self.attributes.text_len()
            + self.attributes.len() * 8
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CategoryItem)]
pub(crate) struct CategoryView<'a> {
    #[schema(value_type = schema::CategoryName)]
    category: &'a str,
}

impl<'a> From<&'a Category> for CategoryView<'a> {
    fn from(category: &'a Category) -> Self {
        Self { category: category.as_str() }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PutProduct)]
pub(crate) struct ProductBody {
    #[schema(min_length = 1, max_length = 256)]
    name: String,
    #[serde(deserialize_with = "take::id")]
    #[schema(value_type = schema::CategoryName)]
    category: Category,
    #[schema(value_type = MoneyView)]
    price: MoneyBody,
    #[schema(max_length = 20_000)]
    description: Option<String>,
    /// At most 64; keys of 1 to 64 characters, values of up to 1024.
    attributes: Option<BTreeMap<String, String>>,
}

impl ProductBody {
    pub(crate) fn product(
        self,
        product_id: ProductId,
        currency: Currency,
        now: Timestamp,
    ) -> Result<Product, Problem> {
        let product = Product {
            product_id,
            price: self.price.amount("price", currency)?,
            name: self.name,
            category: self.category,
            description: self.description.unwrap_or_default(),
            attributes: self.attributes.unwrap_or_default().into(),
            created_at: now,
            updated_at: now,
        };
        product.check().map_err(|invalid| Problem::field(&invalid.field, invalid.detail))?;
        Ok(product)
    }
}

/// What is absent stays as it is; `attributes` are replaced as a whole.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PatchProduct)]
pub(crate) struct PatchBody {
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, min_length = 1, max_length = 256)]
    name: Option<String>,
    #[serde(default, deserialize_with = "present_category")]
    #[schema(value_type = schema::CategoryName, required = false)]
    category: Option<Category>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = MoneyView, required = false)]
    price: Option<MoneyBody>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = String, required = false, max_length = 20_000)]
    description: Option<String>,
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = BTreeMap<String, String>, required = false)]
    attributes: Option<BTreeMap<String, String>>,
}

/// No null: a card has all of its fields, so there is nothing that null could remove.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

fn present_category<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Category>, D::Error> {
    take::id(deserializer).map(Some)
}

impl PatchBody {
    pub(crate) fn patch(self, currency: Currency) -> Result<ProductPatch, Problem> {
        let price = self.price.map(|price| price.amount("price", currency)).transpose()?;
        Ok(ProductPatch {
            name: self.name,
            category: self.category,
            price,
            description: self.description,
            attributes: self.attributes.map(Attributes::from),
        })
    }
}

/// One line of an import.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ImportLine)]
pub(crate) struct ImportBody {
    #[serde(deserialize_with = "take::id")]
    #[schema(value_type = schema::Name)]
    product_id: ProductId,
    #[schema(min_length = 1, max_length = 256)]
    name: String,
    #[serde(deserialize_with = "take::id")]
    #[schema(value_type = schema::CategoryName)]
    category: Category,
    #[schema(value_type = MoneyView)]
    price: MoneyBody,
    #[schema(max_length = 20_000)]
    description: Option<String>,
    attributes: Option<BTreeMap<String, String>>,
    /// Units on hand by zone; what is absent stays as it is.
    #[serde(default, deserialize_with = "take::optional_stock")]
    #[schema(value_type = Option<BTreeMap<String, u64>>)]
    stock: Option<Vec<(GeoZone, u64)>>,
}

impl ImportBody {
    pub(crate) fn product(
        self,
        currency: Currency,
        now: Timestamp,
    ) -> Result<(Product, Vec<(GeoZone, u64)>), Problem> {
        let body = ProductBody {
            name: self.name,
            category: self.category,
            price: self.price,
            description: self.description,
            attributes: self.attributes,
        };
        Ok((body.product(self.product_id, currency, now)?, self.stock.unwrap_or_default()))
    }
}

/// What became of one line.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ImportResult)]
pub(crate) struct ImportView<'a> {
    /// From 1; blank lines count and have no result.
    pub(crate) line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Name, required = false)]
    pub(crate) product_id: Option<&'a str>,
    #[schema(value_type = ImportStatus)]
    pub(crate) status: &'static str,
    /// Of a failed line: one of the problem codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub(crate) code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub(crate) detail: Option<&'a str>,
}

#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum ImportStatus {
    Created,
    Replaced,
    Failed,
}
