//! The documents of the shop, in both shapes: what is read from a document of any program, and what is written.
//!
//! Reading is lenient where the papers leave room (missing optional fields, `ObjectId` or text, double or decimal) and
//! strict otherwise: a document that breaks a limit of the API is unreadable.

pub(crate) mod carts;
pub(crate) mod fields;
pub(crate) mod ids;
pub(crate) mod money;
pub(crate) mod products;
pub(crate) mod sessions;
pub(crate) mod times;

/// The shape in which documents are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// `customer_id`, `stocks[{geozone}]`, `attributes{}`, lines with quantities.
    #[default]
    Customer,
    /// `user_id`, `stock[{zone}]`, `attributes[{key, value}]`, one item per unit.
    User,
}

impl Shape {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Customer => "customer",
            Self::User => "user",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Customer, Self::User].into_iter().find(|shape| shape.as_str() == text)
    }
}

/// Why a document cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub(crate) struct Unreadable {
    pub(crate) field: &'static str,
    pub(crate) problem: &'static str,
}

impl Unreadable {
    pub(crate) const fn missing(field: &'static str) -> Self {
        Self { field, problem: "missing" }
    }

    pub(crate) const fn invalid(field: &'static str) -> Self {
        Self { field, problem: "not a value that the shop can have" }
    }
}
