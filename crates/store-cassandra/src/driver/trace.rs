//! Statements as an observer sees them: which partition, how many rows and bytes, for which request.
//!
//! Serialising the values once more to count their bytes costs time, so it is done only for an observer of all statements, and for
//! those that the partition statistics sample.

use std::fmt;
use std::sync::Arc;

use mw_store::partitions::{AccessKind, PartitionAccess, PartitionReports};
use mw_store::request::{self, RequestLabel};
use scylla::serialize::row::{RowSerializationContext, SerializeRow};
use scylla::serialize::writers::RowWriter;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;

use crate::driver::partition_key::PartitionName;

/// What a statement does to its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatementKind {
    Read,
    Write,
    /// A lightweight transaction.
    Cas,
    /// A read at the serial level.
    Serial,
}

/// A statement that was sent; a batch is one statement, since all of its rows are of one partition.
#[derive(Debug, Clone, Copy)]
pub struct TracedStatement<'a> {
    pub keyspace: &'a str,
    pub table: &'a str,
    /// `None` for a scan of the whole table.
    pub token: Option<i64>,
    pub kind: StatementKind,
    /// Rows written, or read.
    pub rows: u64,
    /// Bytes of the values written, or of the rows read.
    pub bytes: u64,
    /// `None` for background work.
    pub request: Option<RequestLabel>,
}

pub trait StatementObserver: fmt::Debug + Send + Sync {
    fn statement(&self, statement: &TracedStatement<'_>);
}

/// Tells the observers of statements, if there are any.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tracer {
    observer: Option<Arc<dyn StatementObserver>>,
    partitions: PartitionReports,
}

impl Tracer {
    pub(crate) const fn new(
        observer: Option<Arc<dyn StatementObserver>>,
        partitions: PartitionReports,
    ) -> Self {
        Self { observer, partitions }
    }

    /// A read that returned so many rows and bytes.
    pub(crate) fn read(
        &self,
        statement: &PreparedStatement,
        values: &impl SerializeRow,
        rows: u64,
        bytes: u64,
    ) {
        self.trace(statement, values, kind_of_read(statement), (rows, bytes));
        self.report(statement, values, AccessKind::Read, || (rows, bytes));
    }

    /// A write of rows of one partition.
    pub(crate) fn write<'a, V: SerializeRow + 'a>(
        &self,
        kind: StatementKind,
        rows: impl IntoIterator<Item = (&'a PreparedStatement, &'a V)>,
    ) {
        let mut rows = rows.into_iter().peekable();
        let Some((statement, first)) = rows.peek().copied() else { return };
        let size = || {
            rows.fold((0, 0), |(count, bytes), (statement, row)| (count + 1, bytes + size(statement, row)))
        };
        if self.observer.is_none() {
            return self.report(statement, first, AccessKind::Write, size);
        }
        let size = size();
        self.trace(statement, first, kind, size);
        self.report(statement, first, AccessKind::Write, || size);
    }

    fn trace(
        &self,
        statement: &PreparedStatement,
        values: &impl SerializeRow,
        kind: StatementKind,
        (rows, bytes): (u64, u64),
    ) {
        let (Some(observer), Some(spec)) = (&self.observer, statement.get_table_spec()) else { return };
        let token = statement.calculate_token(values).ok().flatten().map(|token| token.value());
        let (keyspace, table) = (spec.ks_name(), spec.table_name());
        observer.statement(&TracedStatement {
            keyspace,
            table,
            token,
            kind,
            rows,
            bytes,
            request: request::current(),
        });
    }

    fn report(
        &self,
        statement: &PreparedStatement,
        values: &impl SerializeRow,
        kind: AccessKind,
        size: impl FnOnce() -> (u64, u64),
    ) {
        let Some((observer, stands_for)) = self.partitions.sampled() else { return };
        let (Some(spec), Some(name)) = (statement.get_table_spec(), PartitionName::of(statement, values))
        else {
            return;
        };
        let PartitionName { key, bucket } = &name;
        let (rows, bytes) = size();
        observer.observe(
            &PartitionAccess { table: spec.table_name(), key, bucket, kind, rows, bytes },
            stands_for,
        );
    }
}

/// A read of a statement, by its consistency level.
pub(crate) fn kind_of_read(statement: &PreparedStatement) -> StatementKind {
    match statement.get_consistency() {
        Some(Consistency::Serial | Consistency::LocalSerial) => StatementKind::Serial,
        _ => StatementKind::Read,
    }
}

fn size(statement: &PreparedStatement, row: &impl SerializeRow) -> u64 {
    let specs = statement.get_variable_col_specs();
    let mut bytes = Vec::new();
    let context = RowSerializationContext::from_specs(specs.as_slice());
    row.serialize(&context, &mut RowWriter::new(&mut bytes)).map_or(0, |()| bytes.len() as u64)
}
