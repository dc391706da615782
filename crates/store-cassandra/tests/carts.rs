//! Carts on a real cluster: concurrent changes in several processes, duplicate merges, and interrupted merges.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, CartId, IdempotencyKey, MergeMode, Owner, ProductId, SessionId, Timestamp, UserId};
use mw_store::carts::{Abandon, Merge, SetLine};
use mw_store::{Carts, Fingerprint, PageRequest, Refusal, RequestIdentity};
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::{CassandraStore, Class};
use mw_testkit::cassandra::Lease;
use tokio::task::JoinSet;
use uuid::Uuid;

const LIFETIME: CartLifetime = CartLifetime { user_ms: 30 * 86_400_000, guest_ms: 86_400_000 };
const NOW: Timestamp = Timestamp::from_millis(1_773_144_000_000);
/// Recovery starts after a second; test machines are slow at times.
const RECOVERED: Duration = Duration::from_secs(20);

fn user(name: &str) -> Owner {
    Owner::User(UserId::parse(name).unwrap())
}

fn guest(name: &str) -> Owner {
    Owner::Session(SessionId::parse(name).unwrap())
}

async fn set(store: &CassandraStore, owner: &Owner, product: &str, quantity: u32) -> Cart {
    let command = SetLine {
        owner: owner.clone(),
        product_id: ProductId::parse(product).unwrap(),
        quantity,
        new_cart_id: CartId::new(Uuid::new_v4()),
        expected_version: None,
        lifetime: LIFETIME,
        now: NOW,
    };
    store.set_line(command).await.unwrap()
}

/// Merges the guest into the user of the same name.
fn merging(name: &str) -> Merge {
    Merge {
        user_id: UserId::parse(name).unwrap(),
        session_id: SessionId::parse(name).unwrap(),
        mode: MergeMode::Sum,
        new_cart_id: CartId::new(Uuid::new_v4()),
        expected_version: None,
        lifetime: LIFETIME,
        now: NOW,
        identity: None,
    }
}

fn identity(key: &str) -> RequestIdentity {
    let key = IdempotencyKey::parse(key).unwrap();
    RequestIdentity { key, fingerprint: Fingerprint([7; 32]), keep_until: NOW.plus_seconds(172_800) }
}

async fn active(store: &CassandraStore, owner: Owner) -> Option<Cart> {
    store.active_cart(&owner, NOW).await.unwrap()
}

/// Several processes on the same keyspaces.
async fn processes(count: usize) -> (Vec<Arc<CassandraStore>>, Lease) {
    let lease = Lease::empty().await;
    let mut stores = Vec::new();
    for _ in 0..count {
        stores.push(lease.open().await);
    }
    (stores, lease)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_processes_do_not_lose_lines() {
    let (stores, _lease) = processes(3).await;
    let mut tasks = JoinSet::new();
    for (number, store) in (0..45).zip(stores.iter().cycle().cloned()) {
        tasks.spawn(async move { set(&store, &user("u"), &format!("p{number:02}"), 1).await.version });
    }
    let versions = tasks.join_all().await;
    let cart = active(&stores[0], user("u")).await.unwrap();
    assert_eq!((cart.lines.len(), Some(cart.version)), (45, versions.into_iter().max()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_duplicate_merges_in_three_processes_one_moves_the_lines() {
    let (stores, _lease) = processes(3).await;
    for round in 0..10 {
        let name = format!("x{round}");
        for product in ["a", "b"] {
            set(&stores[0], &user(&name), product, 2).await;
            set(&stores[1], &guest(&name), product, 3).await;
        }
        let mut tasks = JoinSet::new();
        for (store, _) in stores.iter().cycle().cloned().zip(0..6) {
            let command = merging(&name);
            tasks.spawn(async move { store.merge(command).await.unwrap().value });
        }
        let merged = tasks.join_all().await;
        assert_eq!(merged.iter().filter(|merged| merged.changes.len() == 2).count(), 1);
        for merged in merged {
            let cart = merged.cart.unwrap();
            assert!(
                cart.lines.iter().all(|line| line.quantity == 5),
                "a later merge did not see the lines: {cart:?}"
            );
        }
        let history = stores[2].cart_changes(&user(&name), NOW, PageRequest::first(100)).await.unwrap();
        assert_eq!(history.items.len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_requests_with_one_key_in_three_processes_have_one_outcome() {
    let (stores, _lease) = processes(3).await;
    for round in 0..10 {
        let name = format!("x{round}");
        let expected_version = Some(set(&stores[0], &user(&name), "a", 2).await.version);
        set(&stores[0], &guest(&name), "a", 3).await;
        let mut tasks = JoinSet::new();
        for (store, _) in stores.iter().cycle().cloned().zip(0..6) {
            let identity = Some(identity(&format!("merge-{round}")));
            let command = Merge { identity, expected_version, ..merging(&name) };
            tasks.spawn(async move { store.merge(command).await.unwrap().value });
        }
        let merged = tasks.join_all().await;
        assert_eq!(merged[0].changes.len(), 1);
        assert!(merged.iter().all(|other| *other == merged[0]), "{merged:?}");

        let expected_version = merged[0].cart.as_ref().map(|cart| cart.version);
        let mut tasks = JoinSet::new();
        for (store, _) in stores.iter().cycle().cloned().zip(0..6) {
            let identity = Some(identity(&format!("abandon-{round}")));
            let owner = user(&name);
            let command = Abandon { owner, expected_version, lifetime: LIFETIME, now: NOW, identity };
            tasks.spawn(async move { store.abandon(command).await.unwrap().value });
        }
        let abandoned = tasks.join_all().await;
        assert!(abandoned.iter().all(|other| *other == abandoned[0]), "{abandoned:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_merge_is_finished_by_a_repeat_or_by_recovery() {
    let (stores, _lease) = processes(2).await;
    for round in 0..40_u64 {
        let name = format!("x{round}");
        set(&stores[0], &user(&name), "a", 2).await;
        for product in ["a", "b", "c"] {
            set(&stores[0], &guest(&name), product, 3).await;
        }
        let (store, command) = (Arc::clone(&stores[0]), merging(&name));
        let task = tokio::spawn(async move { store.merge(command).await.is_ok() });
        tokio::time::sleep(Duration::from_micros(round * 500)).await;
        task.abort();
        // The merge may have finished before the abort.
        let _ = task.await;
        let repeats = round % 2 == 0;
        if repeats {
            stores[1].merge(merging(&name)).await.unwrap();
        }
        let started = Instant::now();
        let (own, is_closed) = loop {
            let is_closed = active(&stores[1], guest(&name)).await.is_none();
            let own = active(&stores[1], user(&name)).await.unwrap();
            let is_whole = own.lines.len() == if is_closed { 3 } else { 1 };
            if is_whole {
                break (own, is_closed);
            }
            assert!(is_closed, "the same lines are in both carts");
            assert!(!repeats, "the repeated merge did not finish it");
            assert!(started.elapsed() < RECOVERED, "recovery did not finish it");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        if is_closed {
            let quantities: Vec<u32> = own.lines.iter().map(|line| line.quantity).collect();
            assert_eq!(quantities, [5, 3, 3]);
            let carts = stores[1].carts(&guest(&name), NOW, PageRequest::first(5)).await.unwrap().items;
            assert_eq!(carts[0].merged_into, Some(own.cart_id));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_carts_are_listed_from_partitions_that_do_not_grow_with_them() {
    const CARTS: i64 = 40;
    let (stores, lease) = processes(2).await;
    let owner = user("u");
    let lifetime = CartLifetime { user_ms: 400 * 86_400_000, guest_ms: 86_400_000 };
    let mut closed = Vec::new();
    for (number, store) in (0..CARTS).zip(stores.iter().cycle()) {
        let now = NOW.plus_seconds(number * 3 * 86_400);
        let (owner, new_cart_id) = (owner.clone(), CartId::new(Uuid::new_v4()));
        let product_id = ProductId::parse("a").unwrap();
        let line =
            SetLine { owner, product_id, quantity: 1, new_cart_id, expected_version: None, lifetime, now };
        let owner = line.owner.clone();
        store.set_line(line).await.unwrap();
        let command = Abandon { owner, expected_version: None, lifetime, now, identity: None };
        closed.insert(0, store.abandon(command).await.unwrap().value.cart_id);
    }
    let now = NOW.plus_seconds(CARTS * 3 * 86_400);
    for limit in [3, 100] {
        let mut found = Vec::new();
        let mut request = PageRequest::first(limit);
        loop {
            let page = stores[1].carts(&owner, now, request.clone()).await.unwrap();
            found.extend(page.items.iter().map(|cart| cart.cart_id));
            if page.next.is_none() {
                break;
            }
            request.after = page.next;
        }
        assert_eq!(found, closed, "{limit} a page");
    }

    let session = connect(lease.options()).await.unwrap();
    let keyspace = Class::Carts.keyspace(&lease.options().keyspace);
    let rows = async |text: String| {
        let result = session.query_unpaged(text, ()).await.unwrap().into_rows_result().unwrap();
        result.rows_num()
    };
    let of_owner = "owner_kind = 'user' AND owner_id = 'u'";
    let open = format!("SELECT part FROM {keyspace}.carts_by_owner WHERE {of_owner}");
    assert_eq!(rows(open).await, 1, "the header alone");
    let partitions = format!("SELECT DISTINCT owner_kind, owner_id, bucket FROM {keyspace}.closed_carts");
    assert!((15..=16).contains(&rows(partitions).await), "a partition is eight days");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_into_a_concurrently_changed_cart_is_complete_or_has_no_effect() {
    let (stores, _lease) = processes(2).await;
    for round in 0..40_u64 {
        let name = format!("x{round}");
        let expected_version = Some(set(&stores[0], &user(&name), "a", 2).await.version);
        let before = set(&stores[0], &guest(&name), "b", 3).await;
        let (store, owner) = (Arc::clone(&stores[1]), user(&name));
        let other = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_micros(round * 300)).await;
            set(&store, &owner, "x", 1).await;
        });
        let merged = stores[0].merge(Merge { expected_version, ..merging(&name) }).await;
        other.await.unwrap();
        let of_guest = active(&stores[1], guest(&name)).await;
        let own = active(&stores[1], user(&name)).await.unwrap();
        match merged {
            Ok(done) => {
                assert!(done.value.cart.unwrap().version <= own.version);
                assert_eq!(own.lines.len(), 3);
                assert_eq!(of_guest, None);
            }
            Err(error) => {
                assert!(matches!(error.refusal(), Some(Refusal::CartVersion { .. })), "{error:?}");
                let of_guest = of_guest.unwrap();
                assert_eq!((of_guest.cart_id, &of_guest.lines), (before.cart_id, &before.lines));
                assert!(of_guest.version >= before.version && own.lines.len() == 2);
                let merged = stores[1].merge(merging(&name)).await.unwrap().value;
                assert_eq!(merged.cart.unwrap().lines.len(), 3);
            }
        }
    }
}
