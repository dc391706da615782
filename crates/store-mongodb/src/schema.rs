//! The schema: collections with validators, indexes and shard keys, as the configuration wants them; applied to servers and
//! compared with them.
//!
//! Validators only warn: a document of another program is never refused. Nothing is dropped, and no collection that has data
//! is sharded or resharded here (`mw shards reshard` does that).

pub(crate) mod apply;
mod drift;
pub(crate) mod servers;
mod spec;
mod validators;

pub use drift::Drift;
pub use spec::CollectionSpec;

use std::fmt::Write as _;

use mongodb::bson::Document;

use crate::Options;
use crate::collections::IndexSpec;

/// The schema of the configured database.
#[derive(Debug, Clone)]
pub struct Schema {
    pub(crate) database: String,
    pub(crate) collections: Vec<CollectionSpec>,
}

/// Called before each command of [`Schema::apply`], with what it does.
pub type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error(
        "the database {database} has no schema of this shop, {missing}: run `mw schema apply --store mongodb`, or start with \
         --apply-schema"
    )]
    Missing { database: String, missing: String },

    #[error(
        "store.mongodb.shard_keys.{collection}: the collection {collection} is sharded by \"{found}\" and not by \
         \"{configured}\": configure \"{found}\", or run `mw shards reshard {collection} --key '{configured}'`"
    )]
    ShardKey { collection: String, configured: String, found: String },

    #[error("{doing}: {cause}")]
    Server { doing: String, cause: Box<mongodb::error::Error> },
}

impl SchemaError {
    pub(crate) fn doing(what: impl Into<String>) -> impl FnOnce(mongodb::error::Error) -> Self {
        let doing = what.into();
        move |error| Self::Server { doing, cause: Box::new(error) }
    }
}

impl Schema {
    pub fn new(options: &Options) -> Self {
        Self { database: options.database.clone(), collections: spec::collections(options) }
    }

    pub fn database(&self) -> &str {
        &self.database
    }

    pub fn collections(&self) -> &[CollectionSpec] {
        &self.collections
    }

    pub(crate) fn namespace(&self, collection: &str) -> String {
        format!("{}.{collection}", self.database)
    }

    /// The commands for mongosh that create this schema on empty servers; no server is asked.
    pub fn plan(&self) -> String {
        let mut text = format!("use {}\n", self.database);
        for collection in &self.collections {
            let _ = writeln!(text, "\n{}", plan_create(collection));
            if let Some(key) = &collection.shard_key {
                let namespace = self.namespace(collection.name);
                let key = key.to_document();
                let _ = writeln!(text, "sh.shardCollection(\"{namespace}\", {key})  // on a sharded cluster");
            }
            for index in &collection.indexes {
                let _ = writeln!(text, "{}", plan_index(index));
            }
        }
        text
    }
}

fn plan_create(collection: &CollectionSpec) -> String {
    let name = collection.name;
    match &collection.validator {
        Some(validator) => format!(
            "db.createCollection(\"{name}\", {{ validator: {validator}, validationLevel: \"moderate\", \
             validationAction: \"warn\" }})"
        ),
        None => format!("db.createCollection(\"{name}\")"),
    }
}

fn plan_index(index: &IndexSpec) -> String {
    let IndexSpec { collection, name, keys, .. } = index;
    let options: Document = spec::index_options(index);
    let rest = options.iter().fold(String::new(), |mut text, (key, value)| {
        let _ = write!(text, ", {key}: {value}");
        text
    });
    format!("db.{collection}.createIndex({keys}, {{ name: \"{name}\"{rest} }})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard_keys::ShardKey;

    #[test]
    fn the_plan_has_a_line_for_every_collection_key_and_index() {
        let mut options = Options::new("mongodb://127.0.0.1");
        options.database = "shop".to_owned();
        options.shard_keys.products = ShardKey::parse("category: 1, _id: 1").unwrap();
        let plan = Schema::new(&options).plan();
        for line in [
            "use shop\n",
            "db.createCollection(\"orders\", { validator: { \"$jsonSchema\"",
            "sh.shardCollection(\"shop.orders\", { \"customer_id\": \"hashed\" })",
            "sh.shardCollection(\"shop.products\", { \"category\": 1, \"_id\": 1 })",
            "sh.shardCollection(\"shop.carts\", { \"owner\": \"hashed\" })",
            "db.carts.createIndex({ \"purge_at\": 1 }, { name: \"purge_at\", expireAfterSeconds: 0 })",
        ] {
            assert!(plan.contains(line), "{line}\n{plan}");
        }
        assert!(!plan.contains("shop.settings"), "a few documents are not sharded");
    }
}
