//! The rows of the migration's state, in partitions by a hash of their key. Rows that are listed are in few partitions.

use std::collections::{BTreeMap, HashMap};

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_store::migration::StateRow;
use mw_store::{Result, StoreError};
use scylla::statement::prepared::PreparedStatement;

use super::stamps::Stamp;
use super::{CONCURRENT_SUBJECTS, in_order};
use crate::CassandraStore;
use crate::driver::statements::Row;

/// Partitions of the rows that there are for each document: with a hundred thousand rows each, those of 25 million documents.
const DOCUMENT_PARTS: u64 = 256;
const REJECTED_PARTS: u64 = 16;
/// Prefixes of keys with several partitions; all others are in one.
const DIVIDED: [(&[u8], u64); 4] = [
    (b"doc/", DOCUMENT_PARTS),
    (b"owner/", DOCUMENT_PARTS),
    (b"stock/", DOCUMENT_PARTS),
    (b"rejected/", REJECTED_PARTS),
];
/// Rows of one mutation, and keys of one read.
const ROWS_AT_ONCE: usize = 100;

/// Key and value.
type StoredRow = (Vec<u8>, Option<Vec<u8>>);

/// How many partitions the keys with a prefix have.
fn parts_of(key: &[u8]) -> u64 {
    DIVIDED.iter().find(|(prefix, _)| key.starts_with(prefix)).map_or(1, |(_, parts)| *parts)
}

fn part_name(parts: u64, number: u64) -> String {
    format!("state/{parts}/{number}")
}

/// The partition of a key (FNV-1a): the same in every process and version.
fn part_of(key: &[u8]) -> String {
    let parts = parts_of(key);
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    part_name(parts, (hash >> 32) % parts)
}

/// The first key after all those with a prefix, which is text.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

impl CassandraStore {
    pub(super) async fn write_state(&self, rows: BTreeMap<Vec<u8>, (Stamp, Option<Vec<u8>>)>) -> Result<()> {
        let statements = self.migration().await?;
        let mut parts: HashMap<String, Vec<(&PreparedStatement, Row)>> = HashMap::new();
        for (key, (stamp, value)) in rows {
            let part = part_of(&key);
            let row: (&PreparedStatement, Row) = match value {
                Some(value) => (&statements.write, Box::new((stamp.get(), value, part.clone(), key))),
                None => (&statements.delete, Box::new((stamp.get(), part.clone(), key))),
            };
            parts.entry(part).or_default().push(row);
        }
        let writes = parts.into_values().map(|rows| async move {
            for rows in rows.chunks(ROWS_AT_ONCE) {
                let rows: Vec<_> = rows.iter().map(|(statement, row)| (*statement, row)).collect();
                self.cql.write_batch(&rows).await?;
            }
            Ok::<_, StoreError>(())
        });
        stream::iter(writes.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_SUBJECTS).try_collect().await
    }

    pub(super) async fn read_state(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>> {
        let statements = self.migration().await?;
        let mut parts: HashMap<String, Vec<&Vec<u8>>> = HashMap::new();
        for key in &keys {
            parts.entry(part_of(key)).or_default().push(key);
        }
        let reads =
            parts.iter().flat_map(|(part, keys)| keys.chunks(ROWS_AT_ONCE).map(move |keys| (part, keys)));
        let reads =
            reads.map(|(part, keys)| self.cql.rows::<StoredRow>(&statements.read, (part.as_str(), keys)));
        let found: Vec<Vec<StoredRow>> = in_order(reads.collect()).await?;
        let found: HashMap<Vec<u8>, Option<Vec<u8>>> = found.into_iter().flatten().collect();
        Ok(keys.iter().map(|key| found.get(key).cloned().flatten()).collect())
    }

    pub(super) async fn read_states(
        &self,
        prefix: &[u8],
        after: Option<Vec<u8>>,
        limit: usize,
    ) -> Result<Vec<StateRow>> {
        let parts = parts_of(prefix);
        let from = after.unwrap_or_else(|| prefix.to_vec());
        let reads = (0..parts).map(|number| {
            let from = from.clone();
            async move { self.read_range(&part_name(parts, number), from, end_of(prefix), limit).await }
        });
        let mut rows: Vec<StateRow> = in_order(reads.collect()).await?.into_iter().flatten().collect();
        rows.sort_unstable();
        rows.truncate(limit);
        Ok(rows)
    }

    /// Up to `limit` rows of a partition between two keys, without the first and the last.
    pub(super) async fn read_range(
        &self,
        part: &str,
        after: Vec<u8>,
        before: Vec<u8>,
        limit: usize,
    ) -> Result<Vec<StateRow>> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let values = (part, after, before, limit);
        let rows: Vec<StoredRow> = self.cql.rows(&self.migration().await?.read_range, values).await?;
        Ok(rows.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
    }

    /// One range tombstone a partition. A crash in here leaves the rows of the other partitions; the repeated call removes them.
    pub(super) async fn delete_states(&self, prefix: &[u8]) -> Result<()> {
        self.finish_batch().await?;
        let stamp = self.lone_stamp().await?;
        self.check_run().await?;
        let statements = self.migration().await?;
        let parts = parts_of(prefix);
        let deletes = (0..parts).map(|number| {
            let values = (stamp.get(), part_name(parts, number), prefix, end_of(prefix));
            self.cql.write(&statements.delete_range, values)
        });
        stream::iter(deletes.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_SUBJECTS).try_collect().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_documents_are_spread_and_those_of_the_migration_are_together() {
        assert_eq!(part_of(b"meta"), part_of(b"position"));
        let parts: std::collections::HashSet<String> =
            (0..5_000).map(|number| part_of(format!("doc/orders/{number}").as_bytes())).collect();
        assert_eq!(parts.len(), 256);
        assert_eq!(end_of(b"range/"), b"range0");
    }
}
