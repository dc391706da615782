//! Brings a cluster up to date: what is missing is made, and table options become the policy's.
//!
//! Every statement may be run again, so a process that died half-way left nothing that stands in the way of the next. All
//! changes go through one node, which puts them in order: Cassandra does not order changes from several.

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
use super::versions::{self, Runner};
use super::{Schema, drift};
use crate::tables::Table;

/// How far applying got.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// Another process is applying.
    Waiting,
    /// This statement comes next.
    Statement { done: usize, total: usize, statement: &'a str },
}

type Report<'a> = &'a (dyn Fn(Progress<'_>) + Send + Sync);

pub(super) async fn apply(
    schema: &Schema,
    session: &Session,
    report: Report<'_>,
) -> Result<usize, SchemaError> {
    let changes = Changes { schema, session: &Ddl::of(session)?, report };
    let (pending, options) = changes.needed().await?;
    if pending.is_empty() && options.is_empty() {
        return Ok(0);
    }
    let founded = if pending.is_empty() { 0 } else { changes.run(plan::foundation(schema), None).await? };
    let mut runner = Runner::claim(session, &schema.prefix, &|| report(Progress::Waiting)).await?;
    let applied = changes.all(&mut runner).await;
    runner.release().await;
    let applied = applied?;
    // Statements find the replicas of a new keyspace only once the driver knows of it.
    session
        .refresh_metadata()
        .await
        .map_err(|error| SchemaError::Read { what: "the ring", cause: error.to_string() })?;
    Ok(founded + applied)
}

struct Changes<'a> {
    schema: &'a Schema,
    session: &'a Ddl<'a>,
    report: Report<'a>,
}

impl Changes<'_> {
    /// Files that were not applied, and tables whose options are not the policy's.
    async fn needed(&self) -> Result<(Vec<&'static File>, Vec<Step>), SchemaError> {
        let schema = self.schema;
        let live = Live::read(self.session.session, &schema.prefix, schema.auto_repair).await?;
        let applied = match versions::read(self.session.session, &schema.prefix, &live).await {
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

    async fn all(&self, runner: &mut Runner<'_>) -> Result<usize, SchemaError> {
        // Whoever had the right before may have done it all.
        let (pending, _) = self.needed().await?;
        let mut run = 0;
        for file in pending {
            run += self.run(plan::steps(self.schema, file)?, Some(&mut *runner)).await?;
            runner.note(file, now()).await?;
        }
        let (_, options) = self.needed().await?;
        Ok(run + self.run(options, Some(runner)).await?)
    }

    async fn run(&self, steps: Vec<Step>, mut runner: Option<&mut Runner<'_>>) -> Result<usize, SchemaError> {
        let total = steps.len();
        for (done, step) in steps.into_iter().enumerate() {
            (self.report)(Progress::Statement { done, total, statement: &step.statement });
            if let Some(runner) = &mut runner {
                runner.renew().await?;
            }
            self.session.run(step.statement).await?;
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

/// Changes of the schema, all through the same node.
struct Ddl<'a> {
    session: &'a Session,
    profile: scylla::client::execution_profile::ExecutionProfileHandle,
}

impl<'a> Ddl<'a> {
    fn of(session: &'a Session) -> Result<Self, SchemaError> {
        let cluster = session.get_cluster_state();
        let connected = cluster.get_nodes_info().iter().filter(|node| node.is_connected());
        // The least id: every process takes the same node.
        let node = connected.min_by_key(|node| node.host_id).ok_or(SchemaError::NoNode)?;
        let target = NodeIdentifier::Node(Arc::clone(node));
        let profile = ExecutionProfile::builder()
            .load_balancing_policy(SingleTargetLoadBalancingPolicy::new(target, None))
            .build();
        Ok(Self { session, profile: profile.into_handle() })
    }

    /// Runs a statement; when it is done every node knows of it.
    async fn run(&self, text: String) -> Result<(), SchemaError> {
        let mut statement = Statement::new(text.clone());
        statement.set_execution_profile_handle(Some(self.profile.clone()));
        // The driver waits for agreement after whatever changed something.
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
