//! What is asked of the cluster: shard a collection, let the balancer work on it, and what it has moved.

use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::WriteConcern;
use mongodb::{Client, Collection};

use crate::orders::{Key, Orders};

/// The size of a range, the least there is; the default is 128 MiB.
pub(crate) const RANGE_BYTES: u64 = RANGE_MIB << 20;
const RANGE_MIB: u64 = 1;
const TIMEOUT: Duration = Duration::from_mins(5);
const POLL: Duration = Duration::from_millis(250);
/// Looks in a row that must find a collection balanced: between two rounds it may look so.
const LOOKS: u32 = 12;

pub(crate) struct Sharding {
    client: Client,
}

impl Sharding {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    async fn admin(&self, command: Document) -> Document {
        let name = command.keys().next().cloned().unwrap();
        let reply = self.client.database("admin").run_command(command).await;
        reply.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn config(&self, name: &str) -> Collection<Document> {
        self.client.database("config").collection(name)
    }

    pub(crate) async fn start_balancer(&self) {
        self.admin(doc! { "balancerStart": 1 }).await;
    }

    pub(crate) async fn shard(&self, orders: &Orders, key: Key) {
        self.admin(doc! { "shardCollection": orders.namespace(), "key": key.document() }).await;
        let size = i64::try_from(RANGE_MIB).unwrap();
        self.admin(doc! { "configureCollectionBalancing": orders.namespace(), "chunkSize": size }).await;
    }

    /// Whether the balancer may work on a collection, as `sh.enableBalancing` and `sh.disableBalancing` set it.
    pub(crate) async fn set_balanced(&self, orders: &Orders, is_balanced: bool) {
        let update = doc! { "$set": { "noBalance": !is_balanced } };
        let collections = self.config("collections");
        let update = collections.update_one(doc! { "_id": orders.namespace() }, update);
        let updated = update.write_concern(WriteConcern::majority()).await.unwrap();
        assert_eq!(updated.matched_count, 1, "{} is sharded", orders.namespace());
    }

    pub(crate) async fn add_shard(&self, name: &str, members: &str) {
        self.admin(doc! { "addShard": members, "name": name }).await;
    }

    pub(crate) async fn shards(&self) -> usize {
        let count = self.config("shards").count_documents(doc! {}).await.unwrap();
        usize::try_from(count).unwrap()
    }

    /// Waits until the balancer has nothing more to do for a collection.
    pub(crate) async fn await_balanced(&self, orders: &Orders) {
        let deadline = Instant::now() + TIMEOUT;
        let mut looks = 0;
        while looks < LOOKS {
            let status = self.admin(doc! { "balancerCollectionStatus": orders.namespace() }).await;
            let is_balanced = status.get_bool("balancerCompliant").unwrap();
            looks = if is_balanced { looks + 1 } else { 0 };
            assert!(Instant::now() < deadline, "the balancer did not end: {status}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// The bytes of a collection on each shard that has some; orphaned documents are left out.
    pub(crate) async fn data_of_shards(&self, orders: &Orders) -> Vec<u64> {
        let stages =
            [doc! { "$shardedDataDistribution": {} }, doc! { "$match": { "ns": orders.namespace() } }];
        let found = self.client.database("admin").aggregate(stages).await.unwrap();
        let found: Vec<Document> = found.try_collect().await.unwrap();
        let shards = found.iter().flat_map(|collection| collection.get_array("shards").unwrap());
        let bytes = shards.map(|shard| number(shard.as_document().unwrap(), "ownedSizeBytes"));
        bytes.filter(|bytes| *bytes > 0).collect()
    }

    /// The bytes of all migrations of a collection, as the cluster recorded them.
    pub(crate) async fn moved_bytes(&self, orders: &Orders) -> u64 {
        let filter = doc! { "what": "moveChunk.commit", "ns": orders.namespace() };
        let found = self.config("changelog").find(filter).await.unwrap();
        let moves: Vec<Document> = found.try_collect().await.unwrap();
        let counts = moves.iter().map(|change| change.get_document("details").unwrap());
        counts.map(|details| number(details.get_document("counts").unwrap(), "clonedBytes")).sum()
    }
}

/// A count, whichever of the number types the server chose.
fn number(document: &Document, name: &str) -> u64 {
    let value = document.get(name).unwrap_or_else(|| panic!("no {name} in {document}"));
    let signed = match value {
        Bson::Int32(value) => i64::from(*value),
        Bson::Int64(value) => *value,
        #[expect(clippy::cast_possible_truncation, reason = "a count of bytes")]
        Bson::Double(value) => *value as i64,
        other => panic!("{name} is no number: {other}"),
    };
    u64::try_from(signed).unwrap()
}
