//! sessions
use mw_store::Result;

use crate::cql::Cql;

#[derive(Debug)]
pub(crate) struct Statements {}

impl Statements {
    pub(crate) async fn prepare(_cql: &Cql) -> Result<Self> {
        Ok(Self {})
    }
}
