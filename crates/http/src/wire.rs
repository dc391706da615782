//! The JSON of the domain's nouns, straight to and from its types.
//!
//! A response is a view (`…View`) that borrows the domain's value and is written into one buffer. A request is a body
//! (`…Body`) whose values are validated while they are parsed, so that an error has the path of its field.

pub(crate) mod backup;
pub(crate) mod carts;
pub(crate) mod changes;
pub(crate) mod cluster;
pub(crate) mod deserialize;
pub(crate) mod json;
pub(crate) mod list;
pub(crate) mod orders;
pub(crate) mod partitions;
pub(crate) mod products;
pub(crate) mod scalars;
pub(crate) mod schema;
pub(crate) mod sessions;
pub(crate) mod stock;
