//! The catalogue's cards. Amounts are in the currency that the header names.

use std::collections::BTreeMap;

use mw_domain::{Category, Money, Product, ProductId, Timestamp};
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
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
    #[serde(with = "one")]
    created_at: Timestamp,
    #[serde(with = "one")]
    updated_at: Timestamp,
}
form!(Product as ProductForm);
