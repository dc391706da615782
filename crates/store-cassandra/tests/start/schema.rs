//! The schema on a real cluster: applied once by concurrent processes, compared with the live one, refused where it differs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mw_store_cassandra::connect::connect;
use mw_store_cassandra::schema::SchemaError;
use mw_store_cassandra::{CassandraStore, Class, StartError};

use crate::keyspaces::Keyspaces;

async fn refused(keyspaces: &Keyspaces) -> StartError {
    CassandraStore::open(keyspaces.options()).await.unwrap_err()
}

#[tokio::test]
async fn a_schema_is_applied_once() {
    let keyspaces = Keyspaces::new("applied").await;
    let options = keyspaces.options();
    let session = connect(&options).await.unwrap();
    let schema = options.schema();

    let missing = refused(&keyspaces).await;
    assert!(matches!(&missing, StartError::Schema(SchemaError::Missing { .. })), "{missing}");
    assert!(missing.to_string().contains("run `mw schema apply`, or serve with --apply-schema"), "{missing}");
    let drifts = schema.drift(&session).await.unwrap();
    assert!(drifts.iter().any(|drift| drift.to_string().ends_with("is missing")), "{drifts:?}");

    let started = Instant::now();
    let statements = AtomicUsize::new(0);
    let count = |_: mw_store_cassandra::schema::Progress<'_>| {
        statements.fetch_add(1, Ordering::Relaxed);
    };
    let run = schema.apply(&session, &count).await.unwrap();
    println!("{run} statements in {:?}", started.elapsed());
    assert!(run > Class::ALL.len(), "{run}");
    assert_eq!(statements.load(Ordering::Relaxed), run);

    assert_eq!(schema.drift(&session).await.unwrap(), []);
    schema.check(&session).await.unwrap();
    assert_eq!(schema.apply(&session, &|_| {}).await.unwrap(), 0);
    another_serial_level_is_refused(&keyspaces).await;
    drift_is_listed_and_options_are_altered_to_the_policy(&keyspaces).await;
    keyspaces.drop().await;
}

#[tokio::test]
async fn concurrent_processes_apply_the_schema_once() {
    let keyspaces = Keyspaces::new("at_once").await;
    let mut appliers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let options = keyspaces.options();
        appliers.spawn(async move {
            let session = connect(&options).await.unwrap();
            options.schema().apply(&session, &|_| {}).await.unwrap()
        });
    }
    appliers.join_all().await;
    let options = keyspaces.options();
    let session = connect(&options).await.unwrap();
    assert_eq!(options.schema().drift(&session).await.unwrap(), []);
    let versions = format!("SELECT count(*) FROM {}.schema_versions WHERE part = 0", options.keyspace);
    let count = keyspaces.value::<i64>(&versions).await;
    assert_eq!(count, 2);
    older_newer_and_edited_schemas_are_refused(&keyspaces).await;
    keyspaces.drop().await;
}

async fn drift_is_listed_and_options_are_altered_to_the_policy(keyspaces: &Keyspaces) {
    let options = keyspaces.options();
    let session = connect(&options).await.unwrap();
    let (core, carts) = (Class::Core.keyspace(&options.keyspace), Class::Carts.keyspace(&options.keyspace));
    for statement in [
        format!("ALTER TABLE {core}.stock WITH gc_grace_seconds = 60 AND read_repair = 'NONE'"),
        format!(
            "ALTER TABLE {carts}.cart_changes WITH compaction = {{'class': 'SizeTieredCompactionStrategy'}}"
        ),
        format!("ALTER TABLE {core}.imports ADD extra text"),
        format!("DROP TABLE {core}.buckets"),
        format!("ALTER KEYSPACE {carts} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 1}}"),
    ] {
        keyspaces.run(&statement).await;
    }
    let list_drifts = async || -> Vec<String> {
        options.schema().drift(&session).await.unwrap().iter().map(ToString::to_string).collect()
    };
    let drifts = list_drifts().await;
    let starts = [
        format!("keyspace {carts}: replication factor in dc1 is 1, should be 3"),
        format!("table {core}.buckets: is missing"),
        format!("table {core}.imports: column extra is not in this schema"),
        format!("table {core}.stock: gc_grace_seconds is 60, should be 172800"),
        format!("table {core}.stock: read_repair is 'NONE', should be 'BLOCKING'"),
        format!(
            "table {carts}.cart_changes: compaction is {{'class': 'SizeTieredCompactionStrategy'}}, should be "
        ),
    ];
    assert_eq!(drifts.len(), starts.len(), "{drifts:#?}");
    for (drift, start) in drifts.iter().zip(&starts) {
        assert!(drift.starts_with(start), "{drift} / {start}");
    }

    assert_eq!(options.schema().apply(&session, &|_| {}).await.unwrap(), 2, "two tables have other options");
    assert_eq!(list_drifts().await, drifts[..3]);
    let refused = refused(keyspaces).await.to_string();
    assert!(refused.starts_with("store.cassandra.replication.carts.dc1: keyspace "), "{refused}");
}

async fn older_newer_and_edited_schemas_are_refused(keyspaces: &Keyspaces) {
    let table = format!("{}.schema_versions", keyspaces.options().keyspace);

    keyspaces.run(&format!("UPDATE {table} SET checksum = 'other' WHERE part = 0 AND number = 1")).await;
    let edited = refused(keyspaces).await.to_string();
    assert!(edited.starts_with("schema file 0001_shop differs from the one that was applied"), "{edited}");

    keyspaces.run(&format!("DELETE FROM {table} WHERE part = 0 AND number IN (1, 2)")).await;
    let older = refused(keyspaces).await;
    assert!(matches!(older, StartError::Schema(SchemaError::Older { found: 0, wanted: 2 })), "{older}");
    assert!(older.to_string().contains("run `mw schema apply`, or serve with --apply-schema"), "{older}");

    keyspaces.run(&format!("INSERT INTO {table} (part, number, checksum) VALUES (0, 99, 'x')")).await;
    let newer = refused(keyspaces).await;
    assert!(matches!(newer, StartError::Schema(SchemaError::Newer { found: 99, known: 2 })), "{newer}");
    let options = keyspaces.options();
    let session = connect(&options).await.unwrap();
    assert!(matches!(options.schema().apply(&session, &|_| {}).await, Err(SchemaError::Newer { .. })));
}

async fn another_serial_level_is_refused(keyspaces: &Keyspaces) {
    let mut options = keyspaces.options();
    for (key, value) in [("serial", "SERIAL"), ("write", "QUORUM"), ("read", "QUORUM")] {
        options.policy.set("stock", key, value).unwrap();
    }
    let refused = CassandraStore::open(options).await.unwrap_err().to_string();
    assert!(
        refused.starts_with(
            "store.cassandra.policy.stock.serial: the table says \"LWT serial consistency LOCAL_SERIAL\", this process is \
             configured with SERIAL"
        ),
        "{refused}"
    );
}
