//! Fault injection for tests: a statement fails before it is sent, or its result is lost.
//!
//! The faults are those of a real network, seen from the sender. Without an injector a statement costs one check.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use mw_store::StoreError;
use scylla::statement::prepared::PreparedStatement;

use crate::driver::trace::StatementKind;

/// What happens to a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatementFault {
    /// It fails before it is sent: certainly not executed.
    NotSent,
    /// It is sent and lost on the way: not executed, which the sender cannot know.
    RequestLost,
    /// It is executed, and its result is lost.
    ResultLost,
}

/// Decides about every statement of a store. It may wait, which delays the statement.
pub trait FaultInjector: fmt::Debug + Send + Sync {
    fn before<'a>(&'a self, table: &'a str, kind: StatementKind) -> BoxFuture<'a, Option<StatementFault>>;
}

/// The injector of a store, if a test has configured one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults(Option<Arc<dyn FaultInjector>>);

impl Faults {
    pub(crate) const fn new(injector: Option<Arc<dyn FaultInjector>>) -> Self {
        Self(injector)
    }

    pub(crate) async fn before(
        &self,
        statement: &PreparedStatement,
        kind: StatementKind,
    ) -> Option<StatementFault> {
        let injector = self.0.as_ref()?;
        injector.before(statement.get_table_spec()?.table_name(), kind).await
    }
}

/// The error of a read with a fault: reads change nothing.
pub(crate) fn read_error() -> StoreError {
    StoreError::Unavailable("read: injected fault".to_owned())
}

/// The error of a plain write with a fault.
pub(crate) fn write_error(fault: StatementFault) -> StoreError {
    let cause = "write: injected fault".to_owned();
    match fault {
        StatementFault::NotSent => StoreError::Unavailable(cause),
        StatementFault::RequestLost | StatementFault::ResultLost => StoreError::Ambiguous(cause),
    }
}
