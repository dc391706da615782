//! What every collection must have.

use mongodb::bson::{Document, doc};

use super::validators;
use crate::Options;
use crate::changes::{self, CHANGES};
use crate::collections::{CART_HISTORY, CARTS, IndexSpec, ORDERS, PRODUCT_IDS, PRODUCTS, SETTINGS, indexes};
use crate::sales;
use crate::shard_keys::ShardKey;
use crate::shards::{self, AUDIT_LOG, CALL_COUNTS};

/// Collections of a few documents, and the feed, which is one sequence: they stay on one shard.
const UNSHARDED: &[&str] = &[SETTINGS, sales::IMPORTS, AUDIT_LOG, CALL_COUNTS, CHANGES];

/// Sharded collections that need no index besides that of `_id`.
const WITHOUT_INDEXES: &[&str] = &[PRODUCT_IDS, sales::UNLISTED_STOCK];

/// Keys of the engine's own collections that are not the default.
const OWN_KEYS: &[(&str, &str)] = &[
    // All changes of an owner's carts lie together, as they are read.
    (CART_HISTORY, "owner: hashed"),
    // The id begins with the product: rows of a product and zone are neighbours, and a range is split by products.
    (sales::LEDGER, "_id: 1"),
];

/// Of the engine's own collections, which are read by `_id`.
const OWN_KEY: &str = "_id: hashed";

#[derive(Debug, Clone, PartialEq)]
pub struct CollectionSpec {
    pub name: &'static str,
    /// Only of collections that other programs write too.
    pub validator: Option<Document>,
    pub indexes: Vec<IndexSpec>,
    /// On a sharded cluster; `None`: it stays on one shard.
    pub shard_key: Option<ShardKey>,
}

/// The collections of the configured shop, the papers' first.
pub(super) fn collections(options: &Options) -> Vec<CollectionSpec> {
    let mut all = all_indexes();
    let mut names = vec![ORDERS, PRODUCTS, CARTS];
    let others = WITHOUT_INDEXES.iter().chain(UNSHARDED).copied();
    for name in all.iter().map(|index| index.collection).chain(others) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let collection = |name: &'static str| {
        let indexes = all.extract_if(.., |index| index.collection == name).collect();
        CollectionSpec { name, validator: validators::of(name), indexes, shard_key: shard_key(name, options) }
    };
    names.into_iter().map(collection).collect()
}

fn all_indexes() -> Vec<IndexSpec> {
    [indexes(), sales::indexes(), changes::indexes(), shards::indexes()].concat()
}

fn shard_key(name: &str, options: &Options) -> Option<ShardKey> {
    let keys = &options.shard_keys;
    match name {
        ORDERS => Some(keys.orders.clone()),
        PRODUCTS => Some(keys.products.clone()),
        CARTS => Some(keys.carts.clone()),
        name if UNSHARDED.contains(&name) => None,
        name => {
            let own = OWN_KEYS.iter().find(|(collection, _)| *collection == name);
            ShardKey::parse(own.map_or(OWN_KEY, |(_, key)| key))
        }
    }
}

/// The options of an index besides its name.
pub(crate) fn index_options(index: &IndexSpec) -> Document {
    let mut options = Document::new();
    if index.ttl {
        options.insert("expireAfterSeconds", 0);
    }
    if let Some(partial) = &index.partial {
        options.insert("partialFilterExpression", partial.clone());
    }
    options
}

/// The index as `createIndexes` takes it.
pub(super) fn index_document(index: &IndexSpec) -> Document {
    let mut document = doc! { "key": index.keys.clone(), "name": index.name };
    document.extend(index_options(index));
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collection_is_there_once_with_its_indexes() {
        let specs = collections(&Options::new("mongodb://127.0.0.1"));
        let mut names: Vec<&str> = specs.iter().map(|spec| spec.name).collect();
        assert_eq!(names.get(..3), Some(&[ORDERS, PRODUCTS, CARTS][..]));
        assert_eq!(specs.iter().map(|spec| spec.indexes.len()).sum::<usize>(), all_indexes().len());
        let mut index_names: Vec<_> = all_indexes().iter().map(|it| (it.collection, it.name)).collect();
        index_names.sort_unstable();
        assert!(
            index_names.windows(2).all(|pair| pair[0] != pair[1]),
            "an index is listed twice: {index_names:?}"
        );
        for index in [(ORDERS, "customer_created"), (sales::LEDGER, "hold_end"), (CARTS, "owner_status")] {
            assert!(index_names.contains(&index), "{index:?}");
        }
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        let key = |name| specs.iter().find(|spec| spec.name == name).unwrap().shard_key.clone();
        assert_eq!(key(CART_HISTORY).unwrap().to_string(), "owner: hashed");
        assert_eq!(key("idempotency_keys").unwrap().to_string(), "_id: hashed");
        assert_eq!(key(SETTINGS), None);
    }
}
