//! Errors at start name the setting to change.

use std::time::Duration;

use mw_store_mongodb::{MongoStore, Options};
use mw_testkit::mongodb::{Cluster, ClusterOptions, Layout, start};

async fn refused(uri: &str) -> String {
    let options = Options { request_timeout: Duration::from_secs(3), ..Options::new(uri) };
    MongoStore::open(options).await.unwrap_err().to_string()
}

fn named(name: &str, layout: Layout) -> ClusterOptions {
    ClusterOptions { name: name.to_owned(), layout, ..ClusterOptions::default() }
}

#[tokio::test]
async fn a_standalone_server_is_refused() {
    let alone = start(named("alone", Layout::Standalone)).await;
    let error = refused(&alone.uri()).await;
    assert!(error.starts_with("store.mongodb.uri: 127.0.0.1:"), "{error}");
    assert!(error.contains("is a standalone server"), "{error}");
}

#[tokio::test]
async fn wrong_credentials_and_missing_tls_are_told_apart() {
    let options =
        ClusterOptions { auth: true, tls: true, ..named("guarded", Layout::ReplicaSet { members: 1 }) };
    let guarded: Cluster = start(options).await;
    let uri = guarded.uri();
    let opened = MongoStore::open(Options::new(&uri)).await.unwrap();
    opened.close().await;

    let error = refused(&uri.replace(":mobile-world@", ":wrong@")).await;
    assert!(error.contains("did not accept the user name and the password"), "{error}");
    let anonymous = uri.replace("admin:mobile-world@", "");
    let error = refused(&anonymous).await;
    assert!(error.contains("did not accept the user name and the password"), "{error}");
    let (in_clear, _) = uri.split_once("&tls=true").unwrap();
    let error = refused(in_clear).await;
    assert!(error.starts_with("store.mongodb.uri: ") && error.contains("TLS"), "{error}");
}

#[tokio::test]
async fn servers_that_cannot_be_reached_are_named() {
    let error = refused("mongodb://127.0.0.1:1/?replicaSet=rs0").await;
    assert!(error.starts_with("store.mongodb.uri: no server of 127.0.0.1:1 can be reached"), "{error}");
}
