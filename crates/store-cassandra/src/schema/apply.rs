//! Brings the schema of a cluster up to date: runs the files that are missing, then alters table options to the policy.
//!
//! Every statement is idempotent (IF NOT EXISTS, ALTER … WITH), so after a crash at any statement the next `apply` starts
//! over and finishes. All statements go through one coordinator, because Cassandra does not order schema changes of
//! several.

use std::sync::Arc;

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::errors::ExecutionError;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::unprepared::Statement;
use scylla::value::CqlTimestamp;

use super::error::SchemaError;
use super::files::{FILES, File};
use super::live::Live;
use super::plan::{self, Step};
use super::versions::{self, SchemaLock};
use super::{Schema, drift};
use crate::schema::tables::Table;

/// The progress of [`Schema::apply`].
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// Another process holds the schema lock.
    Waiting,
    /// This statement is run next.
    Statement { done: usize, total: usize, statement: &'a str },
}

type Report<'a> = &'a (dyn Fn(Progress<'_>) + Send + Sync);

pub(super) async fn apply(
    schema: &Schema,
    session: &Session,
    report: Report<'_>,
) -> Result<usize, SchemaError> {
    let changes = Changes { schema, ddl: &Ddl::of(session)?, report };
    let (pending, options) = changes.pending().await?;
    if pending.is_empty() && options.is_empty() {
        return Ok(0);
    }
    // Without the lock, which needs the table that these statements create. A crash in between leaves some keyspaces; any
    // process that applies creates the others.
    let bootstrapped =
        if pending.is_empty() { 0 } else { changes.run(plan::bootstrap(schema), None).await? };
    // A crash while the lock is held leaves it until its TTL ends; the next process to apply waits for that.
    let mut lock = SchemaLock::acquire(session, &schema.prefix, &|| report(Progress::Waiting)).await?;
    let applied = changes.apply_all(&mut lock).await;
    lock.release().await;
    let applied = applied?;
    // The driver routes statements to the replicas of a new keyspace only after it has read the metadata again.
    session
        .refresh_metadata()
        .await
        .map_err(|error| SchemaError::Read { what: "the cluster metadata", cause: error.to_string() })?;
    Ok(bootstrapped + applied)
}

struct Changes<'a> {
    schema: &'a Schema,
    ddl: &'a Ddl<'a>,
    report: Report<'a>,
}

impl Changes<'_> {
    /// The files that were not applied yet, and an ALTER for each table whose options differ from the policy.
    async fn pending(&self) -> Result<(Vec<&'static File>, Vec<Step>), SchemaError> {
        let schema = self.schema;
        let live = Live::read(self.ddl.session, &schema.prefix, schema.auto_repair).await?;
        let applied = match versions::read(self.ddl.session, &schema.prefix, &live).await {
            Err(SchemaError::Missing { .. }) => Vec::new(),
            read => read?,
        };
        let pending = versions::pending(&applied, FILES)?;
        let options = drift::options(schema, &live).into_iter().map(|(table, changed)| {
            let wanted = changed.into_iter().map(|(option, _)| option.to_string());
            alter(schema, table, &wanted.collect::<Vec<_>>())
        });
        Ok((pending, options.collect()))
    }

    async fn apply_all(&self, lock: &mut SchemaLock<'_>) -> Result<usize, SchemaError> {
        // Read again under the lock: its previous holder may have applied everything.
        let (pending, _) = self.pending().await?;
        let mut run = 0;
        for file in pending {
            // A crash among the statements leaves a part of the file; the next process to apply runs all of it again.
            run += self.run(plan::steps(self.schema, file)?, Some(&mut *lock)).await?;
            // A crash before the version is recorded has the next process run the file again, which changes nothing.
            lock.record(file, now()).await?;
        }
        // A crash among the ALTERs leaves options that differ; the next process to apply finds them by comparing.
        let (_, options) = self.pending().await?;
        Ok(run + self.run(options, Some(lock)).await?)
    }

    async fn run(
        &self,
        steps: Vec<Step>,
        mut lock: Option<&mut SchemaLock<'_>>,
    ) -> Result<usize, SchemaError> {
        let total = steps.len();
        for (done, step) in steps.into_iter().enumerate() {
            (self.report)(Progress::Statement { done, total, statement: &step.statement });
            if let Some(lock) = &mut lock {
                lock.renew().await?;
            }
            self.ddl.run(step.statement).await?;
        }
        Ok(total)
    }
}

fn alter(schema: &Schema, table: Table, options: &[String]) -> Step {
    let keyspace = table.class().keyspace(&schema.prefix);
    let statement = format!("ALTER TABLE {keyspace}.{table} WITH {}", options.join("\n    AND "));
    Step { comment: Vec::new(), statement }
}

fn now() -> CqlTimestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    CqlTimestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Runs schema changes, all through the same coordinator.
struct Ddl<'a> {
    session: &'a Session,
    profile: scylla::client::execution_profile::ExecutionProfileHandle,
}

impl<'a> Ddl<'a> {
    fn of(session: &'a Session) -> Result<Self, SchemaError> {
        let cluster = session.get_cluster_state();
        let connected = cluster.get_nodes_info().iter().filter(|node| node.is_connected());
        // The smallest host id, so that every process chooses the same coordinator.
        let node = connected.min_by_key(|node| node.host_id).ok_or(SchemaError::NoNode)?;
        let target = NodeIdentifier::Node(Arc::clone(node));
        let profile = ExecutionProfile::builder()
            .load_balancing_policy(SingleTargetLoadBalancingPolicy::new(target, None))
            .build();
        Ok(Self { session, profile: profile.into_handle() })
    }

    /// Runs a statement and waits for schema agreement.
    async fn run(&self, text: String) -> Result<(), SchemaError> {
        let mut statement = Statement::new(text.clone());
        statement.set_execution_profile_handle(Some(self.profile.clone()));
        // The driver itself waits for agreement after a statement that changed the schema.
        self.session.query_unpaged(statement, ()).await.map_err(|cause| failed(&text, cause))?;
        Ok(())
    }
}

fn failed(text: &str, cause: ExecutionError) -> SchemaError {
    if text.contains("auto_repair =") && cause.to_string().contains("auto_repair") {
        return SchemaError::NoAutoRepair;
    }
    let statement = text.lines().next().unwrap_or_default().to_owned();
    SchemaError::Statement { statement, cause: Box::new(cause) }
}
