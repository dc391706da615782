//! Why a process does not start: one error per fault, each with the setting to change.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use mw_store_cassandra::connect::{Credentials, Tls, connect};
use mw_store_cassandra::{CassandraStore, Options, Replication, StartError};
use mw_testkit::cassandra::{Cluster, ClusterOptions, SUPERUSER, SUPERUSER_PASSWORD, shared};

use crate::keyspaces::Keyspaces;

fn on_shared() -> Options {
    let shared = shared();
    Options::new(shared.contact_points.iter().map(ToString::to_string).collect(), shared.local_dc)
}

async fn refused(options: &Options) -> StartError {
    connect(options).await.unwrap_err()
}

#[track_caller]
fn assert_error(error: &StartError, start: &str) {
    let message = error.to_string();
    assert!(message.starts_with(start), "{message}");
}

#[tokio::test]
async fn unreachable_contact_points_are_named() {
    let contact_points = vec!["127.0.0.1:1".to_owned(), "127.0.0.2:1".to_owned()];
    let error = refused(&Options { contact_points, ..on_shared() }).await;
    assert!(matches!(error, StartError::Unreachable { .. }), "{error:?}");
    assert_error(&error, "store.cassandra.contact_points: none of 127.0.0.1:1, 127.0.0.2:1 can be reached: ");

    let contact_points = vec!["no-such-host.invalid:9042".to_owned()];
    let error = refused(&Options { contact_points, ..on_shared() }).await;
    assert_error(&error, "store.cassandra.contact_points: none of no-such-host.invalid:9042 is an address");
}

#[tokio::test]
async fn an_unknown_data_centre_is_refused() {
    let error = refused(&Options { local_dc: "moscow".to_owned(), ..on_shared() }).await;
    assert_error(&error, "store.cassandra.local_dc: the cluster has no data centre \"moscow\"; it has dc1");
}

#[tokio::test]
async fn a_replication_factor_above_the_node_count_is_refused() {
    let error = refused(&Options { replication: Replication::even("dc1", 4), ..on_shared() }).await;
    assert_error(
        &error,
        "store.cassandra.replication.core.dc1: replication factor 4 needs 4 nodes, and dc1 has 3",
    );
}

#[tokio::test]
async fn an_unsafe_policy_is_refused() {
    let mut options = on_shared();
    options.policy.set("orders_by_day", "write", "ANY").unwrap();
    let error = refused(&options).await;
    assert_error(&error, "the policy may lose data:\n  store.cassandra.policy.orders_by_day.read: ");
}

#[tokio::test]
async fn clock_skew_is_refused() {
    let ahead = || SystemTime::now() + Duration::from_mins(1);
    let error = refused(&Options { clock: ahead, ..on_shared() }).await;
    assert_error(&error, "store.cassandra.max_clock_skew: the clock of this machine is ");
    assert!(error.to_string().contains(" s ahead of the cluster's, and 2 s is the most"), "{error}");
    let behind = || SystemTime::now() - Duration::from_mins(1);
    let error = refused(&Options { clock: behind, ..on_shared() }).await;
    assert!(error.to_string().contains(" s behind the cluster's"), "{error}");
    connect(&Options { clock: ahead, max_clock_skew: Duration::from_mins(2), ..on_shared() }).await.unwrap();
}

#[tokio::test]
async fn a_missing_schema_is_refused() {
    let keyspaces = Keyspaces::new("none").await;
    let error = CassandraStore::open(keyspaces.options()).await.unwrap_err();
    let prefix = keyspaces.options().keyspace;
    assert_error(
        &error,
        &format!("the cluster has no schema of this shop (keyspace {prefix}): run `mw schema apply`"),
    );
}

#[tokio::test]
async fn tls_to_nodes_without_tls_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ca = authority(folder.path());
    let error = refused(&Options { tls: Some(Tls { ca, client: None }), ..on_shared() }).await;
    assert_error(&error, "store.cassandra.tls: the nodes of ");
}

/// A certificate authority that signed no node's certificate.
fn authority(folder: &Path) -> PathBuf {
    let path = folder.join("other-ca.pem");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    fs::write(&path, made.cert.pem()).unwrap();
    path
}

#[tokio::test]
async fn wrong_credentials_and_tls_settings_are_refused() {
    let options =
        ClusterOptions { name: "auth_tls".to_owned(), auth: true, tls: true, ..ClusterOptions::default() };
    let cluster = tokio::task::spawn_blocking(|| Cluster::start(options)).await.unwrap().unwrap();
    let points = cluster.contact_points().iter().map(ToString::to_string).collect();
    let credentials =
        |password: &str| Some(Credentials { username: SUPERUSER.to_owned(), password: password.to_owned() });
    let good = Options {
        credentials: credentials(SUPERUSER_PASSWORD),
        tls: Some(Tls { ca: cluster.ca_pem().unwrap().to_owned(), client: None }),
        replication: Replication::even("dc1", 1),
        ..Options::new(points, "dc1")
    };

    let session = connect(&good).await.unwrap();
    good.schema().apply(&session, &|_| {}).await.unwrap();
    CassandraStore::open(good.clone()).await.unwrap();

    let error = refused(&Options { credentials: credentials("guess"), ..good.clone() }).await;
    assert_error(&error, "store.cassandra.password: the cluster rejected it for user \"cassandra\": ");
    assert!(!error.to_string().contains("guess"), "{error}");
    let error = refused(&Options { credentials: None, ..good.clone() }).await;
    assert_error(&error, "store.cassandra.username: the cluster requires a password");
    let error = refused(&Options { tls: None, ..good.clone() }).await;
    assert_error(&error, "store.cassandra.tls.ca: a node of 127.");
    assert!(error.to_string().contains("if the nodes demand TLS, set it"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let tls = Some(Tls { ca: authority(folder.path()), client: None });
    let error = refused(&Options { tls, ..good }).await;
    assert_error(&error, "store.cassandra.tls.ca: the certificate of a node of 127.");
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}
