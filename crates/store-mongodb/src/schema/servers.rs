//! What the servers have now: collections, validators, indexes, shard keys.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};
use mongodb::{Client, Database};

use super::SchemaError;
use crate::connect::is_sharded;

/// A collection that exists.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct FoundCollection {
    pub(crate) validator: Option<Document>,
    /// By name, as `listIndexes` has them.
    pub(crate) indexes: BTreeMap<String, Document>,
    pub(crate) shard_key: Option<Document>,
}

/// The servers' side of the comparison.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Found {
    pub(crate) is_sharded_cluster: bool,
    pub(crate) collections: BTreeMap<String, FoundCollection>,
}

impl Found {
    /// Only the collections named.
    pub(crate) async fn read(
        client: &Client,
        database: &str,
        names: &[&'static str],
    ) -> Result<Self, SchemaError> {
        let admin = client.database("admin");
        let hello = admin.run_command(doc! { "hello": 1 }).await;
        let is_sharded_cluster = is_sharded(&hello.map_err(SchemaError::doing("ask for hello"))?);
        let keys = if is_sharded_cluster { shard_keys(client, database).await? } else { BTreeMap::new() };
        let database = client.database(database);
        let mut collections = list(&database, names).await?;
        for (name, found) in &mut collections {
            found.indexes = indexes(&database, name).await?;
            found.shard_key = keys.get(name).cloned();
        }
        Ok(Self { is_sharded_cluster, collections })
    }
}

async fn list(
    database: &Database,
    names: &[&'static str],
) -> Result<BTreeMap<String, FoundCollection>, SchemaError> {
    let list =
        doc! { "listCollections": 1, "filter": { "name": { "$in": names.to_vec() }, "type": "collection" } };
    let doing = || SchemaError::doing("list the collections");
    let cursor = database.run_cursor_command(list).await.map_err(doing())?;
    let listed: Vec<Document> = cursor.try_collect().await.map_err(doing())?;
    let found = |document: Document| {
        let name = document.get_str("name").ok()?.to_owned();
        let options = document.get_document("options").ok();
        let validator = options.and_then(|it| it.get_document("validator").ok()).cloned();
        Some((name, FoundCollection { validator, ..FoundCollection::default() }))
    };
    Ok(listed.into_iter().filter_map(found).collect())
}

async fn indexes(database: &Database, name: &str) -> Result<BTreeMap<String, Document>, SchemaError> {
    let doing = || SchemaError::doing(format!("list the indexes of {name}"));
    let cursor = database.run_cursor_command(doc! { "listIndexes": name }).await.map_err(doing())?;
    let listed: Vec<Document> = cursor.try_collect().await.map_err(doing())?;
    Ok(listed.into_iter().filter_map(|it| Some((it.get_str("name").ok()?.to_owned(), it))).collect())
}

/// The shard keys of a database's collections, by collection.
pub(crate) async fn shard_keys(
    client: &Client,
    database: &str,
) -> Result<BTreeMap<String, Document>, SchemaError> {
    let doing = || SchemaError::doing("read the shard keys");
    let prefix = format!("{database}.");
    // Sharded collections alone: the cluster also lists unsharded ones that were moved.
    let filter = doc! { "unsplittable": { "$ne": true } };
    let config = client.database("config").collection::<Document>("collections");
    let cursor = config
        .find(filter)
        .read_concern(ReadConcern::majority())
        .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
        .await
        .map_err(doing())?;
    let all: Vec<Document> = cursor.try_collect().await.map_err(doing())?;
    let key = |it: Document| {
        let name = it.get_str("_id").ok()?.strip_prefix(&prefix)?.to_owned();
        Some((name, it.get_document("key").ok()?.clone()))
    };
    Ok(all.into_iter().filter_map(key).collect())
}

/// `category: 1, _id: 1`, as the configuration writes it.
pub(crate) fn key_text(key: &Document) -> String {
    let field = |(field, value): (&String, &Bson)| match value {
        Bson::String(kind) => format!("{field}: {kind}"),
        Bson::Double(number) => format!("{field}: {number}"),
        other => format!("{field}: {other}"),
    };
    key.iter().map(field).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_the_servers_reads_like_a_configured_one() {
        assert_eq!(key_text(&doc! { "category": 1, "_id": 1.0 }), "category: 1, _id: 1");
        assert_eq!(key_text(&doc! { "owner": "hashed" }), "owner: hashed");
    }
}
