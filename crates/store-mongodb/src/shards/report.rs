//! How the data and the calls lie on the shards now.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::error::Result;
use mongodb::{Client, Database};

use super::CALL_COUNTS;
use super::counts::CountsSnapshot;
use crate::Options;
use crate::collections::{CARTS, ORDERS, PRODUCTS};
use crate::connect::is_sharded;
use crate::policy::lag::{Lags, MemberLag};
use crate::schema::SchemaError;
use crate::schema::servers::{key_text, shard_keys};

/// Hot keys of each kind in a report.
const HOT: usize = 10;

#[derive(Debug, Clone, PartialEq)]
pub struct ShardReport {
    pub collections: Vec<CollectionReport>,
    pub members: Vec<MemberReport>,
    pub targeting: Vec<TargetingRow>,
    pub hot: Vec<Hot>,
    pub balancer: Balancer,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CollectionReport {
    pub name: &'static str,
    /// `None`: not sharded.
    pub shard_key: Option<String>,
    pub parts: Vec<ShardPart>,
    /// The largest share minus the smallest: 0 to 1.
    pub imbalance: f64,
}

/// The part of a collection on one shard.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardPart {
    pub shard: String,
    pub documents: u64,
    pub bytes: u64,
    pub ranges: u64,
    /// Of the collection's bytes: 0 to 1.
    pub share: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MemberReport {
    pub shard: String,
    pub member: String,
    pub state: &'static str,
    /// `None`: not known.
    pub lag_seconds: Option<f64>,
}

/// Calls of the service by the number of shards they asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetingRow {
    pub call: String,
    pub one: u64,
    pub several: u64,
    pub all: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Hot {
    pub kind: &'static str,
    pub key: String,
    /// Of all counts of its kind: 0 to 1.
    pub share: f64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balancer {
    pub enabled: bool,
    /// `01:00-05:00`; `None`: at any time.
    pub window: Option<String>,
}

/// Reads the servers' statistics and the counts that the service stored.
pub async fn report(client: &Client, options: &Options) -> std::result::Result<ShardReport, SchemaError> {
    let database = client.database(&options.database);
    let members = members(client, options).await.map_err(SchemaError::doing("ask the members"))?;
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await;
    let is_sharded = is_sharded(&hello.map_err(SchemaError::doing("ask for hello"))?);
    let (shards, keys, balancer) = if is_sharded {
        let keys = shard_keys(client, &options.database).await?;
        let balancer = balancer(client).await.map_err(SchemaError::doing("read the balancer's state"))?;
        (shard_names(client).await.map_err(SchemaError::doing("list the shards"))?, keys, balancer)
    } else {
        let set = members.first().map(|member| member.set.clone()).unwrap_or_default();
        (vec![set], BTreeMap::new(), Balancer { enabled: false, window: None })
    };
    let mut collections = Vec::new();
    for name in [ORDERS, PRODUCTS, CARTS] {
        let doing = || SchemaError::doing(format!("read the statistics of {name}"));
        let mut parts = parts(&database, name, &shards).await.map_err(doing())?;
        if is_sharded {
            count_ranges(client, &options.database, name, &mut parts).await.map_err(doing())?;
        }
        let shard_key = keys.get(name).map(key_text);
        let imbalance = set_shares(&mut parts);
        collections.push(CollectionReport { name, shard_key, parts, imbalance });
    }
    let counts = stored_counts(&database).await.map_err(SchemaError::doing("read the counts of calls"))?;
    Ok(ShardReport {
        collections,
        members: members.into_iter().map(member_report).collect(),
        targeting: targeting(&counts),
        hot: hot(&counts),
        balancer,
    })
}

async fn members(client: &Client, options: &Options) -> Result<Vec<MemberLag>> {
    let parsed = mongodb::options::ClientOptions::parse(&options.uri).await?;
    let lags = Lags::new(client.clone(), parsed);
    let members = lags.poll().await;
    lags.close().await;
    members
}

fn member_report(member: MemberLag) -> MemberReport {
    MemberReport {
        shard: member.set,
        member: member.address.to_string(),
        state: member.state.name(),
        lag_seconds: member.lag.map(|lag| lag.as_secs_f64()),
    }
}

pub(super) async fn shard_names(client: &Client) -> Result<Vec<String>> {
    let reply = client.database("admin").run_command(doc! { "listShards": 1 }).await?;
    let shards = reply.get_array("shards").cloned().unwrap_or_default();
    let name = |shard: &Bson| Some(shard.as_document()?.get_str("_id").ok()?.to_owned());
    Ok(shards.iter().filter_map(name).collect())
}

/// A part per shard, also for shards that have nothing of the collection.
async fn parts(database: &Database, name: &str, shards: &[String]) -> Result<Vec<ShardPart>> {
    let pipeline = [doc! { "$collStats": { "storageStats": {} } }];
    let cursor = database.collection::<Document>(name).aggregate(pipeline).await?;
    let stats: Vec<Document> = cursor.try_collect().await?;
    let part = |shard: &String| {
        let of_shard = stats.iter().find(|it| it.get_str("shard").is_ok_and(|name| name == shard));
        let only = || stats.first().filter(|it| !it.contains_key("shard"));
        let storage = of_shard.or_else(only).and_then(|it| it.get_document("storageStats").ok());
        let number = |field| storage.map_or(0, |it| whole(it.get(field)));
        ShardPart {
            shard: shard.clone(),
            documents: number("count"),
            bytes: number("size"),
            ranges: u64::from(storage.is_some()),
            share: 0.0,
        }
    };
    Ok(shards.iter().map(part).collect())
}

async fn count_ranges(client: &Client, database: &str, name: &str, parts: &mut [ShardPart]) -> Result<()> {
    let config = client.database("config");
    let id = format!("{database}.{name}");
    let found = config.collection::<Document>("collections").find_one(doc! { "_id": id }).await?;
    let Some(uuid) = found.as_ref().and_then(|it| it.get("uuid")).cloned() else { return Ok(()) };
    let pipeline = [
        doc! { "$match": { "uuid": uuid } },
        doc! { "$group": { "_id": "$shard", "ranges": { "$sum": 1 } } },
    ];
    let cursor = config.collection::<Document>("chunks").aggregate(pipeline).await?;
    let counted: Vec<Document> = cursor.try_collect().await?;
    for part in parts {
        let of_shard = counted.iter().find(|it| it.get_str("_id").is_ok_and(|shard| shard == part.shard));
        part.ranges = of_shard.map_or(0, |it| whole(it.get("ranges")));
    }
    Ok(())
}

/// Fills in the shares and returns the imbalance. An empty collection is even.
fn set_shares(parts: &mut [ShardPart]) -> f64 {
    let total: u64 = parts.iter().map(|part| part.bytes).sum();
    for part in parts.iter_mut() {
        part.share = share(part.bytes, total);
    }
    let shares = || parts.iter().map(|part| part.share);
    let largest = shares().fold(0.0, f64::max);
    let smallest = shares().fold(1.0, f64::min);
    if total == 0 || parts.len() < 2 { 0.0 } else { largest - smallest }
}

#[expect(clippy::cast_precision_loss, reason = "a share is shown with a few digits")]
pub(super) fn share(part: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { part as f64 / total as f64 }
}

pub(super) fn whole(value: Option<&Bson>) -> u64 {
    match value {
        Some(Bson::Int32(number)) => u64::try_from(*number).unwrap_or(0),
        Some(Bson::Int64(number)) => u64::try_from(*number).unwrap_or(0),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count that is not negative"
        )]
        Some(Bson::Double(number)) if *number > 0.0 => *number as u64,
        _ => 0,
    }
}

async fn balancer(client: &Client) -> Result<Balancer> {
    let status = client.database("admin").run_command(doc! { "balancerStatus": 1 }).await?;
    let settings = client.database("config").collection::<Document>("settings");
    let stored = settings.find_one(doc! { "_id": "balancer" }).await?;
    let window = stored.as_ref().and_then(|it| it.get_document("activeWindow").ok()).and_then(|window| {
        Some(format!("{}-{}", window.get_str("start").ok()?, window.get_str("stop").ok()?))
    });
    Ok(Balancer { enabled: status.get_str("mode").is_ok_and(|mode| mode != "off"), window })
}

pub(super) async fn stored_counts(database: &Database) -> Result<CountsSnapshot> {
    let mut counts = CountsSnapshot::default();
    let mut cursor = database.collection::<Document>(CALL_COUNTS).find(doc! {}).await?;
    while let Some(document) = cursor.try_next().await? {
        counts.add(&document);
    }
    Ok(counts)
}

fn targeting(counts: &CountsSnapshot) -> Vec<TargetingRow> {
    let row = |(call, [one, several, all]): &(String, [u64; 3])| TargetingRow {
        call: call.clone(),
        one: *one,
        several: *several,
        all: *all,
    };
    counts.calls.iter().map(row).collect()
}

fn hot(counts: &CountsSnapshot) -> Vec<Hot> {
    let of_kind = |kind, keys: &[(String, u64)], total| {
        let hot =
            move |(key, count): &(String, u64)| Hot { kind, key: key.clone(), share: share(*count, total) };
        keys.iter().take(HOT).map(hot).collect::<Vec<_>>()
    };
    let mut hot = of_kind("category", &counts.categories, counts.categories_total);
    hot.extend(of_kind("product", &counts.products, counts.products_total));
    hot
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(shard: &str, bytes: u64) -> ShardPart {
        ShardPart { shard: shard.to_owned(), documents: 1, bytes, ranges: 1, share: 0.0 }
    }

    #[test]
    fn imbalance_is_the_largest_share_minus_the_smallest() {
        let mut parts = [part("a", 75), part("b", 25)];
        assert!((set_shares(&mut parts) - 0.5).abs() < 1e-9);
        assert!((parts[0].share - 0.75).abs() < 1e-9);
        assert!((set_shares(&mut [part("a", 9), part("b", 0)]) - 1.0).abs() < 1e-9, "all on one shard");
        assert!(set_shares(&mut [part("a", 0), part("b", 0)]).abs() < 1e-9, "empty");
        assert!(set_shares(&mut [part("rs0", 9)]).abs() < 1e-9, "a replica set is one place");
    }
}
