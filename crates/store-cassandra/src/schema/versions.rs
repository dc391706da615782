//! The table `schema_versions`: a row for each applied file, and the lock under which one process at a time applies.
//!
//! Its LWTs are at SERIAL, across all data centres: while a majority of all replicas is unreachable, no schema is applied.

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
use crate::schema::tables::Class;

const TABLE: &str = "schema_versions";
/// All rows are in one partition.
const PART: i32 = 0;
/// An upper bound of the number of files.
const ROWS_MAX: i32 = 10_000;
/// The TTL of the lock: it frees itself this long after its holder died.
const LOCK_SECONDS: i32 = 120;
/// A lock older than this is renewed before the next statement, which may take a while.
const RENEW_AFTER: Duration = Duration::from_secs(15);
/// How long to wait for the holder of the lock.
const ACQUIRE_TIMEOUT: Duration = Duration::from_mins(5);
const ACQUIRE_PAUSE: Duration = Duration::from_millis(500);
/// Times that a CAS of the lock's holder is sent when its results are lost, and the pause before the next one. Together with
/// the timeouts of the nodes this stays below the TTL of the lock.
const SENDS_MAX: usize = 8;
const SEND_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Applied {
    number: u32,
    checksum: String,
}

pub(super) fn table(prefix: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (\n    part int,\n    number int,\n    name text,\n    checksum text,\n    \
         applied_at timestamp,\n    lock_holder uuid static,\n    PRIMARY KEY ((part), number)\n)",
        name(prefix)
    )
}

fn name(prefix: &str) -> String {
    format!("{}.{TABLE}", Class::Core.keyspace(prefix))
}

/// Whether the table is `schema_versions` itself.
pub(super) fn is_own(class: Class, table: &str) -> bool {
    class == Class::Core && table == TABLE
}

/// The applied files, oldest first.
pub(super) async fn read(session: &Session, prefix: &str, live: &Live) -> Result<Vec<Applied>, SchemaError> {
    if !live.has_table(Class::Core, TABLE) {
        return Err(SchemaError::Missing { keyspace: Class::Core.keyspace(prefix) });
    }
    let text = format!("SELECT number, checksum FROM {} WHERE part = ? LIMIT ?", name(prefix));
    let mut statement = Statement::new(text);
    statement.set_consistency(Consistency::LocalQuorum);
    statement.set_is_idempotent(true);
    let failed = |cause: String| SchemaError::Read { what: "the applied schema versions", cause };
    let result = session.query_unpaged(statement, (PART, ROWS_MAX)).await;
    let rows = result.map_err(|error| failed(error.to_string()))?;
    let rows = rows.into_rows_result().map_err(|error| failed(error.to_string()))?;
    let rows = rows.rows::<(Option<i32>, Option<String>)>().map_err(|error| failed(error.to_string()))?;
    let mut applied = Vec::new();
    for row in rows {
        // While a process applies the first file, the partition has its static column and no row.
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

/// The lock of the process that applies, held for as long as it is renewed.
pub(super) struct SchemaLock<'a> {
    session: &'a Session,
    table: String,
    id: Uuid,
    since: Instant,
}

impl<'a> SchemaLock<'a> {
    /// Waits for the lock; calls `waiting` each time another process holds it.
    pub(super) async fn acquire(
        session: &'a Session,
        prefix: &str,
        waiting: &(dyn Fn() + Send + Sync),
    ) -> Result<Self, SchemaError> {
        let mut lock = Self { session, table: name(prefix), id: Uuid::new_v4(), since: Instant::now() };
        let text = format!(
            "UPDATE {} USING TTL {LOCK_SECONDS} SET lock_holder = ? WHERE part = ? IF lock_holder = null",
            lock.table
        );
        let started = Instant::now();
        loop {
            lock.since = Instant::now();
            match lock.cas(text.clone(), (lock.id, PART)).await {
                Ok((applied, holder)) if applied || holder == Some(lock.id) => return Ok(lock),
                Ok(_) => waiting(),
                // The CAS may have been applied all the same: the next round finds this process as the holder.
                Err(error) => tracing::debug!(%error, "acquire the schema lock"),
            }
            if started.elapsed() >= ACQUIRE_TIMEOUT {
                return Err(SchemaError::LockTimeout);
            }
            tokio::time::sleep(ACQUIRE_PAUSE).await;
        }
    }

    pub(super) async fn renew(&mut self) -> Result<(), SchemaError> {
        if self.since.elapsed() < RENEW_AFTER {
            return Ok(());
        }
        self.since = Instant::now();
        let text = format!(
            "UPDATE {} USING TTL {LOCK_SECONDS} SET lock_holder = ? WHERE part = ? IF lock_holder = ?",
            self.table
        );
        // Applied twice, it only renews twice.
        match resend_lost(|| self.cas(text.clone(), (self.id, PART, self.id))).await? {
            (true, _) => Ok(()),
            (false, _) => Err(SchemaError::LockLost),
        }
    }

    /// Records that a file was applied. A second record changes nothing.
    pub(super) async fn record(&self, file: &File, at: CqlTimestamp) -> Result<(), SchemaError> {
        let text = format!(
            "INSERT INTO {} (part, number, name, checksum, applied_at) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS",
            self.table
        );
        let number = i32::try_from(file.number).unwrap_or(i32::MAX);
        let values = (PART, number, file.name, file.checksum(), at);
        resend_lost(|| self.cas(text.clone(), &values)).await.map(drop)
    }

    /// Frees the lock. Where that fails it expires with its TTL.
    pub(super) async fn release(self) {
        let text = format!("UPDATE {} SET lock_holder = null WHERE part = ? IF lock_holder = ?", self.table);
        if let Err(error) = self.cas(text, (PART, self.id)).await {
            tracing::debug!(%error, "release the schema lock");
        }
    }

    /// Whether the CAS was applied, and the holder that it found.
    async fn cas(
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
            Ok(result) => Ok(cas_result(result)),
            Err(cause) => Err(SchemaError::Statement { statement: text, cause: Box::new(cause) }),
        }
    }
}

/// Sends a CAS that may be applied twice until a result arrives. A busy cluster loses results (a write timeout of a Paxos
/// round), which is no reason to stop in the middle of a schema.
async fn resend_lost<T, F>(send: impl Fn() -> F) -> Result<T, SchemaError>
where
    F: Future<Output = Result<T, SchemaError>>,
{
    for _ in 1..SENDS_MAX {
        match send().await {
            Err(error @ SchemaError::Statement { .. }) => tracing::debug!(%error, "send a schema CAS again"),
            result => return result,
        }
        tokio::time::sleep(SEND_PAUSE).await;
    }
    send().await
}

fn cas_result(result: QueryResult) -> (bool, Option<Uuid>) {
    let row = result.into_rows_result().ok().and_then(|rows| rows.first_row::<Row>().ok());
    let columns = row.map(|row| row.columns).unwrap_or_default();
    let applied = matches!(columns.first(), Some(Some(CqlValue::Boolean(true))));
    let holder = columns.iter().flatten().find_map(CqlValue::as_uuid);
    (applied, holder)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use scylla::errors::ExecutionError;

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
    fn a_file_that_was_not_applied_is_pending() {
        assert_eq!(names(&[]), ["0001_one", "0002_two"]);
        assert_eq!(names(&applied(1)), ["0002_two"]);
        assert_eq!(names(&applied(2)), [""; 0]);
    }

    fn lost_result() -> SchemaError {
        let cause = Box::new(ExecutionError::RequestTimeout(Duration::from_secs(2)));
        SchemaError::Statement { statement: "UPDATE".to_owned(), cause }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_result_does_not_end_the_application_of_a_schema() {
        let sends = AtomicUsize::new(0);
        let third_arrives = || async {
            match sends.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => Err(lost_result()),
                _ => Ok(true),
            }
        };
        assert!(resend_lost(third_arrives).await.unwrap());
        assert_eq!(sends.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_never_answers_is_reported() {
        let sends = AtomicUsize::new(0);
        let never = || async {
            sends.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(lost_result())
        };
        assert!(matches!(resend_lost(never).await, Err(SchemaError::Statement { .. })));
        assert_eq!(sends.load(Ordering::Relaxed), SENDS_MAX);
    }

    #[test]
    fn a_newer_schema_is_refused() {
        let mut rows = applied(2);
        rows.push(Applied { number: 3, checksum: "?".to_owned() });
        let error = pending(&rows, FILES).unwrap_err().to_string();
        assert!(error.contains("version 3, this program knows version 2"), "{error}");
    }

    #[test]
    fn a_file_that_changed_after_it_was_applied_is_refused() {
        let mut rows = applied(2);
        rows[0].checksum = "other".to_owned();
        let error = pending(&rows, FILES).unwrap_err().to_string();
        assert!(error.starts_with("schema file 0001_one differs from the one that was applied"), "{error}");
    }
}
