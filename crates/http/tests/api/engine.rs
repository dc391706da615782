//! The engine that the API is tested on: the one place where it is chosen.

use std::sync::Arc;

use mw_store::model::Model;
use mw_store_embedded::{EmbeddedStore, Options};
use mw_testkit::{FaultyStore, builders};

/// `model` where nothing is said, or `embedded`.
const VARIABLE: &str = "MW_TEST_ENGINE";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Model,
    Embedded,
}

impl Engine {
    fn named(name: &str) -> Self {
        match name {
            "model" => Self::Model,
            "embedded" => Self::Embedded,
            other => panic!("{VARIABLE} is model or embedded, not {other:?}"),
        }
    }

    fn fresh_store(self) -> Arc<FaultyStore> {
        match self {
            Self::Model => FaultyStore::new(Arc::new(Model::new())),
            Self::Embedded => {
                let folder = tempfile::tempdir().unwrap();
                let currency = builders::settings().currency;
                let options = Options { min_free_bytes: 0, ..Options::new(folder.path(), currency) };
                FaultyStore::on(Arc::new(EmbeddedStore::open(options).unwrap()), folder)
            }
        }
    }
}

/// An empty store of the chosen engine, which fails on demand.
pub(crate) fn fresh_store() -> Arc<FaultyStore> {
    let chosen =
        std::env::var_os(VARIABLE).map_or(Engine::Model, |name| Engine::named(&name.to_string_lossy()));
    chosen.fresh_store()
}

#[test]
fn engines_go_by_their_names() {
    assert_eq!(Engine::named("model"), Engine::Model);
    assert_eq!(Engine::named("embedded"), Engine::Embedded);
}

#[test]
#[should_panic(expected = "MW_TEST_ENGINE is model or embedded, not \"fjall\"")]
fn an_engine_that_is_not_there_is_no_silent_default() {
    Engine::named("fjall");
}
