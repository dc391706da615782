//! Carts while processes die between two statements, and while the clocks of two processes disagree.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mw_domain::{Cart, CartId, CartStatus, MergeMode, Owner};
use mw_store::carts::{Abandon, Merge, RemoveLine, SetLine};
use mw_store::{Carts, PageRequest};
use mw_store_cassandra::{CassandraStore, Options, StatementKind, Table};
use mw_testkit::builders::{guest, product_id, session_id, user, user_id};
use mw_testkit::cassandra::{Lease, StatementScript};
use uuid::Uuid;

use crate::fixtures::{LIFETIME, NOW, TIMEOUT, eventually, exclusive};

/// Statements of one kind that a request sends to the carts table, at most.
const STATEMENTS_MAX: usize = 12;
const KINDS: [StatementKind; 4] =
    [StatementKind::Read, StatementKind::Write, StatementKind::Cas, StatementKind::Serial];

pub(crate) fn setting(owner: &Owner, product: &str, quantity: u32) -> SetLine {
    SetLine {
        owner: owner.clone(),
        product_id: product_id(product),
        quantity,
        new_cart_id: CartId::new(Uuid::new_v4()),
        expected_version: None,
        lifetime: LIFETIME,
        now: NOW,
    }
}

fn removing(owner: &Owner, product: &str) -> RemoveLine {
    RemoveLine {
        owner: owner.clone(),
        product_id: product_id(product),
        expected_version: None,
        lifetime: LIFETIME,
        now: NOW,
    }
}

fn abandoning(owner: &Owner) -> Abandon {
    Abandon { owner: owner.clone(), expected_version: None, lifetime: LIFETIME, now: NOW, identity: None }
}

pub(crate) fn merging(name: &str) -> Merge {
    Merge {
        user_id: user_id(name),
        session_id: session_id(name),
        mode: MergeMode::Sum,
        new_cart_id: CartId::new(Uuid::new_v4()),
        expected_version: None,
        lifetime: LIFETIME,
        now: NOW,
        identity: None,
    }
}

pub(crate) fn lines(cart: Option<&Cart>) -> Vec<(String, u32)> {
    let lines = cart.map_or(&[][..], |cart| &cart.lines);
    lines.iter().map(|line| (line.product_id.to_string(), line.quantity)).collect()
}

pub(crate) async fn active(store: &CassandraStore, owner: &Owner) -> Option<Cart> {
    store.active_cart(owner, NOW).await.unwrap()
}

/// Runs a request until a statement of the kind on a table, after `skip` others, and ends it there; `false` if it ended before.
async fn dies(
    script: &StatementScript,
    (table, kind): (Table, StatementKind),
    skip: usize,
    request: impl Future<Output = ()> + Send + 'static,
) -> bool {
    let paused = script.pause(table, kind, skip);
    let mut task = tokio::spawn(request);
    let is_dead = tokio::select! {
        () = paused.reached() => true,
        _ = &mut task => false,
    };
    if is_dead {
        task.abort();
        let _ = task.await;
    }
    script.heal();
    is_dead
}

/// Requests that are interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupted {
    SetBlindly,
    Remove,
    SetIfMatch,
    Abandon,
}

impl Interrupted {
    async fn run(self, store: Arc<CassandraStore>, owner: Owner, version: u64) {
        let expected_version = Some(version);
        let _ = match self {
            Self::SetBlindly => store.set_line(setting(&owner, "b", 2)).await.is_ok(),
            Self::Remove => store.remove_line(removing(&owner, "a")).await.is_ok(),
            Self::SetIfMatch => {
                store.set_line(SetLine { expected_version, ..setting(&owner, "b", 2) }).await.is_ok()
            }
            Self::Abandon => store.abandon(abandoning(&owner)).await.is_ok(),
        };
    }

    /// The lines that the cart may have after it.
    fn outcomes(self) -> [&'static [(&'static str, u32)]; 2] {
        let before: &[(&str, u32)] = &[("a", 1), ("c", 3)];
        match self {
            Self::SetBlindly | Self::SetIfMatch => [before, &[("a", 1), ("b", 2), ("c", 3)]],
            Self::Remove => [before, &[("c", 3)]],
            Self::Abandon => [before, &[]],
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_between_two_statements_leaves_a_whole_cart() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let other = lease.open().await;
    let script = StatementScript::default();
    let dying = lease.open_with(&script).await;
    let requests =
        [Interrupted::SetBlindly, Interrupted::Remove, Interrupted::SetIfMatch, Interrupted::Abandon];
    let mut died = 0;
    for request in requests {
        for kind in KINDS {
            for skip in 0..STATEMENTS_MAX {
                let owner = user(&format!("{request:?}-{kind:?}-{skip}"));
                other.set_line(setting(&owner, "a", 1)).await.unwrap();
                let before = other.set_line(setting(&owner, "c", 3)).await.unwrap();
                let task = request.run(Arc::clone(&dying), owner.clone(), before.version);
                if !dies(&script, (Table::CartsByOwner, kind), skip, task).await {
                    break;
                }
                died += 1;
                let left = active(&other, &owner).await;
                let [unchanged, changed] = request.outcomes().map(|lines| {
                    lines.iter().map(|(name, quantity)| ((*name).to_owned(), *quantity)).collect::<Vec<_>>()
                });
                let found = lines(left.as_ref());
                assert!(found == unchanged || found == changed, "{request:?} {kind:?} {skip}: {found:?}");
                let next = other.set_line(setting(&owner, "z", 9)).await.unwrap();
                assert!(next.version > before.version, "{request:?} {kind:?} {skip}");
                assert_eq!(lines(Some(&next)).len(), found.len() + 1, "{request:?} {kind:?} {skip}");
                let listed = other.carts(&owner, NOW, PageRequest::first(5)).await.unwrap().items;
                let closed = listed.iter().filter(|cart| cart.status == CartStatus::Abandoned).count();
                assert_eq!(closed, usize::from(found.is_empty()), "{request:?} {kind:?} {skip}");
            }
        }
    }
    assert!(died > 12, "only {died} statements were reached");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_that_dies_between_two_statements_is_finished_or_has_no_effect() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let other = lease.open().await;
    let script = StatementScript::default();
    let dying = lease.open_with(&script).await;
    for kind in KINDS {
        for skip in 0..STATEMENTS_MAX {
            let name = format!("{kind:?}-{skip}");
            other.set_line(setting(&user(&name), "a", 1)).await.unwrap();
            other.set_line(setting(&guest(&name), "a", 2)).await.unwrap();
            other.set_line(setting(&guest(&name), "b", 3)).await.unwrap();
            let (store, command) = (Arc::clone(&dying), merging(&name));
            let request = async move { drop(store.merge(command).await) };
            if !dies(&script, (Table::CartsByOwner, kind), skip, request).await {
                break;
            }
            eventually("the merge is whole", TIMEOUT, async || {
                let of_guest = lines(active(&other, &guest(&name)).await.as_ref());
                let own = lines(active(&other, &user(&name)).await.as_ref());
                let unmerged = (own.len(), of_guest.len()) == (1, 2);
                let merged = own == [("a".to_owned(), 3), ("b".to_owned(), 3)] && of_guest.is_empty();
                assert!(own.len() == 1 || merged, "{name}: {own:?} {of_guest:?}");
                (unmerged || merged).then_some(())
            })
            .await;
            other.merge(merging(&name)).await.unwrap();
            let own = lines(active(&other, &user(&name)).await.as_ref());
            assert_eq!(own, [("a".to_owned(), 3), ("b".to_owned(), 3)], "{name}");
        }
    }
}

/// The lines of the carts that are listed as abandoned, newest first.
async fn abandoned(store: &CassandraStore, owner: &Owner) -> Vec<Vec<(String, u32)>> {
    let listed = store.carts(owner, NOW, PageRequest::first(10)).await.unwrap().items;
    let closed = listed.iter().filter(|cart| cart.status == CartStatus::Abandoned);
    closed.map(|cart| lines(Some(cart))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_cart_stays_listed_whichever_step_the_next_decision_dies_at() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let other = lease.open().await;
    let script = StatementScript::default();
    let dying = lease.open_with(&script).await;
    let line = |name: &str, quantity| vec![(name.to_owned(), quantity)];
    let mut died = 0;
    for table in [Table::CartsByOwner, Table::ClosedCarts] {
        for kind in KINDS {
            for skip in 0..STATEMENTS_MAX {
                let owner = user(&format!("{table:?}-{kind:?}-{skip}"));
                other.set_line(setting(&owner, "a", 1)).await.unwrap();
                other.abandon(abandoning(&owner)).await.unwrap();
                assert_eq!(abandoned(&other, &owner).await, [line("a", 1)]);
                // The first line after that opens a cart, and writes the row of the closed one.
                let (store, command) = (Arc::clone(&dying), setting(&owner, "b", 2));
                let request = async move { drop(store.set_line(command).await) };
                if !dies(&script, (table, kind), skip, request).await {
                    break;
                }
                died += 1;
                assert_eq!(abandoned(&other, &owner).await, [line("a", 1)], "{table} {kind:?} {skip}");
                let next = other.set_line(setting(&owner, "b", 2)).await.unwrap();
                assert_eq!(lines(Some(&next)), line("b", 2), "{table} {kind:?} {skip}");
                assert_eq!(abandoned(&other, &owner).await, [line("a", 1)], "{table} {kind:?} {skip}");
                other.abandon(abandoning(&owner)).await.unwrap();
                let mut closed = abandoned(&other, &owner).await;
                closed.sort_unstable();
                assert_eq!(closed, [line("a", 1), line("b", 2)], "{table} {kind:?} {skip}");
            }
        }
    }
    assert!(died >= 3, "only {died} statements were reached");
}

fn behind() -> SystemTime {
    SystemTime::now() - Duration::from_secs(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_two_processes_wins_although_its_clock_is_behind() {
    let _exclusive = exclusive().await;
    let lease = Lease::empty().await;
    let right = lease.open().await;
    let slow = CassandraStore::open(Options { clock: behind, ..lease.options().clone() }).await.unwrap();
    let owner = user("u");
    let mut last = right.set_line(setting(&owner, "a", 1)).await.unwrap();
    for quantity in 2..22 {
        let (writer, reader) = if quantity % 2 == 0 { (&slow, &right) } else { (&right, &slow) };
        let product = if quantity % 3 == 0 { "b" } else { "a" };
        let cart = writer.set_line(setting(&owner, product, quantity)).await.unwrap();
        assert!(cart.version > last.version, "{quantity}");
        assert_eq!(active(reader, &owner).await, Some(cart.clone()), "{quantity}");
        let stale = SetLine { expected_version: Some(last.version), ..setting(&owner, "a", 99) };
        assert!(reader.set_line(stale).await.is_err(), "{quantity}");
        if quantity % 5 == 0 {
            let removed = reader.remove_line(removing(&owner, product)).await.unwrap().unwrap();
            assert!(removed.version > cart.version, "{quantity}");
            last = removed;
        } else {
            last = cart;
        }
        assert_eq!(active(writer, &owner).await, Some(last.clone()), "{quantity}");
        if quantity % 7 == 0 {
            let closed = reader.abandon(abandoning(&owner)).await.unwrap().value;
            assert!(closed.version > last.version && active(writer, &owner).await.is_none());
            last = closed;
        }
    }
}
