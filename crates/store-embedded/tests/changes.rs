//! The change feed on disk: it survives a restart, leaves the disk after its retention, and follows no clock that jumped.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::path::Path;

use mw_domain::{Attributes, Category, Currency, Money, Product, ProductId, Timestamp};
use mw_store::changes::{ChangeEvent, Changes, ChangesPage, FeedSettings, FeedStart, ReadChanges, Topic};
use mw_store::{Maintenance, Position, Products, Refusal, Result};
use mw_store_embedded::{EmbeddedStore, Options};

const RETENTION_MS: i64 = 60_000;

fn open(folder: &Path) -> EmbeddedStore {
    let feed = FeedSettings { retention_ms: RETENTION_MS, ..FeedSettings::default() };
    let currency = Currency::parse("RUB").unwrap();
    EmbeddedStore::open(Options { min_free_bytes: 0, feed, ..Options::new(folder, currency) }).unwrap()
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000 + ms)
}

async fn put(store: &EmbeddedStore, name: &str, now: Timestamp) {
    let product = Product {
        product_id: ProductId::parse(name).unwrap(),
        name: "A phone".to_owned(),
        category: Category::parse("phones").unwrap(),
        price: Money::from_minor(100),
        description: "d".repeat(2_000),
        attributes: Attributes::default(),
        created_at: now,
        updated_at: now,
    };
    store.put_product(product).await.unwrap();
}

async fn read(store: &EmbeddedStore, start: FeedStart, now: Timestamp) -> Result<ChangesPage> {
    let request = ReadChanges { start, topics: store.feed().topics, limit: 1_000, now };
    store.changes(request).await
}

async fn after(store: &EmbeddedStore, position: &Position, now: Timestamp) -> Result<Vec<ChangeEvent>> {
    read(store, FeedStart::After(position.clone()), now).await.map(|page| page.items)
}

fn subjects(changes: &[ChangeEvent]) -> Vec<String> {
    changes.iter().map(|change| change.changed.subject()).collect()
}

async fn purge(store: &EmbeddedStore, now: Timestamp) {
    for _ in 0..8 {
        store.purge_expired(now, 500).await.unwrap();
    }
}

#[tokio::test]
async fn positions_are_valid_after_a_restart_and_numbers_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for name in ["a", "b", "c", "d", "e"] {
        put(&store, name, at(0)).await;
    }
    let before = read(&store, FeedStart::Oldest, at(0)).await.unwrap();
    // Without closing it, as a crash does.
    drop(store);
    let store = open(folder.path());
    // The clock has gone back: a change still comes after those before it.
    put(&store, "f", at(-5_000)).await;
    let again = read(&store, FeedStart::Oldest, at(0)).await.unwrap();
    assert_eq!(again.items[..5], before.items);
    assert_eq!(subjects(&after(&store, &before.next, at(0)).await.unwrap()), ["f"]);
    assert_eq!(
        subjects(&after(&store, &before.items[1].position, at(0)).await.unwrap()),
        ["c", "d", "e", "f"]
    );
    let versions: Vec<u64> = again.items.iter().map(|change| change.version).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    assert!(versions.iter().all(|version| *version < 1 << 53), "{versions:?}");
}

#[tokio::test]
async fn purged_changes_are_gone_and_positions_before_them_have_expired() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for name in ["a", "b"] {
        put(&store, name, at(0)).await;
    }
    put(&store, "c", at(1_000)).await;
    let whole = read(&store, FeedStart::Oldest, at(1_000)).await.unwrap();
    let [a, b, c] = [0, 1, 2].map(|index: usize| whole.items[index].position.clone());

    // What is no longer kept is not shown, purged or not.
    for is_purged in [false, true] {
        let now = at(RETENTION_MS);
        if is_purged {
            purge(&store, now).await;
        }
        assert_eq!(subjects(&read(&store, FeedStart::Oldest, now).await.unwrap().items), ["c"]);
        assert_eq!(after(&store, &a, now).await.unwrap_err().refusal(), Some(&Refusal::CursorExpired));
        assert_eq!(subjects(&after(&store, &b, now).await.unwrap()), ["c"]);
    }
    let late = at(RETENTION_MS + 1_000);
    purge(&store, late).await;
    // A clock that goes back does not bring back what was purged.
    assert_eq!(after(&store, &b, at(0)).await.unwrap_err().refusal(), Some(&Refusal::CursorExpired));
    drop(store);
    let store = open(folder.path());
    assert_eq!(read(&store, FeedStart::Oldest, late).await.unwrap().items, []);
    assert_eq!(after(&store, &c, late).await.unwrap(), []);
    put(&store, "d", at(0)).await;
    let now = read(&store, FeedStart::Now, late).await.unwrap().next;
    assert_ne!(now, c, "numbers go on although no row is left");
    assert_eq!(subjects(&after(&store, &c, at(0)).await.unwrap()), ["d"]);
}

#[tokio::test]
async fn a_clock_that_jumped_ahead_keeps_changes_no_longer() {
    const YEAR_MS: i64 = 365 * 86_400_000;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    purge(&store, at(0)).await;
    put(&store, "ahead", at(YEAR_MS)).await;
    put(&store, "b", at(1_000)).await;
    let late = at(3 * RETENTION_MS);
    purge(&store, late).await;
    assert_eq!(read(&store, FeedStart::Oldest, late).await.unwrap().items, []);
}

#[tokio::test]
async fn only_the_configured_topics_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let topics = store.feed().topics;
    assert_eq!(topics.iter().collect::<Vec<_>>(), [Topic::Orders, Topic::Stock, Topic::Products]);
    put(&store, "a", at(0)).await;
    let line = mw_store::carts::SetLine {
        owner: mw_domain::Owner::User(mw_domain::UserId::parse("anna").unwrap()),
        product_id: ProductId::parse("a").unwrap(),
        quantity: 1,
        new_cart_id: mw_domain::CartId::new(uuid::Uuid::from_u128(1)),
        expected_version: None,
        lifetime: mw_domain::carts::CartLifetime { user_ms: 1_000, guest_ms: 1_000 },
        now: at(0),
    };
    mw_store::Carts::set_line(&store, line).await.unwrap();
    let all = ReadChanges {
        start: FeedStart::Oldest,
        topics: mw_store::changes::Topics::ALL,
        limit: 10,
        now: at(0),
    };
    assert_eq!(subjects(&store.changes(all).await.unwrap().items), ["a"]);
}
