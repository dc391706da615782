//! Statements as the nouns use them: prepared with the consistency of their table, executed with errors that tell what
//! is known.
//!
//! - A read may be sent twice: a second copy goes to another node when the first is slower than is usual.
//! - A plain write is idempotent by its construction and may be sent twice as well.
//! - A conditional write is sent once, to the same replica of its key each time, and never repeated by the driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_store::{Result, StoreError};
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::deserialize::row::{ColumnIterator, DeserializeRow};
use scylla::deserialize::value::DeserializeValue;
use scylla::deserialize::{DeserializationError, TypeCheckError};
use scylla::errors::ExecutionError;
use scylla::frame::response::result::ColumnSpec;
use scylla::policies::load_balancing::{DefaultPolicy, LoadBalancingPolicy};
use scylla::policies::retry::{DefaultRetryPolicy, FallthroughRetryPolicy};
use scylla::policies::speculative_execution::SpeculativeExecutionPolicy;
use scylla::response::query_result::QueryResult;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::routing::Token;
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};

use crate::outcome::{self, Trace, Verdict};
use crate::policy::Policy;
use crate::replicas::{SameReplica, quorums};
use crate::second_copy::{self, SecondCopy};
use crate::tables::Table;

/// Attempts of a plain write, each on another node where one was lost.
const WRITE_ATTEMPTS: usize = 3;

/// How a statement is used, which decides its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// At the table's read consistency.
    Read,
    /// May show what is a little old, as the table's policy allows.
    Showcase,
    /// Sees the outcome of every conditional write before it, and finishes one that was left half done.
    Serial,
    /// Unconditional and idempotent.
    Write,
    /// Conditional.
    Cas,
}

/// The values of one statement of a batch.
pub(crate) type Row = Box<dyn SerializeRow + Send + Sync>;

/// A row that two more columns stand before.
#[derive(Debug)]
pub(crate) struct Led<A, B, R> {
    pub(crate) first: A,
    pub(crate) second: B,
    pub(crate) row: R,
}

#[derive(Debug, thiserror::Error)]
#[error("there are fewer columns than the two that lead")]
struct TooFewColumns;

impl<'f, 'm, A, B, R> DeserializeRow<'f, 'm> for Led<A, B, R>
where
    A: DeserializeValue<'f, 'm>,
    B: DeserializeValue<'f, 'm>,
    R: DeserializeRow<'f, 'm>,
{
    fn type_check(specs: &[ColumnSpec<'_>]) -> Result<(), TypeCheckError> {
        let Some(([first, second], rest)) = specs.split_first_chunk() else {
            return Err(TypeCheckError::new(TooFewColumns));
        };
        A::type_check(first.typ())?;
        B::type_check(second.typ())?;
        R::type_check(rest)
    }

    fn deserialize(mut columns: ColumnIterator<'f, 'm>) -> Result<Self, DeserializationError> {
        let mut next = || columns.next().unwrap_or_else(|| Err(DeserializationError::new(TooFewColumns)));
        let (first, second) = (next()?, next()?);
        Ok(Self {
            first: A::deserialize(first.spec.typ(), first.slice)?,
            second: B::deserialize(second.spec.typ(), second.slice)?,
            row: R::deserialize(columns)?,
        })
    }
}

pub(crate) struct Cql {
    session: Session,
    prefix: String,
    policy: Policy,
    same_replica: Arc<SameReplica>,
    read_copies: Arc<SecondCopy>,
    write_copies: Arc<SecondCopy>,
    timeout: Duration,
}

impl std::fmt::Debug for Cql {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cql").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Cql {
    pub(crate) fn new(
        session: Session,
        prefix: String,
        local_dc: String,
        policy: Policy,
        timeout: Duration,
    ) -> Self {
        Self {
            session,
            prefix,
            policy,
            same_replica: Arc::new(SameReplica::new(local_dc)),
            read_copies: Arc::default(),
            write_copies: Arc::default(),
            timeout,
        }
    }

    pub(crate) fn cluster_name(&self) -> String {
        self.session.get_cluster_state().cluster_name().to_owned()
    }

    /// Whether every row can be read and written at the levels of its table, by the nodes that are connected.
    pub(crate) fn check_replicas(&self) -> Result<()> {
        let cluster = self.session.get_cluster_state();
        quorums::check(&cluster, &self.prefix, &self.policy, self.same_replica.local_dc())
            .map_err(StoreError::Unavailable)
    }

    /// `keyspace.table`, as statements name it.
    pub(crate) fn name(&self, table: Table) -> String {
        format!("{}.{}", table.class().keyspace(&self.prefix), table.name())
    }

    /// Prepares a statement; `{}` in it stands for the table's name.
    pub(crate) async fn prepare(
        &self,
        table: Table,
        access: Access,
        text: &str,
    ) -> Result<PreparedStatement> {
        debug_assert!(
            table.nature().is_conditional || !matches!(access, Access::Cas | Access::Serial),
            "the policy does not know that {table} has conditional writes"
        );
        let text = text.replace("{}", &self.name(table));
        let mut statement =
            self.session.prepare(text.as_str()).await.map_err(|error| {
                StoreError::Unavailable(format!("prepare a statement of {table}: {error}"))
            })?;
        statement.set_execution_profile_handle(Some(self.profile(table, access)));
        statement.set_is_idempotent(access != Access::Cas);
        Ok(statement)
    }

    fn profile(&self, table: Table, access: Access) -> ExecutionProfileHandle {
        let rules = self.policy.of(table);
        let copies = |of: &Arc<SecondCopy>| -> Option<Arc<dyn SpeculativeExecutionPolicy>> {
            Some(Arc::clone(of) as _)
        };
        let same_replica: Arc<dyn LoadBalancingPolicy> = Arc::clone(&self.same_replica) as _;
        let profile = ExecutionProfile::builder()
            .request_timeout(Some(self.timeout))
            .serial_consistency(Some(rules.serial))
            .load_balancing_policy(match access {
                Access::Cas | Access::Serial => same_replica,
                _ => DefaultPolicy::builder().build(),
            });
        let profile = match access {
            Access::Read => profile
                .consistency(rules.read)
                .retry_policy(Arc::new(DefaultRetryPolicy::new()))
                .speculative_execution_policy(copies(&self.read_copies)),
            Access::Showcase => profile
                .consistency(rules.showcase)
                .retry_policy(Arc::new(DefaultRetryPolicy::new()))
                .speculative_execution_policy(copies(&self.read_copies)),
            Access::Serial => profile.consistency(match rules.serial {
                SerialConsistency::Serial => Consistency::Serial,
                SerialConsistency::LocalSerial => Consistency::LocalSerial,
            }),
            Access::Write => profile
                .consistency(rules.write)
                .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
                .speculative_execution_policy(copies(&self.write_copies)),
            Access::Cas => {
                profile.consistency(rules.write).retry_policy(Arc::new(FallthroughRetryPolicy::new()))
            }
        };
        profile.build().into_handle()
    }

    /// The rows of a statement whose text bounds their number.
    pub(crate) async fn rows<R>(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<Vec<R>>
    where
        R: for<'f, 'm> DeserializeRow<'f, 'm>,
    {
        let started = Instant::now();
        let result = self.session.execute_unpaged(statement, values).await;
        self.read_copies.took(started.elapsed());
        read_rows(result.map_err(|error| outcome::of_read(&error))?)
    }

    pub(crate) async fn first<R>(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<Option<R>>
    where
        R: for<'f, 'm> DeserializeRow<'f, 'm>,
    {
        Ok(self.rows(statement, values).await?.into_iter().next())
    }

    /// A page of a statement that walks a table or a partition to its end, and where the next begins.
    pub(crate) async fn page<R>(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
        from: PagingState,
    ) -> Result<(Vec<R>, Option<PagingState>)>
    where
        R: for<'f, 'm> DeserializeRow<'f, 'm>,
    {
        let started = Instant::now();
        let page = self.session.execute_single_page(statement, values, from).await;
        self.read_copies.took(started.elapsed());
        let (result, next) = page.map_err(|error| outcome::of_read(&error))?;
        let next = match next {
            PagingStateResponse::HasMorePages { state } => Some(state),
            PagingStateResponse::NoMorePages => None,
        };
        Ok((read_rows(result)?, next))
    }

    /// Writes plainly. Whatever is written may be written again.
    pub(crate) async fn write(&self, statement: &PreparedStatement, values: impl SerializeRow) -> Result<()> {
        let mut attempts = Attempts::default();
        loop {
            let started = Instant::now();
            let written = self.session.execute_unpaged(statement, &values).await;
            self.write_copies.took(started.elapsed());
            let Err(error) = written else { return Ok(()) };
            attempts.failed(started, &error)?;
        }
    }

    /// Writes rows of one partition as one mutation.
    pub(crate) async fn write_rows<V: SerializeRow>(
        &self,
        statement: &PreparedStatement,
        rows: &[V],
    ) -> Result<()> {
        match rows {
            [] => Ok(()),
            [row] => self.write(statement, row).await,
            rows => {
                let mut batch = Batch::new(BatchType::Unlogged);
                for _ in rows {
                    batch.append_statement(statement.clone());
                }
                batch.set_execution_profile_handle(statement.get_execution_profile_handle().cloned());
                batch.set_is_idempotent(true);
                let mut attempts = Attempts::default();
                loop {
                    let started = Instant::now();
                    let written = self.session.batch(&batch, rows).await;
                    self.write_copies.took(started.elapsed());
                    let Err(error) = written else { return Ok(()) };
                    attempts.failed(started, &error)?;
                }
            }
        }
    }

    /// One conditional statement. `Err` is surely not applied.
    pub(crate) async fn cas(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<Verdict> {
        let token = statement.calculate_token(&values).ok().flatten();
        let result = self.session.execute_unpaged(statement, &values).await;
        self.verdict(statement, token, result)
    }

    /// Statements of one partition, at least one of them conditional: all of them or none. `Err` is surely not applied.
    pub(crate) async fn cas_batch<V: SerializeRow>(
        &self,
        rows: &[(&PreparedStatement, V)],
    ) -> Result<Verdict> {
        let Some((statement, first)) = rows.first() else { return Ok(Verdict::Applied) };
        let token = statement.calculate_token(first).ok().flatten();
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_execution_profile_handle(statement.get_execution_profile_handle().cloned());
        let mut values = Vec::with_capacity(rows.len());
        for (statement, row) in rows {
            batch.append_statement((*statement).clone());
            values.push(row);
        }
        let result = self.session.batch(&batch, values).await;
        self.verdict(statement, token, result)
    }

    fn verdict(
        &self,
        statement: &PreparedStatement,
        token: Option<Token>,
        result: Result<QueryResult, ExecutionError>,
    ) -> Result<Verdict> {
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                let spec = statement.get_table_spec();
                if let (Some(token), Some(spec)) = (token, spec) {
                    let cluster = self.session.get_cluster_state();
                    self.same_replica.pass_over(&cluster, spec.ks_name(), spec.table_name(), token);
                }
                let trace = outcome::trace(&error);
                tracing::debug!(%error, "a conditional write");
                return if trace == Trace::Perhaps {
                    Ok(Verdict::Unknown)
                } else {
                    Err(outcome::of_write(&error, trace))
                };
            }
        };
        is_applied(result).map(|applied| if applied { Verdict::Applied } else { Verdict::NotApplied })
    }
}

/// The attempts of a plain write so far, and the worst that they can have left behind.
struct Attempts {
    count: usize,
    worst: Trace,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { count: 0, worst: Trace::None }
    }
}

impl Attempts {
    /// One more attempt failed: `Err` is the answer, `Ok` is to try again.
    fn failed(&mut self, started: Instant, error: &ExecutionError) -> Result<()> {
        self.count += 1;
        let second_copy_was_sent = started.elapsed() >= second_copy::EARLIEST;
        match outcome::trace(error) {
            Trace::Perhaps => self.worst = Trace::Perhaps,
            _ if second_copy_was_sent => self.worst = Trace::Perhaps,
            Trace::Overloaded if self.worst == Trace::None => self.worst = Trace::Overloaded,
            _ => {}
        }
        if self.count == WRITE_ATTEMPTS || !outcome::is_of_node(error) {
            return Err(outcome::of_write(error, self.worst));
        }
        Ok(())
    }
}

fn read_rows<R>(result: QueryResult) -> Result<Vec<R>>
where
    R: for<'f, 'm> DeserializeRow<'f, 'm>,
{
    let corrupt = |error: &dyn std::fmt::Display| StoreError::Corrupt(error.to_string());
    let rows = result.into_rows_result().map_err(|error| corrupt(&error))?;
    let typed = rows.rows::<R>().map_err(|error| corrupt(&error))?;
    typed.collect::<Result<Vec<R>, _>>().map_err(|error| corrupt(&error))
}

/// A conditional write answers with `[applied]` first, whatever other columns follow.
fn is_applied(result: QueryResult) -> Result<bool> {
    let rows: Vec<scylla::value::Row> = read_rows(result)?;
    let first = rows.first().and_then(|row| row.columns.first());
    match first {
        Some(Some(scylla::value::CqlValue::Boolean(applied))) => Ok(*applied),
        other => Err(StoreError::Corrupt(format!("a conditional write answered {other:?}"))),
    }
}
