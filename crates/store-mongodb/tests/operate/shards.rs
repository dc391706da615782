//! `mw shards` on a real sharded cluster.

use mongodb::bson::{Document, doc};
use mongodb::{Client, Database};
use mw_store_mongodb::Options;
use mw_store_mongodb::connect::connect;
use mw_store_mongodb::shard_keys::ShardKey;
use mw_store_mongodb::shards::{
    Action, BalancerWindow, CollectionReport, KeyRange, KeyValues, ShardReport, advise, report,
};
use mw_testkit::mongodb::{Cluster, Lease, shared, start_sharded};

use crate::sharded;

const PRODUCTS: i32 = 400;

fn values(text: &str) -> KeyValues {
    KeyValues::parse(text).unwrap()
}

async fn fill(database: &Database) {
    let categories = ["cables", "cases", "phones", "tablets"];
    let product = |number: i32| {
        let category = categories[usize::try_from(number).unwrap() % categories.len()];
        doc! { "_id": format!("p{number:04}"), "name": "x".repeat(200), "category": category, "price": number }
    };
    let products: Vec<Document> = (0..PRODUCTS).map(product).collect();
    database.collection::<Document>("products").insert_many(products).await.unwrap();
}

async fn read(client: &Client, options: &Options) -> ShardReport {
    report(client, options).await.unwrap()
}

fn products(report: &ShardReport) -> &CollectionReport {
    report.collections.iter().find(|it| it.name == "products").unwrap()
}

/// Products under a range key on a cluster of their own: the balancer is one for all databases.
struct Changed {
    _cluster: Cluster,
    lease: Lease,
    client: Client,
}

const RANGE_KEY: &str = "category: 1, _id: 1";

impl Changed {
    async fn start(name: &str) -> Self {
        let cluster = start_sharded(name).await;
        let lease = Lease::on(&cluster.uri(), |options| {
            options.shard_keys.products = ShardKey::parse(RANGE_KEY).unwrap();
        })
        .await;
        fill(&lease.database().await).await;
        let client = connect(lease.options()).await.unwrap();
        Self { _cluster: cluster, lease, client }
    }

    async fn report(&self) -> ShardReport {
        read(&self.client, self.lease.options()).await
    }

    async fn run(&self, action: &Action) {
        action.run(&self.client, self.lease.options(), "tester").await.unwrap();
    }

    async fn logged(&self, outcome: Document) -> u64 {
        let log = self.lease.database().await.collection::<Document>("audit_log");
        log.count_documents(doc! { "user": "tester", "outcome": outcome }).await.unwrap()
    }
}

/// The shard that has all products, and the one that has none.
fn full_and_empty(report: &ShardReport) -> [String; 2] {
    let parts = &products(report).parts;
    let full = parts.iter().find(|part| part.documents > 0).unwrap();
    let empty = parts.iter().find(|part| part.documents == 0).unwrap();
    [full.shard.clone(), empty.shard.clone()]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_split_and_moved_and_the_balancer_has_a_window() {
    let changed = Changed::start("moved").await;
    let before = changed.report().await;
    let all = products(&before);
    assert_eq!(all.shard_key.as_deref(), Some(RANGE_KEY));
    assert_eq!(all.parts.iter().map(|part| part.documents).sum::<u64>(), u64::try_from(PRODUCTS).unwrap());
    assert!((all.imbalance - 1.0).abs() < 1e-9, "a range key starts with one range on one shard: {all:?}");
    assert_eq!(before.members.len(), 4, "three members of shard a, one of b: {:?}", before.members);
    assert_eq!(before.members.iter().filter(|it| it.state == "PRIMARY").count(), 2);
    assert!(before.members.iter().all(|it| it.lag_seconds.is_some()), "{:?}", before.members);

    let plan = Action::BalancerOff.plan(&changed.client, changed.lease.options()).await.unwrap();
    assert_eq!(plan, ["admin: { \"balancerStop\": 1 }"]);
    assert!(changed.report().await.balancer.enabled, "a plan changes nothing");
    let [_, empty] = full_and_empty(&before);
    let at = values("category: phones, _id: MinKey");
    let collection = "products".to_owned();
    changed.run(&Action::BalancerOff).await;
    changed.run(&Action::Window(BalancerWindow::parse("01:00-05:00"))).await;
    changed
        .run(&Action::Split { collection: collection.clone(), at: at.clone(), in_the_middle: false })
        .await;
    changed.run(&Action::Move { collection, min: at, max: None, to: empty.clone() }).await;
    let after = changed.report().await;
    assert!(!after.balancer.enabled);
    assert_eq!(after.balancer.window.as_deref(), Some("01:00-05:00"));
    let moved = products(&after).parts.iter().find(|part| part.shard == empty).unwrap();
    assert!(moved.documents >= 200 && moved.ranges == 1, "{moved:?}");
    changed.run(&Action::Window(None)).await;
    changed.run(&Action::BalancerOn).await;
    let on = changed.report().await.balancer;
    assert!(on.enabled && on.window.is_none(), "{on:?}");
    assert_eq!(changed.logged(doc! { "$eq": "done" }).await, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn zones_come_and_go_and_a_collection_gets_another_key() {
    let changed = Changed::start("zoned").await;
    let [full, _] = full_and_empty(&changed.report().await);
    let range = Some(KeyRange {
        collection: "products".to_owned(),
        min: values("category: cables, _id: MinKey"),
        max: values("category: cablet, _id: MinKey"),
    });
    let tags = changed.client.database("config").collection::<Document>("tags");
    changed.run(&Action::ZoneAdd { zone: "hot".to_owned(), shard: full.clone(), range: range.clone() }).await;
    assert_eq!(tags.count_documents(doc! { "tag": "hot" }).await.unwrap(), 1);
    changed.run(&Action::ZoneRemove { zone: "hot".to_owned(), shard: full, range }).await;
    assert_eq!(tags.count_documents(doc! { "tag": "hot" }).await.unwrap(), 0);

    let reshard =
        |key: &str| Action::Reshard { collection: "products".to_owned(), key: ShardKey::parse(key).unwrap() };
    let options = changed.lease.options();
    let refused = reshard(RANGE_KEY).plan(&changed.client, options).await.unwrap_err().to_string();
    assert!(refused.contains("is sharded by \"category: 1, _id: 1\" already"), "{refused}");
    changed.run(&reshard("_id: hashed")).await;
    let report = changed.report().await;
    assert_eq!(products(&report).shard_key.as_deref(), Some("_id: hashed"));
    assert!(products(&report).parts.iter().all(|part| part.documents > 50), "{:?}", products(&report));

    assert_eq!(changed.logged(doc! { "$eq": "done" }).await, 3);
    let failing =
        Action::Split { collection: "products".to_owned(), at: values("nothing: 1"), in_the_middle: false };
    failing.run(&changed.client, options, "tester").await.unwrap_err();
    assert_eq!(changed.logged(doc! { "$regex": "^failed: " }).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn advice_names_keys_of_few_values() {
    let lease = Lease::on(&sharded().await.uri(), |_| {}).await;
    let client = connect(lease.options()).await.unwrap();
    let database = lease.database().await;
    fill(&database).await;
    let advice = advise(&client, lease.options()).await.unwrap();
    let key = |text: &str| {
        advice.keys.iter().find(|it| it.collection == "products" && it.key == text).unwrap().clone()
    };
    let id = key("_id: hashed");
    assert!(id.configured && id.problems.is_empty() && id.command.is_none(), "{id:?}");
    assert_eq!((id.values, id.sampled), (400, 400), "{id:?}");
    let category = key("category: hashed");
    assert_eq!(category.values, 4, "{category:?}");
    assert!(category.problems[0].contains("only 4 values"), "{category:?}");
    assert_eq!(
        category.command.as_deref(),
        Some("mw shards reshard products --key 'category: hashed' --yes")
    );
    assert_eq!(advice.keys.len(), 2 + 3 + 4);
    assert_eq!(advice.drift, [""; 0]);
}

#[tokio::test]
async fn a_replica_set_is_one_place_and_nothing_to_change() {
    let lease = Lease::empty().await;
    let options = lease.options();
    let client = connect(options).await.unwrap();
    fill(&lease.database().await).await;
    let report = read(&client, options).await;
    let all = products(&report);
    assert_eq!((all.shard_key.clone(), all.parts.len()), (None, 1));
    assert_eq!(all.parts[0].documents, u64::try_from(PRODUCTS).unwrap());
    assert!(all.imbalance.abs() < 1e-9);
    assert!(!report.members.is_empty());
    let refused = Action::BalancerOff.run(&client, options, "tester").await.unwrap_err().to_string();
    assert!(refused.contains("these servers are a replica set"), "{refused} on {}", shared());
}
