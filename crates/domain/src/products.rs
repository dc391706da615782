//! Products of the catalogue.

use crate::attributes::Attributes;
use crate::ids::{Category, ProductId};
use crate::limits::{DESCRIPTION_CHARS_MAX, InvalidField, NAME_CHARS_MAX, check_entries, check_text};
use crate::money::Money;
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Product {
    pub product_id: ProductId,
    pub name: String,
    pub category: Category,
    pub price: Money,
    pub description: String,
    pub attributes: Attributes,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// The fields of a product to replace; what is `None` stays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProductPatch {
    pub name: Option<String>,
    pub category: Option<Category>,
    pub price: Option<Money>,
    pub description: Option<String>,
    pub attributes: Option<Attributes>,
}

impl Product {
    pub fn check(&self) -> Result<(), InvalidField> {
        if self.name.is_empty() {
            return Err(InvalidField::new("name", "at least 1 character"));
        }
        check_text("name", &self.name, NAME_CHARS_MAX)?;
        check_text("description", &self.description, DESCRIPTION_CHARS_MAX)?;
        check_entries("attributes", self.attributes.iter())
    }

    /// The approximate memory size of the product, for caches that are bounded in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let text = self.product_id.as_str().len()
            + self.category.as_str().len()
            + self.name.len()
            + self.description.len()
            + self.attributes.text_len()
            + self.attributes.len() * 2 * size_of::<u32>();
        (size_of::<Self>() + text) as u64
    }

    pub fn patch(&mut self, patch: ProductPatch, now: Timestamp) {
        let ProductPatch { name, category, price, description, attributes } = patch;
        replace(&mut self.name, name);
        replace(&mut self.category, category);
        replace(&mut self.price, price);
        replace(&mut self.description, description);
        replace(&mut self.attributes, attributes);
        self.updated_at = self.updated_at.max(now);
    }
}

fn replace<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}
