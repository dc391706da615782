//! The schema on a replica set and on a sharded cluster.

use mongodb::bson::{Document, doc};
use mw_store_mongodb::Options;
use mw_store_mongodb::connect::connect;
use mw_store_mongodb::schema::{Drift, Schema};
use mw_store_mongodb::shard_keys::ShardKey;
use mw_testkit::mongodb::{Lease, shared};

use crate::sharded;

#[tokio::test]
async fn an_applied_schema_has_no_drift_and_applies_once() {
    let lease = Lease::empty().await;
    let client = connect(lease.options()).await.unwrap();
    let schema = Schema::new(lease.options());
    assert_eq!(schema.drift(&client).await.unwrap(), []);
    schema.check(&client).await.unwrap();
    assert_eq!(schema.apply(&client, &|_| {}).await.unwrap(), 0, "nothing is left to do");
    client
        .database(lease.options().database.as_str())
        .collection::<Document>("carts")
        .drop_index("owner_status")
        .await
        .unwrap();
    let error = schema.check(&client).await.unwrap_err().to_string();
    assert!(
        error.contains("index owner_status of carts: is missing: run `mw schema apply --store mongodb`"),
        "{error}"
    );
    assert_eq!(schema.apply(&client, &|_| {}).await.unwrap(), 1);
    schema.check(&client).await.unwrap();
}

#[tokio::test]
async fn a_database_without_schema_is_named_with_the_command() {
    let mut options = Options::new(&shared());
    options.database = format!("mw_test_{}_bare", std::process::id());
    let client = connect(&options).await.unwrap();
    let error = Schema::new(&options).check(&client).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("the database {} has no schema of this shop", options.database)),
        "{error}"
    );
    assert!(error.contains("mw schema apply --store mongodb"), "{error}");
}

#[tokio::test]
async fn documents_of_other_programs_are_never_refused() {
    let lease = Lease::empty().await;
    let orders = lease.database().await.collection::<Document>("orders");
    orders.insert_one(doc! { "status": 7, "note": "no shape at all" }).await.unwrap();
    assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 1);
}

#[tokio::test]
async fn new_collections_are_sharded_by_the_configured_keys() {
    let lease = Lease::on(&sharded().await.uri(), |options| {
        options.shard_keys.products = ShardKey::parse("category: 1, _id: 1").unwrap();
    })
    .await;
    let client = connect(lease.options()).await.unwrap();
    let schema = Schema::new(lease.options());
    assert_eq!(schema.drift(&client).await.unwrap(), []);
    schema.check(&client).await.unwrap();

    let mut other = lease.options().clone();
    other.shard_keys.products = ShardKey::parse("_id: hashed").unwrap();
    let error = Schema::new(&other).check(&client).await.unwrap_err().to_string();
    assert!(
        error.starts_with(
            "store.mongodb.shard_keys.products: the collection products is sharded by \"category: 1, _id: 1\""
        ),
        "{error}"
    );

    let orders = lease.database().await.collection::<Document>("orders");
    orders.insert_one(doc! { "user_id": "anna", "status": "new" }).await.unwrap();
    let drift = schema.drift(&client).await.unwrap();
    let expected =
        Drift::WithoutKey { collection: "orders".to_owned(), field: "customer_id".to_owned(), documents: 1 };
    assert_eq!(drift, [expected], "an order of the other shape has no shard key");
}

#[tokio::test]
async fn a_collection_with_data_is_not_sharded_by_apply() {
    let cluster = sharded().await;
    let mut options = Options::new(&cluster.uri());
    options.database = format!("mw_test_{}_filled", std::process::id());
    let client = connect(&options).await.unwrap();
    let database = client.database(&options.database);
    database.collection::<Document>("products").insert_one(doc! { "_id": "p1", "name": "p1" }).await.unwrap();
    let schema = Schema::new(&options);
    schema.apply(&client, &|_| {}).await.unwrap();
    let left: Vec<String> = schema.drift(&client).await.unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].starts_with("collection products: is not sharded (configured: _id: hashed)"), "{left:?}");
    schema.check(&client).await.unwrap();
    database.drop().await.unwrap();
}
