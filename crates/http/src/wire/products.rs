//! Products and their listing in JSON.

use std::collections::BTreeMap;

use mw_domain::products::ProductPatch;
use mw_domain::{Attributes, Category, Currency, GeoZone, Product, ProductId};
use mw_shop::ProductDraft;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::deserialize::MoneyBody;
use super::scalars::{At, MoneyView};
use super::{deserialize, schema};
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

    /// An estimate of the bytes of the JSON.
    pub(crate) fn size(&self) -> usize {
        384 + self.name.len()
            + self.description.len()
            + self.attributes.text_len()
            + self.attributes.len() * 8
    }
}

/// Adds the JSON of a product in a listing: with `available` as its last member where the listing has a zone.
pub(crate) fn write_listed(out: &mut Vec<u8>, product: &[u8], available: Option<u64>) {
    let Some((available, (end, members))) = available.zip(product.split_last()) else {
        return out.extend_from_slice(product);
    };
    out.extend_from_slice(members);
    out.extend_from_slice(b",\"available\":");
    out.extend_from_slice(itoa::Buffer::new().format(available).as_bytes());
    out.push(*end);
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
    #[serde(deserialize_with = "deserialize::id")]
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
    pub(crate) fn draft(self, product_id: ProductId, currency: Currency) -> Result<ProductDraft, Problem> {
        Ok(ProductDraft {
            product_id,
            price: self.price.amount("price", currency)?,
            name: self.name,
            category: self.category,
            description: self.description.unwrap_or_default(),
            attributes: self.attributes.unwrap_or_default().into(),
        })
    }
}

/// An absent field stays as it is; `attributes` are replaced as a whole.
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

/// Refuses null: a product has all of its fields, so null could remove nothing.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

fn present_category<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Category>, D::Error> {
    deserialize::id(deserializer).map(Some)
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
    #[serde(deserialize_with = "deserialize::id")]
    #[schema(value_type = schema::Name)]
    product_id: ProductId,
    #[schema(min_length = 1, max_length = 256)]
    name: String,
    #[serde(deserialize_with = "deserialize::id")]
    #[schema(value_type = schema::CategoryName)]
    category: Category,
    #[schema(value_type = MoneyView)]
    price: MoneyBody,
    #[schema(max_length = 20_000)]
    description: Option<String>,
    attributes: Option<BTreeMap<String, String>>,
    /// Units on hand by zone; an absent zone stays as it is.
    #[serde(default, deserialize_with = "deserialize::optional_stock")]
    #[schema(value_type = Option<BTreeMap<String, u64>>)]
    stock: Option<Vec<(GeoZone, u64)>>,
}

impl ImportBody {
    pub(crate) fn draft(self, currency: Currency) -> Result<(ProductDraft, Vec<(GeoZone, u64)>), Problem> {
        let body = ProductBody {
            name: self.name,
            category: self.category,
            price: self.price,
            description: self.description,
            attributes: self.attributes,
        };
        Ok((body.draft(self.product_id, currency)?, self.stock.unwrap_or_default()))
    }
}

/// The result of one line.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::Scope;
    use crate::wire::list;
    use mw_domain::{Money, Timestamp};
    use mw_store::products::Listed;
    use mw_store::{Page, Position};

    fn listed(name: &str, available: Option<u64>) -> Listed {
        let product = Product {
            product_id: ProductId::parse("a-1").unwrap(),
            name: name.to_owned(),
            category: Category::parse("tea").unwrap(),
            price: Money::from_minor(12_345),
            description: "два \"слова\"\n".to_owned(),
            attributes: BTreeMap::from([("leaf".to_owned(), "green".to_owned())]).into(),
            created_at: Timestamp::EPOCH,
            updated_at: Timestamp::from_millis(1),
        };
        Listed { product: product.into(), available }
    }

    #[test]
    fn a_page_of_products_is_written_as_its_views_would_be() {
        let currency = Currency::parse("RUB").unwrap();
        let scope = Scope::of("category");
        let items = vec![listed("a", None), listed("b\\", Some(0)), listed("c", Some(u64::MAX))];
        let pages = [
            Page { items: items.clone(), next: Some(Position(b"from here".to_vec())) },
            Page { items, next: None },
            Page { items: Vec::new(), next: None },
        ];
        for page in pages {
            let view = |listed: &Listed| {
                let view = ProductView {
                    available: listed.available,
                    ..ProductView::new(&listed.product, &currency)
                };
                serde_json::to_value(&view).unwrap()
            };
            let expected = serde_json::to_vec(&list::ListView::new(&page, &scope, view)).unwrap();
            let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
            let written = list::write(0, &page, &scope, |out, listed| {
                let product = serde_json::to_vec(&ProductView::new(&listed.product, &currency)).unwrap();
                write_listed(out, &product, listed.available);
            });
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&written).unwrap(), expected);
        }
    }
}
