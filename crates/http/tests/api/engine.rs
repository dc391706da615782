//! Chooses the engine that the API is tested on.

use std::sync::{Arc, LazyLock};

use mw_store::changes::{FeedSettings, Topics};
use mw_store::model::Model;
use mw_store_embedded::{EmbeddedStore, Options};
use mw_testkit::{FaultyStore, builders, cassandra, mongodb};
use tokio::runtime::Runtime;

/// Names one of [`Engine`]; `model` where it is not set.
const VARIABLE: &str = "MW_TEST_ENGINE";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Model,
    Embedded,
    Cassandra,
    Mongodb,
}

/// Runs the drivers: a test's own runtime ends before its store does.
static DRIVER: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

impl Engine {
    fn named(name: &str) -> Self {
        match name {
            "model" => Self::Model,
            "embedded" => Self::Embedded,
            "cassandra" => Self::Cassandra,
            "mongodb" => Self::Mongodb,
            other => panic!("{VARIABLE} is model, embedded, cassandra or mongodb, not {other:?}"),
        }
    }

    fn fresh_store(self) -> Arc<FaultyStore> {
        match self {
            Self::Model => FaultyStore::new(Arc::new(Model::new())),
            Self::Embedded => {
                let folder = tempfile::tempdir().unwrap();
                let currency = builders::settings().currency;
                let feed = FeedSettings { topics: Topics::ALL, ..FeedSettings::default() };
                let options = Options { min_free_bytes: 0, feed, ..Options::new(folder.path(), currency) };
                FaultyStore::on(Arc::new(EmbeddedStore::open(options).unwrap()), folder)
            }
            Self::Cassandra => {
                let opened = std::thread::spawn(|| {
                    DRIVER.block_on(async {
                        let mut lease = cassandra::Lease::empty().await;
                        // The tests read what they have just written, also from tables whose reads may be stale.
                        for table in
                            ["product_by_id", "products_by_category", "categories", "stock", "stock_zones"]
                        {
                            lease.policy().set(table, "stale_read", "LOCAL_QUORUM").unwrap();
                        }
                        (lease.open().await, lease)
                    })
                });
                let (store, lease) = opened.join().unwrap();
                FaultyStore::on(store, lease)
            }
            Self::Mongodb => {
                let opened = std::thread::spawn(|| DRIVER.block_on(mongodb::fresh()));
                let (store, lease) = opened.join().unwrap();
                FaultyStore::on(store, lease)
            }
        }
    }
}

fn chosen() -> Engine {
    std::env::var_os(VARIABLE).map_or(Engine::Model, |name| Engine::named(&name.to_string_lossy()))
}

/// An empty store of the chosen engine, which fails on demand.
pub(crate) fn fresh_store() -> Arc<FaultyStore> {
    chosen().fresh_store()
}

/// For tests with a paused clock or short timeouts, in which no cluster can respond in time.
pub(crate) fn instant_store() -> Arc<FaultyStore> {
    Engine::Model.fresh_store()
}

#[test]
fn engines_are_chosen_by_name() {
    assert_eq!(Engine::named("model"), Engine::Model);
    assert_eq!(Engine::named("embedded"), Engine::Embedded);
    assert_eq!(Engine::named("cassandra"), Engine::Cassandra);
    assert_eq!(Engine::named("mongodb"), Engine::Mongodb);
}

#[test]
#[should_panic(expected = "MW_TEST_ENGINE is model, embedded, cassandra or mongodb, not \"fjall\"")]
fn an_unknown_engine_is_an_error() {
    Engine::named("fjall");
}
