//! Merges that the user's cart refuses after they have closed the guest's: the guest gets the lines back, whatever happens meanwhile.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mw_store::carts::Merge;
use mw_store::export::{Checkpoint, Record};
use mw_store::{Carts, ExportImport, PageRequest, Refusal, Result};
use mw_store_cassandra::{CassandraStore, Options, StatementFault, StatementKind, Table};
use mw_testkit::builders::{guest, user};
use mw_testkit::cassandra::{Lease, PausedStatement, StatementScript};
use tokio::task::JoinHandle;

use crate::carts::{active, lines, merging, setting};
use crate::fixtures::{NOW, TIMEOUT, exclusive};

const NAME: &str = "x";
/// More statements than any operation sends.
const ALL: usize = 1_000_000;

/// The LWTs of a merge on carts: the claim and the decision about the guest's cart, those about the user's, and then that which opens
/// the guest's cart again.
const BEFORE_USER: usize = 2;

fn pause_lwt(script: &StatementScript, skip: usize) -> PausedStatement {
    script.pause(Table::CartsByOwner, StatementKind::Cas, skip)
}

/// Fills both carts by `other`, merges by `merging_store`, and changes the user's cart when the guest's is closed. The merge is about
/// to find that.
async fn begin_refused(
    other: &CassandraStore,
    merging_store: &Arc<CassandraStore>,
    script: &StatementScript,
) -> (PausedStatement, JoinHandle<Result<()>>) {
    let own = other.set_line(setting(&user(NAME), "a", 1)).await.unwrap();
    other.set_line(setting(&guest(NAME), "b", 2)).await.unwrap();
    other.set_line(setting(&guest(NAME), "c", 3)).await.unwrap();
    let at_user = pause_lwt(script, BEFORE_USER);
    let command = Merge { expected_version: Some(own.version), ..merging(NAME) };
    let store = Arc::clone(merging_store);
    let task = tokio::spawn(async move { store.merge(command).await.map(drop) });
    at_user.reached().await;
    assert_eq!(active(other, &guest(NAME)).await, None, "the guest's cart is closed");
    other.set_line(setting(&user(NAME), "x", 1)).await.unwrap();
    (at_user, task)
}

fn of(lines: &[(&str, u32)]) -> Vec<(String, u32)> {
    lines.iter().map(|(name, quantity)| ((*name).to_owned(), *quantity)).collect()
}

fn far_behind() -> SystemTime {
    SystemTime::now() - Duration::from_secs(5)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cart_that_a_clock_behind_opens_again_takes_lines_although_they_were_set_by_one_ahead() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let right = lease.open().await;
    let script = StatementScript::default();
    let slow = CassandraStore::open(Options {
        clock: far_behind,
        max_clock_skew: Duration::from_secs(10),
        faults: Some(Arc::new(script.clone())),
        ..lease.options().clone()
    });
    let slow = slow.await.unwrap();
    let (at_user, merge) = begin_refused(&right, &slow, &script).await;
    at_user.resume();
    let refused = merge.await.unwrap().unwrap_err();
    assert!(matches!(refused.refusal(), Some(Refusal::CartVersion { .. })), "{refused:?}");
    let again = active(&right, &guest(NAME)).await.unwrap();
    assert_eq!(lines(Some(&again)), of(&[("b", 2), ("c", 3)]));

    let set = slow.set_line(setting(&guest(NAME), "c", 9)).await.unwrap();
    assert_eq!(lines(Some(&set)), of(&[("b", 2), ("c", 9)]), "an acknowledged line counts");
    assert!(set.version > again.version);
    assert_eq!(active(&right, &guest(NAME)).await, Some(set));
    let merged = right.merge(merging(NAME)).await.unwrap().value.cart;
    assert_eq!(lines(merged.as_ref()), of(&[("a", 1), ("b", 2), ("c", 9), ("x", 1)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_after_a_refused_one_whose_closed_cart_is_another_now_ends() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let other = lease.open().await;
    let script = StatementScript::default();
    let dying = lease.open_with(&script).await;
    let (at_user, merge) = begin_refused(&other, &dying, &script).await;
    // The decision about the user's cart passes, that which opens the guest's does not, nor does its recovery.
    let at_guest = pause_lwt(&script, 1);
    at_user.resume();
    at_guest.reached().await;
    script.fail(Table::CartsByOwner, StatementKind::Cas, (0, ALL), StatementFault::NotSent);
    merge.abort();
    drop(merge.await);

    // An import writes the closed cart as it is in its file, which says nothing of the merge.
    let closed = other.carts(&guest(NAME), NOW, PageRequest::first(5)).await.unwrap().items.remove(0);
    let checkpoint = Checkpoint { import: "carts".to_owned(), done: 1 };
    other.import(vec![Record::Cart(closed)], checkpoint).await.unwrap();

    let merged = tokio::time::timeout(TIMEOUT, other.merge(merging(NAME))).await;
    let merged = merged.expect("the merge ends").unwrap().value;
    assert_eq!(lines(merged.cart.as_ref()), of(&[("a", 1), ("x", 1)]));
    assert!(merged.changes.is_empty() && active(&other, &guest(NAME)).await.is_none());
}
