//! What was applied: a row for each file, and one process at a time that adds to them.
//!
//! These rows are decided among all data centres. Applying a schema while one of them is lost has to wait for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::response::query_result::QueryResult;
use scylla::serialize::row::SerializeRow;
use scylla::statement::unprepared::Statement;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::{CqlTimestamp, CqlValue, Row};
use uuid::Uuid;

use super::error::SchemaError;
use super::files::{self, File};
use super::live::Live;
use crate::tables::Class;

const TABLE: &str = "schema_versions";
/// All rows are in one partition.
const PART: i32 = 0;
/// More files than anybody will write.
const ROWS_MAX: i32 = 10_000;
/// A process that died while applying is forgotten after this.
const CLAIM_SECONDS: i32 = 120;
/// A claim older than this is renewed before the next statement, which may take a while.
const RENEW_AFTER: Duration = Duration::from_secs(15);
/// How long to wait for a process that is applying.
const PATIENCE: Duration = Duration::from_mins(5);
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Applied {
    number: u32,
    checksum: String,
}

pub(super) fn table(prefix: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (\n    part int,\n    number int,\n    name text,\n    checksum text,\n    \
         applied_at timestamp,\n    runner uuid static,\n    PRIMARY KEY ((part), number)\n)",
        name(prefix)
    )
}

fn name(prefix: &str) -> String {
    format!("{}.{TABLE}", Class::Core.keyspace(prefix))
}

/// Whether the table is one of those that keep the schema itself.
pub(super) fn is_own(class: Class, table: &str) -> bool {
    class == Class::Core && table == TABLE
}

/// What was applied, oldest first.
pub(super) async fn read(session: &Session, prefix: &str, live: &Live) -> Result<Vec<Applied>, SchemaError> {
    if !live.has_table(Class::Core, TABLE) {
        return Err(SchemaError::Missing { keyspace: Class::Core.keyspace(prefix) });
    }
    let text = format!("SELECT number, checksum FROM {} WHERE part = ? LIMIT ?", name(prefix));
    let mut statement = Statement::new(text);
    statement.set_consistency(Consistency::LocalQuorum);
    statement.set_is_idempotent(true);
    let failed = |cause: String| SchemaError::Read { what: "what was applied", cause };
    let result = session.query_unpaged(statement, (PART, ROWS_MAX)).await;
    let rows = result.map_err(|error| failed(error.to_string()))?;
    let rows = rows.into_rows_result().map_err(|error| failed(error.to_string()))?;
    let rows = rows.rows::<(Option<i32>, Option<String>)>().map_err(|error| failed(error.to_string()))?;
    let mut applied = Vec::new();
    for row in rows {
        // The partition has a row without a number while somebody applies the first file.
        if let (Some(number), Some(checksum)) = row.map_err(|error| failed(error.to_string()))? {
            applied.push(Applied { number: u32::try_from(number).unwrap_or(0), checksum });
        }
    }
    Ok(applied)
}

pub(super) fn newest(applied: &[Applied]) -> u32 {
    applied.iter().map(|row| row.number).max().unwrap_or(0)
}

/// The files that were not applied yet.
pub(super) fn pending<'a>(applied: &[Applied], files: &'a [File]) -> Result<Vec<&'a File>, SchemaError> {
    let (found, known) = (newest(applied), files::newest(files));
    if found > known {
        return Err(SchemaError::Newer { found, known });
    }
    let mut pending = Vec::new();
    for file in files {
        match applied.iter().find(|row| row.number == file.number) {
            Some(row) if row.checksum == file.checksum() => {}
            Some(_) => return Err(SchemaError::Edited { name: file.name.to_owned() }),
            None => pending.push(file),
        }
    }
    Ok(pending)
}

/// The right to apply, for as long as it is renewed.
pub(super) struct Runner<'a> {
    session: &'a Session,
    table: String,
    id: Uuid,
    since: Instant,
}

impl<'a> Runner<'a> {
    /// Waits for its turn; `waiting` is told when somebody else has it.
    pub(super) async fn claim(
        session: &'a Session,
        prefix: &str,
        waiting: &(dyn Fn() + Send + Sync),
    ) -> Result<Self, SchemaError> {
        let mut runner = Self { session, table: name(prefix), id: Uuid::new_v4(), since: Instant::now() };
        let text = format!(
            "UPDATE {} USING TTL {CLAIM_SECONDS} SET runner = ? WHERE part = ? IF runner = null",
            runner.table
        );
        let started = Instant::now();
        loop {
            runner.since = Instant::now();
            match runner.decide(text.clone(), (runner.id, PART)).await {
                Ok((applied, holder)) if applied || holder == Some(runner.id) => return Ok(runner),
                Ok(_) => waiting(),
                // It may have been taken all the same; the next round tells.
                Err(error) => tracing::debug!(%error, "claim the right to apply the schema"),
            }
            if started.elapsed() >= PATIENCE {
                return Err(SchemaError::Claimed);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(super) async fn renew(&mut self) -> Result<(), SchemaError> {
        if self.since.elapsed() < RENEW_AFTER {
            return Ok(());
        }
        self.since = Instant::now();
        let text = format!(
            "UPDATE {} USING TTL {CLAIM_SECONDS} SET runner = ? WHERE part = ? IF runner = ?",
            self.table
        );
        match self.decide(text, (self.id, PART, self.id)).await? {
            (true, _) => Ok(()),
            (false, _) => Err(SchemaError::ClaimLost),
        }
    }

    /// Notes that a file was applied. Noting it twice changes nothing.
    pub(super) async fn note(&self, file: &File, at: CqlTimestamp) -> Result<(), SchemaError> {
        let text = format!(
            "INSERT INTO {} (part, number, name, checksum, applied_at) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS",
            self.table
        );
        let number = i32::try_from(file.number).unwrap_or(i32::MAX);
        self.decide(text, (PART, number, file.name, file.checksum(), at)).await.map(drop)
    }

    /// Lets the next one at it. Where that fails the claim ends by itself.
    pub(super) async fn release(self) {
        let text = format!("UPDATE {} SET runner = null WHERE part = ? IF runner = ?", self.table);
        if let Err(error) = self.decide(text, (PART, self.id)).await {
            tracing::debug!(%error, "release the right to apply the schema");
        }
    }

    /// Whether the condition held, and who had the right before.
    async fn decide(
        &self,
        text: String,
        values: impl SerializeRow,
    ) -> Result<(bool, Option<Uuid>), SchemaError> {
        let mut statement = Statement::new(text.clone());
        let profile = ExecutionProfile::builder()
            .consistency(Consistency::Quorum)
            .serial_consistency(Some(SerialConsistency::Serial))
            .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
            .build();
        statement.set_execution_profile_handle(Some(profile.into_handle()));
        match self.session.query_unpaged(statement, values).await {
            Ok(result) => Ok(verdict(result)),
            Err(cause) => Err(SchemaError::Statement { statement: text, cause: Box::new(cause) }),
        }
    }
}

fn verdict(result: QueryResult) -> (bool, Option<Uuid>) {
    let row = result.into_rows_result().ok().and_then(|rows| rows.first_row::<Row>().ok());
    let columns = row.map(|row| row.columns).unwrap_or_default();
    let applied = matches!(columns.first(), Some(Some(CqlValue::Boolean(true))));
    let holder = columns.iter().flatten().find_map(CqlValue::as_uuid);
    (applied, holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[File] = &[
        File { number: 1, name: "0001_one", text: "CREATE TYPE IF NOT EXISTS core.a (x int);" },
        File { number: 2, name: "0002_two", text: "CREATE TYPE IF NOT EXISTS core.b (x int);" },
    ];

    fn applied(count: usize) -> Vec<Applied> {
        FILES
            .iter()
            .take(count)
            .map(|file| Applied { number: file.number, checksum: file.checksum() })
            .collect()
    }

    fn names(applied: &[Applied]) -> Vec<&'static str> {
        pending(applied, FILES).unwrap().iter().map(|file| file.name).collect()
    }

    #[test]
    fn what_was_not_applied_is_pending() {
        assert_eq!(names(&[]), ["0001_one", "0002_two"]);
        assert_eq!(names(&applied(1)), ["0002_two"]);
        assert_eq!(names(&applied(2)), [""; 0]);
    }

    #[test]
    fn a_newer_schema_is_refused() {
        let mut rows = applied(2);
        rows.push(Applied { number: 3, checksum: "?".to_owned() });
        let said = pending(&rows, FILES).unwrap_err().to_string();
        assert!(said.contains("it is at number 3, this program knows 2"), "{said}");
    }

    #[test]
    fn a_file_that_changed_after_it_was_applied_is_refused() {
        let mut rows = applied(2);
        rows[0].checksum = "other".to_owned();
        let said = pending(&rows, FILES).unwrap_err().to_string();
        assert!(said.starts_with("schema file 0001_one is not the one that was applied"), "{said}");
    }
}
