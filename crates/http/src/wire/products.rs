//! Products and their listing in JSON.

use std::collections::BTreeMap;

use mw_domain::product::ProductPatch;
use mw_domain::{Attributes, Category, Currency, GeoZone, Product, ProductId, Timestamp};
use mw_store::products::{Card, Listed};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::scalars::{At, MoneyView};
use super::take::MoneyBody;
use super::{json, schema, take};
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

    /// About as many bytes as the JSON has.
    pub(crate) fn size(&self) -> usize {
        384 + self.name.len()
            + self.description.len()
            + self.attributes.text_len()
            + self.attributes.len() * 8
    }
}

/// The JSON of a card, written when it is shown for the first time. A shop has one currency.
pub(crate) fn shown(card: &Card, currency: Currency) -> &[u8] {
    card.shown(|product| {
        let view = ProductView::new(product, &currency);
        let mut out = Vec::with_capacity(view.size());
        match json::write(&mut out, &view) {
            Ok(()) => out,
            Err(error) => unreachable!("all of a card has a form in JSON: {error}"),
        }
    })
}

/// Adds the JSON of a card in a listing.
pub(crate) fn write_listed(out: &mut Vec<u8>, listed: &Listed, currency: Currency) {
    let card = shown(&listed.product, currency);
    let Some((available, (end, members))) = listed.available.zip(card.split_last()) else {
        return out.extend_from_slice(card);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cursor::Scope;
    use crate::wire::list;
    use mw_domain::Money;
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
    fn a_page_of_cards_is_written_as_its_views_would_be() {
        let currency = Currency::parse("RUB").unwrap();
        let scope = Scope::of("category");
        let items = vec![listed("a", None), listed("b\\", Some(0)), listed("c", Some(u64::MAX))];
        let pages = [
            Page { items: items.clone(), next: Some(Position(b"from here".to_vec())) },
            Page { items: items.clone(), next: None },
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
            let written = list::write(0, &page, &scope, |out, listed| write_listed(out, listed, currency));
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&written).unwrap(), expected);
        }
        let card = shown(&items[0].product, currency);
        assert_eq!(card, serde_json::to_vec(&ProductView::new(&items[0].product, &currency)).unwrap());
    }
}
