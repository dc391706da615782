//! Rows of a table as its schema has them: the values of the primary key are made from the types of its columns.

use futures_util::{StreamExt, stream};
use mw_store_cassandra::{Options, Table};
use scylla::client::session::Session;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlDate, CqlTimestamp, CqlValue};
use uuid::Uuid;

/// Statements at the same time.
const CONCURRENT: usize = 8;
/// 2026-09-21.
const NOW_MS: i64 = 1_790_000_000_000;

pub(crate) fn full_name(options: &Options, table: Table) -> String {
    format!("{}.{}", table.class().keyspace(&options.keyspace), table.name())
}

/// Rows that are written while a replica is down. Each is a partition of its own.
pub(crate) struct RowSet {
    pub(crate) table: Table,
    insert: String,
    select: String,
    rows: Vec<Vec<CqlValue>>,
}

impl RowSet {
    pub(crate) async fn new(
        session: &Session,
        options: &Options,
        table: Table,
        name: &str,
        count: usize,
    ) -> Self {
        let keyspace = table.class().keyspace(&options.keyspace);
        let columns = "SELECT column_name, kind, position, type FROM system_schema.columns \
                       WHERE keyspace_name = ? AND table_name = ?";
        let columns = session.query_unpaged(columns, (keyspace, table.name())).await.unwrap();
        let columns = columns.into_rows_result().unwrap();
        let mut columns: Vec<(String, String, i32, String)> = columns
            .rows()
            .unwrap()
            .map(Result::unwrap)
            .filter(|(_, kind, ..): &(String, String, i32, String)| {
                kind == "partition_key" || kind == "clustering"
            })
            .collect();
        columns.sort_by_key(|(_, kind, position, _)| (kind != "partition_key", *position));
        let names: Vec<&str> = columns.iter().map(|(name, ..)| name.as_str()).collect();
        let placeholders = vec!["?"; names.len()].join(", ");
        let conditions: Vec<String> = names.iter().map(|name| format!("{name} = ?")).collect();
        let full_name = full_name(options, table);
        let row = |number: usize| columns.iter().map(|(_, _, _, kind)| value(kind, name, number)).collect();
        Self {
            table,
            insert: format!("INSERT INTO {full_name} ({}) VALUES ({placeholders})", names.join(", ")),
            select: format!("SELECT {} FROM {full_name} WHERE {}", names[0], conditions.join(" AND ")),
            rows: (0..count).map(row).collect(),
        }
    }

    async fn prepare(session: &Session, text: &str, consistency: Consistency) -> PreparedStatement {
        let mut statement = session.prepare(text).await.unwrap();
        statement.set_consistency(consistency);
        statement
    }

    pub(crate) async fn write(&self, session: &Session) {
        let insert = &Self::prepare(session, &self.insert, Consistency::Quorum).await;
        let writes = stream::iter(&self.rows).map(|row| async move {
            session.execute_unpaged(insert, row).await.unwrap();
        });
        writes.buffer_unordered(CONCURRENT).collect::<Vec<()>>().await;
    }

    async fn found(&self, session: &Session, consistency: Consistency) -> usize {
        let select = &Self::prepare(session, &self.select, consistency).await;
        let reads = stream::iter(&self.rows).map(|row| async move {
            let rows = session.execute_unpaged(select, row).await.unwrap().into_rows_result().unwrap();
            rows.rows_num()
        });
        reads.buffer_unordered(CONCURRENT).collect::<Vec<usize>>().await.into_iter().sum()
    }

    /// How many rows a node does not have; the session talks to that node alone.
    pub(crate) async fn missing(&self, session: &Session) -> usize {
        self.rows.len() - self.found(session, Consistency::One).await
    }

    pub(crate) async fn read_at_quorum(&self, session: &Session) {
        assert_eq!(self.found(session, Consistency::Quorum).await, self.rows.len(), "a quorum has every row");
    }
}

/// A value of a type, different for every row of every set.
fn value(kind: &str, set: &str, number: usize) -> CqlValue {
    let small = i32::try_from(number).unwrap();
    let seed = set.bytes().fold(7_i64, |seed, byte| seed * 31 + i64::from(byte));
    match kind {
        "text" => CqlValue::Text(format!("integrity-{set}-{number}")),
        "int" => CqlValue::Int(small),
        "smallint" => CqlValue::SmallInt(i16::try_from(number).unwrap()),
        "bigint" => CqlValue::BigInt(seed + i64::from(small)),
        "timestamp" => CqlValue::Timestamp(CqlTimestamp(NOW_MS + i64::from(small))),
        "date" => CqlValue::Date(CqlDate((1 << 31) + 20_000 + u32::try_from(number).unwrap())),
        "blob" => CqlValue::Blob(format!("{set}{number}").into_bytes()),
        "uuid" => CqlValue::Uuid(Uuid::from_u128(u128::from(seed.unsigned_abs()) << 32 | number as u128)),
        other => panic!("no value of type {other} is known: add one here"),
    }
}
