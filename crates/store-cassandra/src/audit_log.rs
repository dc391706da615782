//! The audit log: a row a change, by day. Rows are written once and expire by the policy of the table.

use mw_domain::time::Date;
use mw_store::Result;
use mw_store::audit::{AuditEntry, AuditLog, Operator};
use scylla::value::{CqlDate, CqlTimestamp};
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::statements::Access;
use crate::driver::time::{from_cql, to_cql};
use crate::schema::tables::Table;

/// A day as Cassandra stores it: 1970 is in the middle of the range.
fn day_of(date: Date) -> CqlDate {
    CqlDate(date.as_days().cast_unsigned().wrapping_add(1 << 31))
}

/// A row of the log without its day.
type EntryRow = (CqlTimestamp, Option<String>, Option<String>, Option<String>, Option<String>);

#[async_trait::async_trait]
impl AuditLog for CassandraStore {
    async fn append(&self, entry: AuditEntry) -> Result<()> {
        let insert =
            "INSERT INTO {} (day, at, id, token_name, address, action, result) VALUES (?, ?, ?, ?, ?, ?, ?)";
        let insert = self.cql.prepare(Table::AuditLog, Access::Write, insert).await?;
        let AuditEntry { at, operator: Operator { token, address }, action, result } = entry;
        let values = (day_of(at.date()), to_cql(at), Uuid::new_v4(), token, address, action, result);
        self.cql.write(&insert, values).await
    }

    async fn entries(&self, day: Date, limit: usize) -> Result<Vec<AuditEntry>> {
        let read = "SELECT at, token_name, address, action, result FROM {} WHERE day = ? LIMIT ?";
        let read = self.cql.prepare(Table::AuditLog, Access::Read, read).await?;
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let rows: Vec<EntryRow> = self.cql.rows(&read, (day_of(day), limit)).await?;
        let entry = |(at, token, address, action, result): EntryRow| AuditEntry {
            at: from_cql(at),
            operator: Operator { token: token.unwrap_or_default(), address: address.unwrap_or_default() },
            action: action.unwrap_or_default(),
            result: result.unwrap_or_default(),
        };
        Ok(rows.into_iter().map(entry).collect())
    }
}
