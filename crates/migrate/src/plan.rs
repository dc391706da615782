//! The plan: what a migration would meet, from reading the source alone.

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mw_domain::OrderStatus;

use crate::error::Result;
use crate::key::{Id, Kind};
use crate::mapping::{self, Outcome, Settings};
use crate::source::Source;
use crate::status::RejectedDocument;

/// Documents of a collection that are tried.
const SAMPLE: i64 = 1_000;
/// Rejected documents of the sample that are shown.
const SHOWN: usize = 10;
/// Documents a second that a copy reaches at least; it is measured with the release build.
const COPIED_PER_SECOND: u64 = 5_000;
/// Bytes in the target for a byte at the source, with the state of the migration.
const TARGET_SHARE: u64 = 2;

/// A collection of the source.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCollection {
    pub name: &'static str,
    pub documents: u64,
    pub bytes: u64,
    /// Documents of the sample by shape: of 002 (`customer`), of 004 (`user`), and those that show neither.
    pub shapes: BTreeMap<&'static str, u64>,
    /// `_id`s of the sample by type.
    pub ids: BTreeMap<String, u64>,
    pub sampled: u64,
    /// How many of the sample would be rejected, and the first of them.
    pub rejected: u64,
    pub examples: Vec<RejectedDocument>,
    /// Whether it is sharded.
    pub sharded: bool,
}

/// A status word of the orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStatus {
    pub word: String,
    pub documents: u64,
    pub becomes: Option<OrderStatus>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub source: String,
    pub collections: Vec<PlannedCollection>,
    pub statuses: Vec<PlannedStatus>,
    /// `None` on a replica set.
    pub balancer_enabled: Option<bool>,
    pub oplog_hours: Option<f64>,
    pub copy_seconds: u64,
    /// Bytes that the target needs, at a guess.
    pub needed_bytes: u64,
    /// What must change first.
    pub problems: Vec<String>,
    /// What an operator should know.
    pub notes: Vec<String>,
}

impl Plan {
    pub fn is_possible(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Reads what a migration would meet. `free_bytes` is the room of the target, where it is known.
pub async fn plan(source: &Source, settings: &Settings, free_bytes: Option<u64>) -> Result<Plan> {
    let mut collections = Vec::new();
    for kind in Kind::ALL {
        collections.push(collection(source, settings, kind).await?);
    }
    let statuses = statuses(source, settings).await?;
    let balancer_enabled = if source.is_sharded() { source.balancer_enabled().await } else { None };
    let oplog_hours = source.oplog_hours().await;
    let documents: u64 = collections.iter().map(|it| it.documents).sum();
    let bytes: u64 = collections.iter().map(|it| it.bytes).sum();
    let mut plan = Plan {
        source: source.name().await?,
        collections,
        statuses,
        balancer_enabled,
        oplog_hours,
        copy_seconds: documents / COPIED_PER_SECOND,
        needed_bytes: bytes.saturating_mul(TARGET_SHARE),
        problems: Vec::new(),
        notes: Vec::new(),
    };
    judge(&mut plan, free_bytes);
    Ok(plan)
}

fn judge(plan: &mut Plan, free_bytes: Option<u64>) {
    if plan.collections.iter().all(|it| it.documents == 0) {
        plan.problems.push(format!(
            "{} has no products, orders or carts: name the right database in the path of --from",
            plan.source
        ));
    }
    if let Some(free) = free_bytes.filter(|free| *free < plan.needed_bytes) {
        plan.problems.push(format!(
            "the target has {free} bytes free and needs about {}: name a larger disk with --data",
            plan.needed_bytes
        ));
    }
    if let Some(hours) = plan.oplog_hours
        && hours * 3_600.0 < 2.0 * f64::from(u32::try_from(plan.copy_seconds).unwrap_or(u32::MAX))
    {
        plan.notes.push(format!(
            "the oplog goes back {hours:.1} h and the copy may take {} s: enlarge it (replSetResizeOplog), so that an \
             interrupted migration can go on",
            plan.copy_seconds
        ));
    }
    for status in plan.statuses.iter().filter(|status| status.becomes.is_none()) {
        plan.notes.push(format!(
            "{} orders have the status \"{}\", which is rejected until [migration.statuses] says what it means",
            status.documents, status.word
        ));
    }
    if plan.balancer_enabled == Some(true) {
        plan.notes.push(
            "the balancer is on: a moving chunk does not disturb the copy, but slows it; `mw shards balancer off --yes` stops it"
                .to_owned(),
        );
    }
    for collection in &plan.collections {
        if collection.sharded && collection.shapes.len() > 1 {
            plan.notes.push(format!(
                "{} is sharded and has documents of both shapes: those without the shard key lie on one shard",
                collection.name
            ));
        }
        if collection.rejected > 0 {
            plan.notes.push(format!(
                "{} of {} sampled documents of {} cannot be taken as they are: the cutover waits for them, or takes \
                 --accept-rejected",
                collection.rejected, collection.sampled, collection.name
            ));
        }
    }
}

async fn collection(source: &Source, settings: &Settings, kind: Kind) -> Result<PlannedCollection> {
    let stats = vec![
        doc! { "$collStats": { "storageStats": {} } },
        doc! { "$group": { "_id": null, "bytes": { "$sum": "$storageStats.size" }, "shards": { "$sum": 1 } } },
    ];
    let stats: Vec<Document> = match source.collection(kind).aggregate(stats).await {
        Ok(cursor) => cursor.try_collect().await?,
        // There is no such collection.
        Err(_) => Vec::new(),
    };
    let number = |field: &str| stats.first().and_then(|it| it.get(field)).and_then(as_u64).unwrap_or(0);
    let mut planned = PlannedCollection {
        name: kind.collection(),
        documents: source.count(kind).await?,
        bytes: number("bytes"),
        shapes: BTreeMap::new(),
        ids: BTreeMap::new(),
        sampled: 0,
        rejected: 0,
        examples: Vec::new(),
        sharded: number("shards") > 1,
    };
    let mut sample = source.collection(kind).aggregate([doc! { "$sample": { "size": SAMPLE } }]).await?;
    while let Some(document) = sample.try_next().await? {
        try_document(&mut planned, kind, &document, settings)?;
    }
    Ok(planned)
}

fn try_document(
    planned: &mut PlannedCollection,
    kind: Kind,
    document: &Document,
    settings: &Settings,
) -> Result<()> {
    planned.sampled += 1;
    *planned.shapes.entry(shape(kind, document)).or_default() += 1;
    let id = Id::of(document)?;
    let id_type =
        document.get("_id").map_or_else(|| "missing".to_owned(), |id| format!("{:?}", id.element_type()));
    *planned.ids.entry(id_type).or_default() += 1;
    if let Outcome::Rejected(rejection) = mapping::map(kind, Some(document), settings) {
        planned.rejected += 1;
        if planned.examples.len() < SHOWN {
            planned.examples.push(RejectedDocument {
                collection: kind.collection().to_owned(),
                id: id.text(),
                reason: rejection.reason,
                advice: rejection.advice,
                blocking: true,
            });
        }
    }
    Ok(())
}

fn shape(kind: Kind, document: &Document) -> &'static str {
    let (customer, user): (&[&str], &[&str]) = match kind {
        Kind::Products => (&["stocks"], &["stock"]),
        Kind::Orders => (&["customer_id"], &["order_date", "total_price"]),
        Kind::Carts => return "both",
    };
    let has = |fields: &[&str]| fields.iter().any(|field| document.contains_key(field));
    match (has(customer), has(user)) {
        (true, false) => "customer",
        (false, true) => "user",
        _ => "neither",
    }
}

fn as_u64(value: &Bson) -> Option<u64> {
    match value {
        Bson::Int32(number) => u64::try_from(*number).ok(),
        Bson::Int64(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

async fn statuses(source: &Source, settings: &Settings) -> Result<Vec<PlannedStatus>> {
    let pipeline = vec![
        doc! { "$sample": { "size": SAMPLE * 10 } },
        doc! { "$group": { "_id": "$status", "documents": { "$sum": 1 } } },
        doc! { "$sort": { "documents": -1 } },
    ];
    let found: Vec<Document> =
        source.collection(Kind::Orders).aggregate(pipeline).await?.try_collect().await?;
    let status = |document: &Document| {
        let word = document.get_str("_id").ok();
        PlannedStatus {
            becomes: word.and_then(|word| settings.statuses.read(word)),
            word: word.map_or_else(
                || document.get("_id").map(ToString::to_string).unwrap_or_default(),
                str::to_owned,
            ),
            documents: document.get("documents").and_then(as_u64).unwrap_or(0),
        }
    };
    Ok(found.iter().map(status).collect())
}
