//! The JSON forms of the domain's nouns, straight to and from its types.
//!
//! Answers are views that borrow what they show and are written into one buffer; bodies of requests check every value
//! while it is read, so that an error knows the path of its field.

pub(crate) mod carts;
pub(crate) mod json;
pub(crate) mod list;
pub(crate) mod orders;
pub(crate) mod products;
pub(crate) mod scalars;
pub(crate) mod schema;
pub(crate) mod sessions;
pub(crate) mod stock;
pub(crate) mod take;
