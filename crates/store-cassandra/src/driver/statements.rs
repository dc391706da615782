//! Statements as the nouns use them: prepared with the consistency of their table, executed with errors that say how certain
//! the outcome is.
//!
//! - A read may be executed speculatively on another node.
//! - A plain write is idempotent by its construction and may be executed speculatively as well.
//! - A conditional write is sent once, always to the same replica of its key, and never retried by the driver.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mw_store::{Result, StoreError};
use scylla::client::execution_profile::{ExecutionProfile, ExecutionProfileHandle};
use scylla::client::session::Session;
use scylla::deserialize::row::{ColumnIterator, DeserializeRow};
use scylla::deserialize::{DeserializationError, TypeCheckError};
use scylla::errors::ExecutionError;
use scylla::frame::response::result::ColumnSpec;
use scylla::policies::load_balancing::{DefaultPolicy, LoadBalancingPolicy};
use scylla::policies::retry::{DefaultRetryPolicy, FallthroughRetryPolicy};
use scylla::policies::speculative_execution::SpeculativeExecutionPolicy;
use scylla::response::query_result::{QueryResult, QueryRowsResult};
use scylla::response::{PagingState, PagingStateResponse};
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::MaybeUnset;
use uuid::Uuid;

use crate::driver::certainty::{self, CasResult, WriteCertainty};
use crate::driver::fault_injection::{self, Faults, StatementFault};
use crate::driver::lwt_routing::LwtRouting;
use crate::driver::quorum_availability::{self, QuorumAvailability};
use crate::driver::speculative_execution::{self, SpeculativeExecution};
use crate::driver::trace::{self, StatementKind, Tracer};
use crate::policy::Policy;
use crate::schema::tables::Table;

/// Attempts of a plain write, each on another node where one failed.
const WRITE_ATTEMPTS: usize = 3;

/// How a statement is used, which decides its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// At the table's read consistency.
    Read,
    /// May return stale data, as far as the table's policy allows.
    StaleRead,
    /// Sees the result of every conditional write before it, and completes an unfinished Paxos round.
    Serial,
    /// Unconditional and idempotent.
    Write,
    /// Conditional.
    Cas,
}

/// The values of one statement of a batch.
pub(crate) type Row = Box<dyn SerializeRow + Send + Sync>;

/// A row, or why it cannot be decoded.
struct Readable<R>(Result<R>);

impl<'f, 'm, R> DeserializeRow<'f, 'm> for Readable<R>
where
    R: DeserializeRow<'f, 'm>,
{
    fn type_check(specs: &[ColumnSpec<'_>]) -> Result<(), TypeCheckError> {
        R::type_check(specs)
    }

    fn deserialize(columns: ColumnIterator<'f, 'm>) -> Result<Self, DeserializationError> {
        Ok(Self(R::deserialize(columns).map_err(|error| corrupt(&error))))
    }
}

/// Leaves a column unset that is null and stays null: writing null would create a tombstone.
pub(crate) fn unset_if_null<B, T>(before: Option<B>, after: Option<T>) -> MaybeUnset<Option<T>> {
    match (before, after) {
        (None, None) => MaybeUnset::Unset,
        (_, after) => MaybeUnset::Set(after),
    }
}

pub(crate) struct Cql {
    session: Session,
    prefix: String,
    policy: Policy,
    lwt_routing: Arc<LwtRouting>,
    read_speculation: Arc<SpeculativeExecution>,
    write_speculation: Arc<SpeculativeExecution>,
    timeout: Duration,
    tracer: Tracer,
    faults: Faults,
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
        tracer: Tracer,
    ) -> Self {
        Self {
            session,
            prefix,
            policy,
            lwt_routing: Arc::new(LwtRouting::new(local_dc)),
            read_speculation: Arc::default(),
            write_speculation: Arc::default(),
            timeout,
            tracer,
            faults: Faults::default(),
        }
    }

    /// With faults that a test injects.
    pub(crate) fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    pub(crate) const fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The prefix of the keyspace names.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn cluster_name(&self) -> String {
        self.session.get_cluster_state().cluster_name().to_owned()
    }

    /// Which share of the token ranges cannot be read and written at the levels of their tables, by the nodes that are
    /// connected.
    pub(crate) fn quorum_availability(&self) -> QuorumAvailability {
        let cluster = self.session.get_cluster_state();
        quorum_availability::of_cluster(&cluster, &self.prefix, &self.policy, self.lwt_routing.local_dc())
    }

    /// `keyspace.table`, as statements name it.
    pub(crate) fn name(&self, table: Table) -> String {
        format!("{}.{}", table.class().keyspace(&self.prefix), table.name())
    }

    /// Prepares a statement; `{}` in it is replaced by the table's name.
    pub(crate) async fn prepare(
        &self,
        table: Table,
        access: Access,
        text: &str,
    ) -> Result<PreparedStatement> {
        debug_assert!(
            table.traits().has_lwt || !matches!(access, Access::Cas | Access::Serial),
            "the traits of {table} do not say that it has conditional writes"
        );
        let text = text.replace("{}", &self.name(table));
        let mut statement =
            self.session.prepare(text.as_str()).await.map_err(|error| {
                StoreError::Unavailable(format!("prepare a statement on {table}: {error}"))
            })?;
        statement.set_execution_profile_handle(Some(self.profile(table, access)));
        statement.set_is_idempotent(access != Access::Cas);
        if access == Access::Serial {
            // The level of its profile, said again on the statement, by which a trace tells serial reads from others.
            statement.set_consistency(serial_level(self.policy.of(table).serial));
        }
        Ok(statement)
    }

    fn profile(&self, table: Table, access: Access) -> ExecutionProfileHandle {
        let rules = self.policy.of(table);
        let speculation = |of: &Arc<SpeculativeExecution>| -> Option<Arc<dyn SpeculativeExecutionPolicy>> {
            Some(Arc::clone(of) as _)
        };
        let lwt_routing: Arc<dyn LoadBalancingPolicy> = Arc::clone(&self.lwt_routing) as _;
        let profile = ExecutionProfile::builder()
            .request_timeout(Some(self.timeout))
            .serial_consistency(Some(rules.serial))
            .load_balancing_policy(match access {
                Access::Cas | Access::Serial => lwt_routing,
                _ => DefaultPolicy::builder().build(),
            });
        let profile = match access {
            Access::Read => profile
                .consistency(rules.read)
                .retry_policy(Arc::new(DefaultRetryPolicy::new()))
                .speculative_execution_policy(speculation(&self.read_speculation)),
            Access::StaleRead => profile
                .consistency(rules.stale_read)
                .retry_policy(Arc::new(DefaultRetryPolicy::new()))
                .speculative_execution_policy(speculation(&self.read_speculation)),
            Access::Serial => profile.consistency(serial_level(rules.serial)),
            Access::Write => profile
                .consistency(rules.write)
                .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
                .speculative_execution_policy(speculation(&self.write_speculation)),
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
        self.read_fault(statement).await?;
        let started = Instant::now();
        let result = self.session.execute_unpaged(statement, &values).await;
        self.read_speculation.record(started.elapsed());
        let result = result.map_err(|error| certainty::read_error(&error))?;
        self.read_rows(statement, &values, result)
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

    /// A page of a statement that reads a table or a partition to its end, and where the next page begins.
    pub(crate) async fn page<R>(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
        from: PagingState,
    ) -> Result<(Vec<R>, Option<PagingState>)>
    where
        R: for<'f, 'm> DeserializeRow<'f, 'm>,
    {
        self.read_fault(statement).await?;
        let started = Instant::now();
        let page = self.session.execute_single_page(statement, &values, from).await;
        self.read_speculation.record(started.elapsed());
        let (result, next) = page.map_err(|error| certainty::read_error(&error))?;
        let next = match next {
            PagingStateResponse::HasMorePages { state } => Some(state),
            PagingStateResponse::NoMorePages => None,
        };
        Ok((self.read_rows(statement, &values, result)?, next))
    }

    async fn read_fault(&self, statement: &PreparedStatement) -> Result<()> {
        let fault = self.faults.before(statement, trace::kind_of_read(statement)).await;
        fault.map_or(Ok(()), |_| Err(fault_injection::read_error()))
    }

    /// A page like [`Cql::page`], whose rows are decoded one by one: an unreadable row does not hide the others.
    pub(crate) async fn page_of_readable<R>(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
        from: PagingState,
    ) -> Result<(Vec<Result<R>>, Option<PagingState>)>
    where
        R: for<'f, 'm> DeserializeRow<'f, 'm>,
    {
        let (rows, next) = self.page::<Readable<R>>(statement, values, from).await?;
        Ok((rows.into_iter().map(|row| row.0).collect(), next))
    }

    fn read_rows<R>(
        &self,
        statement: &PreparedStatement,
        values: &impl SerializeRow,
        result: QueryResult,
    ) -> Result<Vec<R>>
    where
        R: for<'f, 'm> DeserializeRow<'f, 'm>,
    {
        let rows = rows_of(result)?;
        self.tracer.read(statement, values, rows.rows_num() as u64, rows.rows_bytes_size() as u64);
        deserialize(&rows)
    }

    /// An unconditional write. Writing it again changes nothing.
    pub(crate) async fn write(&self, statement: &PreparedStatement, values: impl SerializeRow) -> Result<()> {
        self.tracer.write(StatementKind::Write, [(statement, &values)]);
        let fault = self.write_fault(statement).await?;
        let mut attempts = Attempts::default();
        loop {
            let started = Instant::now();
            let written = self.session.execute_unpaged(statement, &values).await;
            self.write_speculation.record(started.elapsed());
            let Err(error) = written else { return fault.map_or(Ok(()), Err) };
            attempts.failed(started, &error)?;
        }
    }

    /// `Err` where a fault keeps the write from being executed; otherwise the error to return after it, if any.
    async fn write_fault(&self, statement: &PreparedStatement) -> Result<Option<StoreError>> {
        match self.faults.before(statement, StatementKind::Write).await {
            Some(fault @ (StatementFault::NotSent | StatementFault::RequestLost)) => {
                Err(fault_injection::write_error(fault))
            }
            Some(fault @ StatementFault::ResultLost) => Ok(Some(fault_injection::write_error(fault))),
            None => Ok(None),
        }
    }

    /// Writes rows of one partition as one mutation.
    pub(crate) async fn write_rows<V: SerializeRow>(
        &self,
        statement: &PreparedStatement,
        rows: &[V],
    ) -> Result<()> {
        match rows {
            [row] => self.write(statement, row).await,
            rows => self.write_batch(&rows.iter().map(|row| (statement, row)).collect::<Vec<_>>()).await,
        }
    }

    /// Writes rows of one partition key, of one or several tables of a keyspace, as one mutation.
    pub(crate) async fn write_batch<V: SerializeRow>(&self, rows: &[(&PreparedStatement, V)]) -> Result<()> {
        let Some((first, _)) = rows.first() else { return Ok(()) };
        self.tracer.write(StatementKind::Write, rows.iter().map(|(statement, row)| (*statement, row)));
        let mut batch = Batch::new(BatchType::Unlogged);
        let mut values = Vec::with_capacity(rows.len());
        for (statement, row) in rows {
            batch.append_statement((*statement).clone());
            values.push(row);
        }
        batch.set_execution_profile_handle(first.get_execution_profile_handle().cloned());
        batch.set_is_idempotent(true);
        let fault = self.write_fault(first).await?;
        let mut attempts = Attempts::default();
        loop {
            let started = Instant::now();
            let written = self.session.batch(&batch, &values).await;
            self.write_speculation.record(started.elapsed());
            let Err(error) = written else { return fault.map_or(Ok(()), Err) };
            attempts.failed(started, &error)?;
        }
    }

    /// One conditional statement. `Err` is certainly not applied.
    pub(crate) async fn cas(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<CasResult> {
        self.tracer.write(StatementKind::Cas, [(statement, &values)]);
        let coordinator = self.coordinator(statement, &values);
        let fault = self.faults.before(statement, StatementKind::Cas).await;
        let send = async || {
            let result = self.session.execute_unpaged(statement, &values).await;
            self.cas_result(statement, coordinator, result)
        };
        cas_with_fault(fault, send).await
    }

    /// Statements of one partition, at least one of them conditional: all of them or none. `Err` is certainly not applied.
    pub(crate) async fn cas_batch<V: SerializeRow>(
        &self,
        rows: &[(&PreparedStatement, V)],
    ) -> Result<CasResult> {
        let Some((statement, first)) = rows.first() else { return Ok(CasResult::Applied) };
        self.tracer.write(StatementKind::Cas, rows.iter().map(|(statement, row)| (*statement, row)));
        let coordinator = self.coordinator(statement, first);
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_execution_profile_handle(statement.get_execution_profile_handle().cloned());
        let mut values = Vec::with_capacity(rows.len());
        for (statement, row) in rows {
            batch.append_statement((*statement).clone());
            values.push(row);
        }
        let fault = self.faults.before(statement, StatementKind::Cas).await;
        let send = async || {
            let result = self.session.batch(&batch, &values).await;
            self.cas_result(statement, coordinator, result)
        };
        cas_with_fault(fault, send).await
    }

    /// The replica that a conditional statement goes to now.
    fn coordinator(&self, statement: &PreparedStatement, values: &impl SerializeRow) -> Option<Uuid> {
        let token = statement.calculate_token(values).ok().flatten()?;
        let spec = statement.get_table_spec()?;
        let serial = Table::named(spec.table_name()).map(|table| self.policy.of(table).serial)?;
        self.lwt_routing.coordinator(&self.session.get_cluster_state(), spec, token, serial)
    }

    /// Whether the partition of these values can be read and written now, by the nodes that are connected. Where a process
    /// can choose a partition, it chooses one of these.
    pub(crate) fn has_quorum(&self, statement: &PreparedStatement, values: &impl SerializeRow) -> bool {
        let cluster = self.session.get_cluster_state();
        if cluster.get_nodes_info().iter().all(|node| node.is_connected()) {
            return true;
        }
        let token = statement.calculate_token(values).ok().flatten();
        let table = statement.get_table_spec().and_then(|spec| Table::named(spec.table_name()));
        let (Some(token), Some(table)) = (token, table) else { return true };
        quorum_availability::has_quorum(
            &cluster,
            (&self.prefix, table),
            &self.policy,
            self.lwt_routing.local_dc(),
            token,
        )
    }

    /// A failed coordinator becomes suspect, since the next statement of the key would go to it again.
    fn cas_result(
        &self,
        statement: &PreparedStatement,
        coordinator: Option<Uuid>,
        result: Result<QueryResult, ExecutionError>,
    ) -> Result<CasResult> {
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                if let Some(coordinator) = coordinator
                    && certainty::is_coordinator_failure(&error)
                {
                    self.lwt_routing.suspect(coordinator);
                }
                let spec = statement.get_table_spec();
                let certainty = certainty::of_execution(&error);
                let table = spec.map_or("", |spec| spec.table_name());
                tracing::debug!(%error, ?certainty, table, "execute a conditional write");
                return if certainty == WriteCertainty::MaybeWritten {
                    Ok(CasResult::Unknown)
                } else {
                    Err(certainty::write_error(&error, certainty))
                };
            }
        };
        is_applied(result).map(|applied| if applied { CasResult::Applied } else { CasResult::NotApplied })
    }
}

/// The result of a conditional write, of which a test may have something lost.
async fn cas_with_fault(
    fault: Option<StatementFault>,
    send: impl AsyncFnOnce() -> Result<CasResult>,
) -> Result<CasResult> {
    match fault {
        None => send().await,
        Some(fault @ StatementFault::NotSent) => Err(fault_injection::write_error(fault)),
        Some(StatementFault::RequestLost) => Ok(CasResult::Unknown),
        Some(StatementFault::ResultLost) => send().await.map(|_| CasResult::Unknown),
    }
}

/// The attempts of a plain write so far, and the most that they may have written.
struct Attempts {
    count: usize,
    worst: WriteCertainty,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { count: 0, worst: WriteCertainty::NotWritten }
    }
}

impl Attempts {
    /// Records a failed attempt: `Err` is the error of the write, `Ok` means to try again.
    fn failed(&mut self, started: Instant, error: &ExecutionError) -> Result<()> {
        self.count += 1;
        let was_speculated = started.elapsed() >= speculative_execution::EARLIEST;
        match certainty::of_execution(error) {
            WriteCertainty::MaybeWritten => self.worst = WriteCertainty::MaybeWritten,
            _ if was_speculated => self.worst = WriteCertainty::MaybeWritten,
            WriteCertainty::Overloaded if self.worst == WriteCertainty::NotWritten => {
                self.worst = WriteCertainty::Overloaded;
            }
            _ => {}
        }
        if self.count == WRITE_ATTEMPTS || !certainty::is_node_failure(error) {
            return Err(certainty::write_error(error, self.worst));
        }
        Ok(())
    }
}

const fn serial_level(serial: SerialConsistency) -> Consistency {
    match serial {
        SerialConsistency::Serial => Consistency::Serial,
        SerialConsistency::LocalSerial => Consistency::LocalSerial,
    }
}

fn corrupt(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Corrupt(error.to_string())
}

fn rows_of(result: QueryResult) -> Result<QueryRowsResult> {
    result.into_rows_result().map_err(|error| corrupt(&error))
}

fn deserialize<R>(rows: &QueryRowsResult) -> Result<Vec<R>>
where
    R: for<'f, 'm> DeserializeRow<'f, 'm>,
{
    let typed = rows.rows::<R>().map_err(|error| corrupt(&error))?;
    typed.collect::<Result<Vec<R>, _>>().map_err(|error| corrupt(&error))
}

/// The first column of a conditional write's result is `[applied]`, whatever other columns follow.
fn is_applied(result: QueryResult) -> Result<bool> {
    let rows: Vec<scylla::value::Row> = deserialize(&rows_of(result)?)?;
    let first = rows.first().and_then(|row| row.columns.first());
    match first {
        Some(Some(scylla::value::CqlValue::Boolean(applied))) => Ok(*applied),
        other => {
            Err(StoreError::Corrupt(format!("a conditional write returned {other:?} instead of [applied]")))
        }
    }
}
