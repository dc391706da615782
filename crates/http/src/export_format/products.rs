//! Products. Amounts are in the currency that the header names.

use mw_domain::{Attributes, Category, Money, Product, ProductId, Timestamp};
use serde::{Deserialize, Serialize};

use super::form::{form, one};

#[derive(Serialize, Deserialize)]
#[serde(remote = "Product", deny_unknown_fields)]
struct ProductForm {
    #[serde(with = "one")]
    product_id: ProductId,
    name: String,
    #[serde(with = "one")]
    category: Category,
    #[serde(with = "one")]
    price: Money,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    description: String,
    #[serde(default, skip_serializing_if = "Attributes::is_empty", with = "map")]
    attributes: Attributes,
    #[serde(with = "one")]
    created_at: Timestamp,
    #[serde(with = "one")]
    updated_at: Timestamp,
}
form!(Product as ProductForm);

/// Attributes are an object of text.
mod map {
    use std::collections::BTreeMap;

    use mw_domain::Attributes;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        attributes: &Attributes,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(attributes.iter())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Attributes, D::Error> {
        BTreeMap::<String, String>::deserialize(deserializer).map(Attributes::from)
    }
}
