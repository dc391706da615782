//! Faults of single statements: the next statement of a kind on a table fails, loses its result, or waits.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use mw_store_cassandra::{FaultInjector, StatementFault, StatementKind, Table};
use tokio::sync::watch;

/// What a test wants to happen to the statements of one store. Without rules nothing happens.
#[derive(Debug, Clone, Default)]
pub struct StatementScript {
    rules: Arc<Mutex<Vec<Rule>>>,
}

#[derive(Debug)]
struct Rule {
    table: Table,
    kind: StatementKind,
    /// Statements that pass before the rule applies.
    skip: usize,
    /// Statements that the rule applies to.
    times: usize,
    action: Action,
}

#[derive(Debug, Clone)]
enum Action {
    Fail(StatementFault),
    Pause(watch::Sender<Gate>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Gate {
    Closed,
    /// A statement waits.
    Reached,
    Open,
}

/// A statement that waits until the test lets it go; it goes as well when this is dropped.
#[derive(Debug)]
pub struct PausedStatement(watch::Sender<Gate>);

impl PausedStatement {
    /// Returns when a statement waits.
    ///
    /// # Panics
    ///
    /// If the script is gone.
    #[expect(clippy::expect_used, reason = "a test without its fixture must fail")]
    pub async fn reached(&self) {
        self.0.subscribe().wait_for(|gate| *gate >= Gate::Reached).await.expect("the script is gone");
    }

    /// Lets the statement go.
    pub fn resume(self) {
        drop(self);
    }
}

impl Drop for PausedStatement {
    fn drop(&mut self) {
        self.0.send_replace(Gate::Open);
    }
}

impl StatementScript {
    fn add(&self, rule: Rule) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
    }

    /// After `skip` further statements of the kind on the table, the next `times` of them fail.
    pub fn fail(
        &self,
        table: Table,
        kind: StatementKind,
        (skip, times): (usize, usize),
        fault: StatementFault,
    ) {
        self.add(Rule { table, kind, skip, times, action: Action::Fail(fault) });
    }

    /// After `skip` further statements of the kind on the table, the next one waits.
    pub fn pause(&self, table: Table, kind: StatementKind, skip: usize) -> PausedStatement {
        let gate = watch::Sender::new(Gate::Closed);
        self.add(Rule { table, kind, skip, times: 1, action: Action::Pause(gate.clone()) });
        PausedStatement(gate)
    }

    /// Forgets every rule.
    pub fn heal(&self) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The action for a statement. Every rule that matches counts it.
    fn action(&self, table: &str, kind: StatementKind) -> Option<Action> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut action = None;
        for rule in rules.iter_mut().filter(|rule| rule.table.name() == table && rule.kind == kind) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if action.is_none() {
                rule.times -= 1;
                action = Some(rule.action.clone());
            }
        }
        rules.retain(|rule| rule.times > 0);
        action
    }
}

impl FaultInjector for StatementScript {
    fn before<'a>(&'a self, table: &'a str, kind: StatementKind) -> BoxFuture<'a, Option<StatementFault>> {
        let action = self.action(table, kind);
        Box::pin(async move {
            match action? {
                Action::Fail(fault) => Some(fault),
                Action::Pause(gate) => {
                    gate.send_if_modified(|gate| {
                        let is_closed = *gate == Gate::Closed;
                        if is_closed {
                            *gate = Gate::Reached;
                        }
                        is_closed
                    });
                    let _ = gate.subscribe().wait_for(|gate| *gate == Gate::Open).await;
                    None
                }
            }
        })
    }
}
