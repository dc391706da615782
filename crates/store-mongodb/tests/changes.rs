//! The change feed with several processes: no reader misses a change, whichever process made it, numbered it or died.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use mongodb::bson::{Document, doc};
use mw_domain::{Product, Timestamp};
use mw_store::changes::{
    ChangeEvent, Changes, ChangesPage, FeedSettings, FeedStart, ReadChanges, Topic, Topics,
};
use mw_store::{Maintenance, Position, Products, Refusal, Result};
use mw_store_mongodb::MongoStore;
use mw_testkit::builders::product;
use mw_testkit::mongodb::{Lease, shared};

const RETENTION_MS: i64 = 60_000;
const REPORTED_WITHIN: Duration = Duration::from_secs(20);

fn named(name: &str) -> Product {
    product(name).build()
}

async fn read(store: &MongoStore, start: FeedStart, limit: usize, now: Timestamp) -> Result<ChangesPage> {
    store.changes(ReadChanges { start, topics: store.feed().topics, limit, now }).await
}

async fn after(store: &MongoStore, position: &Position) -> Vec<ChangeEvent> {
    let start = FeedStart::After(position.clone());
    read(store, start, 1_000, Timestamp::EPOCH).await.unwrap().items
}

fn subjects(changes: &[ChangeEvent]) -> Vec<String> {
    changes.iter().map(|change| change.changed.subject()).collect()
}

async fn with_retention() -> Lease {
    let retention = FeedSettings { retention_ms: RETENTION_MS, ..FeedSettings::default() };
    Lease::on(&shared(), |options| options.feed = retention).await
}

/// How many changes no process has numbered.
async fn pending(lease: &Lease) -> u64 {
    lease.database().await.collection::<Document>("pending_changes").count_documents(doc! {}).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_misses_nothing_that_several_processes_write() {
    const PROCESSES: usize = 3;
    const WRITERS: usize = 8;
    const ROUNDS: usize = 12;
    let lease = Lease::empty().await;
    let reader = lease.open().await;
    let start = read(&reader, FeedStart::Now, 1, Timestamp::EPOCH).await.unwrap().next;
    let following = {
        let (reader, start) = (Arc::clone(&reader), start.clone());
        tokio::spawn(async move {
            let (mut position, mut found) = (start, Vec::new());
            // A change is read once: every page begins where the one before has ended.
            while found.len() < PROCESSES * WRITERS * ROUNDS {
                reader.changes_after(&position).await.unwrap();
                let start = FeedStart::After(position);
                let page = read(&reader, start, 7, Timestamp::EPOCH).await.unwrap();
                found.extend(page.items);
                position = page.next;
            }
            found
        })
    };
    let stores = join_all((0..PROCESSES).map(|_| lease.open())).await;
    let writing = stores.iter().enumerate().flat_map(|(process, store)| {
        (0..WRITERS).map(move |writer| async move {
            for round in 0..ROUNDS {
                // Half of the products are put by all processes, again and again.
                let name =
                    if writer % 2 == 0 { format!("all-{writer}") } else { format!("p{process}-{writer}") };
                let put = Product { name: format!("{process} {round}"), ..named(&name) };
                store.put_product(put).await.unwrap();
            }
        })
    });
    join_all(writing).await;
    let found = tokio::time::timeout(REPORTED_WITHIN, following).await.unwrap().unwrap();
    let ids: BTreeSet<&String> = found.iter().map(|change| &change.id).collect();
    assert_eq!(ids.len(), PROCESSES * WRITERS * ROUNDS, "each change once");
    assert!(found.is_sorted_by(|one, other| one.version < other.version));
    for (process, store) in stores.iter().enumerate() {
        assert_eq!(after(store, &start).await, found, "read from process {process}");
    }
    // The last change of a product is what is stored: changes of a subject are in the order of their commits.
    for change in found.iter().rev().take(WRITERS) {
        let id = mw_domain::ProductId::parse(&change.changed.subject()).unwrap();
        let last = found.iter().rfind(|other| other.changed.subject() == change.changed.subject()).unwrap();
        let product = reader.product(&id, mw_store::Freshness::Latest).await.unwrap().unwrap();
        assert_eq!(last.changed, mw_store::changes::Changed::ProductPut((*product).clone()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_process_left_pending_is_reported_by_the_next_one() {
    const ATTEMPTS: usize = 20;
    let lease = Lease::empty().await;
    let mut names = Vec::new();
    // On a slow machine a process may number its change before it dies.
    while pending(&lease).await == 0 {
        assert!(names.len() < ATTEMPTS, "no process ends before it has numbered its change");
        let process = lease.open().await;
        let name = format!("p{}", names.len());
        process.put_product(named(&name)).await.unwrap();
        names.push(name);
        // Without closing it, as a crash does: its task ends with it.
        drop(process);
    }
    let next = lease.open().await;
    let numbered = names.len() as u64 - 1;
    let before = Position(numbered.to_be_bytes().to_vec());
    tokio::time::timeout(REPORTED_WITHIN, next.changes_after(&before)).await.unwrap().unwrap();
    let whole = read(&next, FeedStart::Oldest, 1_000, Timestamp::EPOCH).await.unwrap();
    assert_eq!(subjects(&whole.items), names);
    assert_eq!(pending(&lease).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purged_changes_are_gone_and_positions_before_them_have_expired() {
    let lease = with_retention().await;
    let store = lease.open().await;
    for name in ["a", "b"] {
        store.put_product(named(name)).await.unwrap();
    }
    let whole = read(&store, FeedStart::Oldest, 10, Timestamp::EPOCH).await.unwrap();
    let [a, b] = [0, 1].map(|at: usize| whole.items[at].position.clone());
    let rows = lease.database().await.collection::<Document>("changes");
    let row = rows.find_one(doc! {}).await.unwrap().unwrap();
    let over = Timestamp::from_millis(row.get_datetime("purge_at").unwrap().timestamp_millis());

    // What is no longer kept is not shown, purged or not.
    for is_purged in [false, true] {
        if is_purged {
            store.purge_expired(over, 100).await.unwrap();
            assert_eq!(rows.count_documents(doc! {}).await.unwrap(), 0);
        }
        assert_eq!(read(&store, FeedStart::Oldest, 10, over).await.unwrap().items, []);
        let expired = read(&store, FeedStart::After(a.clone()), 10, over).await;
        assert_eq!(expired.unwrap_err().refusal(), Some(&Refusal::CursorExpired));
        assert_eq!(read(&store, FeedStart::After(b.clone()), 10, over).await.unwrap().items, []);
    }
    // A clock that goes back does not bring back what was purged, and numbers go on.
    let expired = read(&store, FeedStart::After(a), 10, Timestamp::EPOCH).await;
    assert_eq!(expired.unwrap_err().refusal(), Some(&Refusal::CursorExpired));
    store.put_product(named("c")).await.unwrap();
    let next = lease.open().await;
    assert_eq!(subjects(&after(&next, &b).await), ["c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_large_changes_are_read_in_pages_of_every_size() {
    const PRODUCTS: usize = 60;
    let lease = Lease::empty().await;
    let store = lease.open().await;
    let puts = (0..PRODUCTS).map(|number| {
        let description = "d".repeat(4_000);
        store.put_product(Product { description, ..named(&format!("p{number}")) })
    });
    for put in join_all(puts).await {
        put.unwrap();
    }
    let whole = read(&store, FeedStart::Oldest, 1_000, Timestamp::EPOCH).await.unwrap();
    assert_eq!(subjects(&whole.items).into_iter().collect::<BTreeSet<_>>().len(), PRODUCTS);
    let rows = lease.database().await.collection::<Document>("changes");
    assert!(rows.count_documents(doc! {}).await.unwrap() > 2, "rows are bounded");
    for limit in [1, 17, PRODUCTS - 1, PRODUCTS] {
        let (mut found, mut start) = (Vec::new(), FeedStart::Oldest);
        loop {
            let page = read(&store, start, limit, Timestamp::EPOCH).await.unwrap();
            if page.items.is_empty() {
                break;
            }
            found.extend(page.items);
            start = FeedStart::After(page.next);
        }
        assert_eq!(found, whole.items, "pages of {limit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_configured_topics_are_written() {
    let topics = Topics::NONE.with(Topic::Stock);
    let lease = Lease::on(&shared(), |options| {
        options.feed = FeedSettings { topics, ..FeedSettings::default() };
    })
    .await;
    let store = lease.open().await;
    store.put_product(named("a")).await.unwrap();
    let stock = mw_store::stock::SetOnHand {
        product_id: mw_testkit::builders::product_id("a"),
        geo_zone: mw_testkit::builders::zone("moscow"),
        on_hand: 3,
        expected_on_hand: None,
        op: uuid::Uuid::from_u128(1),
        now: Timestamp::from_millis(1),
    };
    mw_store::Stock::set_on_hand(&*store, stock).await.unwrap();
    let all = ReadChanges { start: FeedStart::Oldest, topics: Topics::ALL, limit: 10, now: Timestamp::EPOCH };
    assert_eq!(subjects(&store.changes(all).await.unwrap().items), ["a/moscow"]);
}
