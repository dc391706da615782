//! The source: a MongoDB replica set or a sharded cluster, whose documents other programs write.
//!
//! Every read is of the primary with read concern majority, so nothing is taken that an election could undo. A document that
//! is read for a change is read at the time of the change or later (`afterClusterTime`).

pub(crate) mod stream;

use std::collections::HashMap;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::options::{
    ClientOptions, CollectionOptions, Hint, ReadConcern, ReadPreference, SelectionCriteria,
};
use mongodb::{Client, ClientSession, Collection, Database};
use mw_store_mongodb::{Options, connect};

use crate::error::Result;
use crate::key::{Id, Kind};

/// Where the URI names no database.
const DATABASE: &str = "mobile_world";
/// Documents of a sample whose ids divide a collection, for each range.
const SAMPLED_PER_RANGE: usize = 20;

/// The shop's database at the source.
#[derive(Debug, Clone)]
pub struct Source {
    client: Client,
    database: Database,
    is_sharded: bool,
}

/// The part of a collection between two ids in the order of the index, which spans all types of ids.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bounds {
    /// Included.
    pub(crate) from: Option<Bson>,
    /// Not included.
    pub(crate) to: Option<Bson>,
}

/// How to connect to a source: the database is the path of its URI, else `mobile_world`.
pub async fn source_options(uri: &str, like: &Options) -> Result<Options> {
    let parsed = ClientOptions::parse(uri).await?;
    let database = parsed.default_database.unwrap_or_else(|| DATABASE.to_owned());
    Ok(Options { uri: uri.to_owned(), database, ..like.clone() })
}

impl Source {
    /// Connects and checks that it is a replica set or a sharded cluster.
    pub async fn connect(options: &Options) -> Result<Self> {
        let client = connect::connect(options).await?;
        let is_sharded = connect::is_sharded_cluster(&client).await?;
        let database = client.database(&options.database);
        Ok(Self { client, database, is_sharded })
    }

    pub const fn is_sharded(&self) -> bool {
        self.is_sharded
    }

    pub(crate) const fn database(&self) -> &Database {
        &self.database
    }

    pub async fn close(&self) {
        self.client.clone().shutdown().await;
    }

    pub(crate) fn collection(&self, kind: Kind) -> Collection<Document> {
        let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .selection_criteria(primary)
            .build();
        self.database.collection_with_options(kind.collection(), options)
    }

    pub(crate) async fn count(&self, kind: Kind) -> Result<u64> {
        Ok(self.collection(kind).estimated_document_count().await?)
    }

    /// What tells this source from others: the cluster and the database.
    pub(crate) async fn name(&self) -> Result<String> {
        let hello = self.admin(doc! { "hello": 1 }).await?;
        let cluster = hello.get_str("setName").unwrap_or("a sharded cluster");
        Ok(format!("database {} of {cluster}", self.database.name()))
    }

    /// How many hours the oplog goes back; `None` where it cannot be read, as through mongos.
    pub(crate) async fn oplog_hours(&self) -> Option<f64> {
        let oplog = self.client.database("local").collection::<Document>("oplog.rs");
        let mut ends = [1, -1].map(|order| (order, None));
        for (order, time) in &mut ends {
            let found =
                oplog.find_one(doc! {}).sort(doc! { "$natural": *order }).projection(doc! { "ts": 1 });
            *time = found.await.ok().flatten()?.get_timestamp("ts").ok();
        }
        let [(_, first), (_, last)] = ends;
        Some(f64::from(last?.time.saturating_sub(first?.time)) / 3_600.0)
    }

    /// Whether the balancer moves chunks, where it says.
    pub(crate) async fn balancer_enabled(&self) -> Option<bool> {
        let status = self.admin(doc! { "balancerStatus": 1 }).await.ok()?;
        status.get_str("mode").ok().map(|mode| mode != "off")
    }

    async fn admin(&self, command: Document) -> Result<Document> {
        Ok(self.client.database("admin").run_command(command).await?)
    }

    /// A time of the cluster that is not before any write that was acknowledged until now. Where the user may, a note is
    /// written to every oplog, so that an idle change stream passes that time at once.
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        let note = doc! { "appendOplogNote": 1, "data": { "msg": "mw migrate" } };
        let noted = match self.admin(note).await {
            Ok(noted) => noted,
            Err(error) => {
                tracing::debug!(%error, "append a note to the oplog: an idle stream waits for the servers' own");
                self.admin(doc! { "ping": 1 }).await?
            }
        };
        Ok(noted.get_timestamp("operationTime").unwrap_or(Timestamp { time: 0, increment: 0 }))
    }

    /// Stops the writes of all programs, or lets them write again.
    pub(crate) async fn block_writes(&self, block: bool) -> Result<()> {
        self.admin(doc! { "setUserWriteBlockMode": 1, "global": block }).await.map(drop)
    }

    /// Divides a collection into up to `ranges` parts by a sample of its ids.
    pub(crate) async fn divide(&self, kind: Kind, ranges: usize) -> Result<Vec<Bounds>> {
        let whole = || vec![Bounds { from: None, to: None }];
        if ranges < 2 {
            return Ok(whole());
        }
        let size = i64::try_from(ranges * SAMPLED_PER_RANGE).unwrap_or(i64::MAX);
        let pipeline = vec![
            doc! { "$sample": { "size": size } },
            doc! { "$project": { "_id": 1 } },
            doc! { "$sort": { "_id": 1 } },
        ];
        let sample: Vec<Document> = self.collection(kind).aggregate(pipeline).await?.try_collect().await?;
        let step = sample.len().div_ceil(ranges).max(1);
        let mut inner: Vec<Bson> =
            sample.iter().step_by(step).skip(1).filter_map(|it| it.get("_id").cloned()).collect();
        inner.dedup();
        let starts = std::iter::once(None).chain(inner.iter().cloned().map(Some));
        let ends = inner.iter().cloned().map(Some).chain(std::iter::once(None));
        Ok(starts.zip(ends).map(|(from, to)| Bounds { from, to }).collect())
    }

    /// Up to `limit` documents of a part, in the order of their ids.
    pub(crate) async fn page(&self, kind: Kind, bounds: &Bounds, limit: i64) -> Result<Vec<Document>> {
        let collection = self.collection(kind);
        let mut find = collection.find(doc! {}).sort(doc! { "_id": 1 }).limit(limit);
        // Comparing with `$gt` would stay within one type of ids.
        if bounds.from.is_some() || bounds.to.is_some() {
            find = find.hint(Hint::Keys(doc! { "_id": 1 }));
        }
        if let Some(from) = &bounds.from {
            find = find.min(doc! { "_id": from.clone() });
        }
        if let Some(to) = &bounds.to {
            find = find.max(doc! { "_id": to.clone() });
        }
        Ok(find.await?.try_collect().await?)
    }

    /// A session whose reads see everything up to a time.
    async fn session_after(&self, time: Option<Timestamp>) -> Result<ClientSession> {
        let mut session = self.client.start_session().causal_consistency(true).await?;
        if let Some(time) = time {
            session.advance_operation_time(time);
        }
        Ok(session)
    }

    /// The documents with these ids, as of a time or later.
    pub(crate) async fn read(
        &self,
        kind: Kind,
        ids: &[Id],
        after: Option<Timestamp>,
    ) -> Result<HashMap<Id, Document>> {
        let mut found = HashMap::with_capacity(ids.len());
        if ids.is_empty() {
            return Ok(found);
        }
        let wanted: Vec<Bson> = ids.iter().map(Id::value).collect::<Result<_>>()?;
        let filter = doc! { "_id": { "$in": wanted } };
        let mut session = self.session_after(after).await?;
        let mut cursor = self.collection(kind).find(filter).session(&mut session).await?;
        while let Some(document) = cursor.next(&mut session).await {
            let document = document?;
            found.insert(Id::of(&document)?, document);
        }
        Ok(found)
    }

    /// The names of products, by the text of their ids.
    pub(crate) async fn product_names(&self, ids: Vec<Bson>) -> Result<HashMap<String, String>> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let products = self.collection(Kind::Products);
        let query = products.find(doc! { "_id": { "$in": ids } }).projection(doc! { "name": 1 });
        let found: Vec<Document> = query.await?.try_collect().await?;
        let named = found.into_iter().filter_map(|product| {
            let id = mw_store_mongodb::foreign::product_id(product.get("_id")?)?;
            Some((id.as_str().to_owned(), product.get_str("name").ok()?.to_owned()))
        });
        Ok(named.collect())
    }
}
