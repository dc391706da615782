//! The model passes the contract like any engine.

use std::sync::Arc;

use mw_store::SharedStore;
use mw_store::model::Model;

fn fresh() -> SharedStore {
    Arc::new(Model::new())
}

mw_store::contract_tests!(fresh());
