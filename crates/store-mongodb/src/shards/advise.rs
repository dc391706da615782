//! Which shard key fits: the configured one and its alternatives, from `analyzeShardKey` and from the service's own counts,
//! which also have the inserts that the command leaves out.

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Database};

use super::counts::CountsSnapshot;
use super::report::{share, stored_counts, whole};
use super::targeting::{Operation, Targeting};
use crate::Options;
use crate::collections::{CARTS, ORDERS, PRODUCTS};
use crate::schema::SchemaError;
use crate::schema::apply::code;
use crate::schema::{Drift, Schema};
use crate::shard_keys::{ShardKey, ShardKeys};

/// `analyzeShardKey` refuses a key of too few values.
const TOO_FEW_VALUES: i32 = 4_952_606;
/// Documents that are sampled where `analyzeShardKey` has no answer: it needs an index of the key.
const SAMPLE: i32 = 10_000;
/// With fewer values than this a key cannot be split over shards.
const FEW_VALUES: u64 = 64;
/// A value with a larger share than this makes its shard hot.
const COMMON_SHARE: f64 = 0.1;
/// More calls than this to all shards, and the key does not fit the calls.
const BROADCAST_SHARE: f64 = 0.5;

#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    pub keys: Vec<KeyAdvice>,
    /// Differences of the servers from the schema that concern shards.
    pub drift: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct KeyAdvice {
    pub collection: &'static str,
    pub key: String,
    pub configured: bool,
    /// Different values among `sampled` documents.
    pub values: u64,
    pub sampled: u64,
    /// The share of documents with the most common value: 0 to 1.
    pub most_common: f64,
    /// Whether `analyzeShardKey` measured it; otherwise a sample did.
    pub analyzed: bool,
    /// The counted calls, by the shards they would ask under this key.
    pub one: u64,
    pub several: u64,
    pub all: u64,
    pub problems: Vec<String>,
    /// What changes to this key; `None` for the configured one.
    pub command: Option<String>,
}

/// Reads statistics; changes nothing.
pub async fn advise(client: &Client, options: &Options) -> Result<Advice, SchemaError> {
    let database = client.database(&options.database);
    let counts = stored_counts(&database).await.map_err(SchemaError::doing("read the counts of calls"))?;
    let mut keys = Vec::new();
    for (collection, configured) in configured(&options.shard_keys) {
        for text in ShardKeys::accepted(collection, options.shape) {
            let Some(key) = ShardKey::parse(text) else { continue };
            let found = characteristics(client, &database, collection, &key).await;
            let found =
                found.map_err(SchemaError::doing(format!("analyze the key {text} of {collection}")))?;
            keys.push(key_advice(collection, &key, key == *configured, &found, &counts));
        }
    }
    let concerns_shards = |drift: &Drift| {
        matches!(drift, Drift::NotSharded { .. } | Drift::ShardKey { .. } | Drift::WithoutKey { .. })
    };
    let drift = Schema::new(options).drift(client).await?;
    Ok(Advice {
        keys,
        drift: drift.iter().filter(|it| concerns_shards(it)).map(ToString::to_string).collect(),
    })
}

fn configured(keys: &ShardKeys) -> [(&'static str, &ShardKey); 3] {
    [(ORDERS, &keys.orders), (PRODUCTS, &keys.products), (CARTS, &keys.carts)]
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Characteristics {
    values: u64,
    sampled: u64,
    most_common: u64,
    analyzed: bool,
    too_few_values: bool,
}

async fn characteristics(
    client: &Client,
    database: &Database,
    collection: &str,
    key: &ShardKey,
) -> mongodb::error::Result<Characteristics> {
    let namespace = format!("{}.{collection}", database.name());
    let analyze = doc! {
        "analyzeShardKey": namespace, "key": key.to_document(),
        "keyCharacteristics": true, "readWriteDistribution": false, "sampleSize": i64::from(SAMPLE),
    };
    let mut too_few_values = false;
    match client.database("admin").run_command(analyze).await {
        Ok(reply) => {
            if let Ok(found) = reply.get_document("keyCharacteristics") {
                return Ok(analyzed(found));
            }
        }
        Err(error) => too_few_values = code(&error) == Some(TOO_FEW_VALUES),
    }
    // No index of this key, an empty collection, a replica set without the command, or too few values.
    Ok(Characteristics { too_few_values, ..sampled(database, collection, key).await? })
}

fn analyzed(found: &Document) -> Characteristics {
    let frequency = |it: &Bson| Some(whole(it.as_document()?.get("frequency")));
    let common = found.get_array("mostCommonValues").into_iter().flatten().filter_map(frequency);
    Characteristics {
        values: whole(found.get("numDistinctValues")),
        sampled: whole(found.get("numDocsSampled")),
        most_common: common.max().unwrap_or(0),
        analyzed: true,
        too_few_values: false,
    }
}

async fn sampled(
    database: &Database,
    collection: &str,
    key: &ShardKey,
) -> mongodb::error::Result<Characteristics> {
    let id: Document =
        key.fields().map(|field| (field.replace('.', "_"), Bson::String(format!("${field}")))).collect();
    let pipeline = [
        doc! { "$sample": { "size": SAMPLE } },
        doc! { "$group": { "_id": id, "count": { "$sum": 1 } } },
        doc! { "$group": { "_id": null, "values": { "$sum": 1 }, "sampled": { "$sum": "$count" }, "most": { "$max": "$count" } } },
    ];
    let mut cursor = database.collection::<Document>(collection).aggregate(pipeline).await?;
    let Some(found) = cursor.try_next().await? else { return Ok(Characteristics::default()) };
    Ok(Characteristics {
        values: whole(found.get("values")),
        sampled: whole(found.get("sampled")),
        most_common: whole(found.get("most")),
        ..Characteristics::default()
    })
}

fn key_advice(
    collection: &'static str,
    key: &ShardKey,
    configured: bool,
    found: &Characteristics,
    counts: &CountsSnapshot,
) -> KeyAdvice {
    let [one, several, all] = calls(collection, key, counts);
    let most_common = share(found.most_common, found.sampled);
    let mut problems = Vec::new();
    if found.too_few_values || (found.sampled >= FEW_VALUES && found.values < FEW_VALUES) {
        problems.push(format!("only {} values: the data cannot be split further", found.values));
    }
    if found.sampled >= FEW_VALUES && most_common > COMMON_SHARE {
        problems.push(format!(
            "{:.0} % of the documents have one value and lie on one shard",
            most_common * 100.0
        ));
    }
    if share(all, one + several + all) > BROADCAST_SHARE {
        problems.push(format!(
            "{:.0} % of the counted calls ask all shards",
            share(all, one + several + all) * 100.0
        ));
    }
    KeyAdvice {
        collection,
        key: key.to_string(),
        configured,
        values: found.values,
        sampled: found.sampled,
        most_common,
        analyzed: found.analyzed,
        one,
        several,
        all,
        problems,
        command: (!configured).then(|| format!("mw shards reshard {collection} --key '{key}' --yes")),
    }
}

/// The counted calls of the collection, by the shards they would ask under the key.
fn calls(collection: &str, key: &ShardKey, counts: &CountsSnapshot) -> [u64; 3] {
    let mut sums = [0; 3];
    for operation in Operation::ALL.into_iter().filter(|operation| operation.collection() == collection) {
        let counted = counts.calls.iter().find(|(name, _)| name == operation.name());
        let calls: u64 = counted.map_or(0, |(_, counts)| counts.iter().sum());
        let asked: Targeting = operation.targeting_of_key(key);
        if let Some(sum) = sums.get_mut(asked as usize) {
            *sum += calls;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_few_values_is_named_as_the_problem() {
        let counts = CountsSnapshot {
            calls: vec![
                ("product_by_id".to_owned(), [90, 0, 0]),
                ("products_of_category".to_owned(), [0, 0, 10]),
            ],
            ..CountsSnapshot::default()
        };
        let found =
            Characteristics { values: 5, sampled: 1_000, most_common: 400, ..Characteristics::default() };
        let key = ShardKey::parse("category: hashed").unwrap();
        let advice = key_advice(PRODUCTS, &key, false, &found, &counts);
        assert_eq!((advice.one, advice.several, advice.all), (10, 0, 90));
        assert_eq!(
            advice.problems,
            [
                "only 5 values: the data cannot be split further",
                "40 % of the documents have one value and lie on one shard",
                "90 % of the counted calls ask all shards",
            ]
        );
        assert_eq!(
            advice.command.as_deref(),
            Some("mw shards reshard products --key 'category: hashed' --yes")
        );
        let even =
            Characteristics { values: 1_000, sampled: 1_000, most_common: 1, ..Characteristics::default() };
        let advice = key_advice(PRODUCTS, &ShardKey::parse("_id: hashed").unwrap(), true, &even, &counts);
        assert_eq!((advice.problems.len(), advice.command), (0, None));
    }
}
