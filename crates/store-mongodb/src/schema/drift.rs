//! The differences between the servers and the schema.

use std::fmt;

use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};

use super::servers::{Found, FoundCollection, key_text};
use super::spec::index_options;
use super::{CollectionSpec, Schema, SchemaError};
use crate::collections::IndexSpec;

/// Documents without the shard key are counted up to here.
const COUNT_LIMIT: u64 = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drift {
    NoCollection {
        collection: String,
    },
    Validator {
        collection: String,
    },
    NoIndex {
        collection: String,
        index: String,
    },
    Index {
        collection: String,
        index: String,
        found: String,
    },
    NotSharded {
        collection: String,
        configured: String,
    },
    ShardKey {
        collection: String,
        configured: String,
        found: String,
    },
    /// Documents that lack the shard key, as those of the other shape do: they all lie in one place.
    WithoutKey {
        collection: String,
        field: String,
        documents: u64,
    },
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCollection { collection } => write!(f, "collection {collection}: is missing"),
            Self::Validator { collection } => write!(f, "collection {collection}: has another validator"),
            Self::NoIndex { collection, index } => write!(f, "index {index} of {collection}: is missing"),
            Self::Index { collection, index, found } => {
                write!(f, "index {index} of {collection}: is {found}; drop it and run `mw schema apply`")
            }
            Self::NotSharded { collection, configured } => write!(
                f,
                "collection {collection}: is not sharded (configured: {configured}); it has data, so `mw shards reshard \
                 {collection} --key '{configured}'` shards it"
            ),
            Self::ShardKey { collection, configured, found } => {
                write!(f, "collection {collection}: is sharded by {found}, and {configured} is configured")
            }
            Self::WithoutKey { collection, field, documents } => {
                let more = if *documents == COUNT_LIMIT { " or more" } else { "" };
                write!(
                    f,
                    "collection {collection}: {documents}{more} documents have no {field}, the shard key, as those of another \
                     program or shape: they all lie on one shard"
                )
            }
        }
    }
}

impl Schema {
    pub async fn drift(&self, client: &Client) -> Result<Vec<Drift>, SchemaError> {
        let names: Vec<&'static str> = self.collections.iter().map(|it| it.name).collect();
        let found = Found::read(client, &self.database, &names).await?;
        let mut drifts = compare(&self.collections, &found);
        for (name, collection) in &found.collections {
            if let Some(key) = &collection.shard_key
                && let Some(field) = key.keys().next().filter(|field| *field != "_id")
            {
                let documents = self.without(client, name, field).await?;
                if documents > 0 {
                    let (collection, field) = (name.clone(), field.clone());
                    drifts.push(Drift::WithoutKey { collection, field, documents });
                }
            }
        }
        Ok(drifts)
    }

    /// Documents in which the field is missing or null, through the index of the shard key.
    async fn without(&self, client: &Client, name: &str, field: &str) -> Result<u64, SchemaError> {
        let collection = client.database(&self.database).collection::<Document>(name);
        let counting = collection.count_documents(doc! { field: Bson::Null }).limit(COUNT_LIMIT);
        counting.await.map_err(SchemaError::doing(format!("count documents of {name} without {field}")))
    }
}

fn compare(specs: &[CollectionSpec], found: &Found) -> Vec<Drift> {
    let mut drifts = Vec::new();
    for spec in specs {
        match found.collections.get(spec.name) {
            Some(collection) => compare_collection(spec, collection, found.is_sharded_cluster, &mut drifts),
            None => drifts.push(Drift::NoCollection { collection: spec.name.to_owned() }),
        }
    }
    drifts
}

fn compare_collection(
    spec: &CollectionSpec,
    found: &FoundCollection,
    is_sharded_cluster: bool,
    drifts: &mut Vec<Drift>,
) {
    let collection = spec.name.to_owned();
    if spec.validator.is_some() && spec.validator != found.validator {
        drifts.push(Drift::Validator { collection: collection.clone() });
    }
    for index in &spec.indexes {
        let (collection, name) = (collection.clone(), index.name.to_owned());
        match found.indexes.get(index.name) {
            None => drifts.push(Drift::NoIndex { collection, index: name }),
            Some(other) if !is_same(index, other) => {
                drifts.push(Drift::Index { collection, index: name, found: described(other) });
            }
            Some(_) => {}
        }
    }
    if let (Some(key), true) = (&spec.shard_key, is_sharded_cluster) {
        let configured = key.to_string();
        match found.shard_key.as_ref().map(key_text) {
            None => drifts.push(Drift::NotSharded { collection, configured }),
            Some(other) if other != configured => {
                drifts.push(Drift::ShardKey { collection, configured, found: other });
            }
            Some(_) => {}
        }
    }
}

fn is_same(index: &IndexSpec, found: &Document) -> bool {
    let keys = found.get_document("key").map(key_text).unwrap_or_default();
    keys == key_text(&index.keys) && options_of(found) == index_options(index)
}

/// The options that the schema sets; a server may store a number as another type.
fn options_of(found: &Document) -> Document {
    let mut options = Document::new();
    if let Some(seconds) = found.get("expireAfterSeconds") {
        let seconds = seconds.as_i32().or(seconds.as_i64().and_then(|it| i32::try_from(it).ok()));
        options.insert("expireAfterSeconds", seconds);
    }
    if let Ok(partial) = found.get_document("partialFilterExpression") {
        options.insert("partialFilterExpression", partial.clone());
    }
    options
}

fn described(found: &Document) -> String {
    let keys = found.get_document("key").map(key_text).unwrap_or_default();
    format!("{{{keys}}} {}", options_of(found)).trim_end_matches(" {}").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::schema::spec::index_document;

    /// Servers that have exactly what the schema wants.
    fn equal(specs: &[CollectionSpec]) -> Found {
        let collection = |spec: &CollectionSpec| {
            let indexes = spec.indexes.iter().map(|index| (index.name.to_owned(), index_document(index)));
            let found = FoundCollection {
                validator: spec.validator.clone(),
                indexes: indexes.collect(),
                shard_key: spec.shard_key.as_ref().map(crate::shard_keys::ShardKey::to_document),
            };
            (spec.name.to_owned(), found)
        };
        Found { is_sharded_cluster: true, collections: specs.iter().map(collection).collect() }
    }

    #[test]
    fn every_difference_is_listed() {
        let schema = Schema::new(&Options::new("mongodb://127.0.0.1"));
        let specs = schema.collections();
        let mut found = equal(specs);
        assert_eq!(compare(specs, &found), []);
        found.collections.remove("settings");
        let orders = found.collections.get_mut("orders").unwrap();
        orders.validator = None;
        orders.shard_key = Some(doc! { "_id": "hashed" });
        let carts = found.collections.get_mut("carts").unwrap();
        carts.indexes.remove("owner_status");
        carts.indexes.get_mut("purge_at").unwrap().insert("expireAfterSeconds", 60_i64);
        found.collections.get_mut("products").unwrap().shard_key = None;
        let mut listed: Vec<String> = compare(specs, &found).iter().map(ToString::to_string).collect();
        listed.sort();
        assert_eq!(
            listed,
            [
                "collection orders: has another validator",
                "collection orders: is sharded by _id: hashed, and customer_id: hashed is configured",
                "collection products: is not sharded (configured: _id: hashed); it has data, so `mw shards reshard products \
                 --key '_id: hashed'` shards it",
                "collection settings: is missing",
                "index owner_status of carts: is missing",
                "index purge_at of carts: is {purge_at: 1} { \"expireAfterSeconds\": 60 }; drop it and run `mw schema \
                 apply`",
            ]
        );
    }
}
