//! The partition of a statement as people name it: the id that the API shows, and the bucket of that key.

use std::fmt::Write as _;

use mw_domain::time::Date;
use scylla::frame::response::result::{ColumnType, NativeType};
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

/// Columns that tell the partitions of one key apart. Every other column of a partition key is an id of the API.
const BUCKET_COLUMNS: [&str; 10] =
    ["bucket", "day", "slice", "shard", "band", "time_bucket", "part", "queue", "owner_kind", "process"];
/// A zone is a key of its own only where it comes first.
const ZONE_COLUMN: &str = "geo_zone";

/// The key and the bucket of a partition.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionName {
    pub(crate) key: String,
    pub(crate) bucket: String,
}

impl PartitionName {
    /// `None` for a statement without a partition, such as a scan.
    pub(crate) fn of(statement: &PreparedStatement, values: &impl SerializeRow) -> Option<Self> {
        if !statement.is_token_aware() {
            return None;
        }
        let encoded = statement.compute_partition_key(values).ok()?;
        let mut indexes = statement.get_variable_pk_indexes().to_vec();
        indexes.sort_unstable_by_key(|index| index.sequence);
        let specs = statement.get_variable_col_specs();
        let columns = indexes.iter().filter_map(|index| specs.get_by_index(usize::from(index.index)));
        let columns: Vec<(&str, &ColumnType<'_>)> = columns.map(|spec| (spec.name(), spec.typ())).collect();
        Self::decode(&columns, &encoded)
    }

    fn decode(columns: &[(&str, &ColumnType<'_>)], encoded: &[u8]) -> Option<Self> {
        let mut name = Self::default();
        let mut rest = encoded;
        for (column, kind) in columns {
            let value;
            if columns.len() == 1 {
                value = rest;
            } else {
                // A component of a composite key: its length, its bytes, a zero.
                let (length, tail) = rest.split_first_chunk::<2>()?;
                let (bytes, tail) = tail.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
                value = bytes;
                rest = tail.split_first()?.1;
            }
            let is_later_zone = *column == ZONE_COLUMN && !name.key.is_empty();
            let is_bucket = is_later_zone || BUCKET_COLUMNS.contains(column);
            let into = if is_bucket { &mut name.bucket } else { &mut name.key };
            if !into.is_empty() {
                into.push('/');
            }
            show(kind, value, into);
        }
        Some(name)
    }
}

fn show(kind: &ColumnType<'_>, value: &[u8], into: &mut String) {
    let native = match kind {
        ColumnType::Native(native) => native,
        _ => &NativeType::Blob,
    };
    let written = match (native, value) {
        (NativeType::Text | NativeType::Ascii, text) => {
            into.push_str(&String::from_utf8_lossy(text));
            Ok(())
        }
        (NativeType::Int, bytes) => write!(into, "{}", i32::from_be_bytes(fixed(bytes))),
        (NativeType::BigInt, bytes) => write!(into, "{}", i64::from_be_bytes(fixed(bytes))),
        (NativeType::Date, bytes) => {
            // Days are stored with 1970 in the middle of their range.
            let days = u32::from_be_bytes(fixed(bytes)).wrapping_sub(1 << 31).cast_signed();
            write!(into, "{}", Date::from_days(days))
        }
        (NativeType::Uuid | NativeType::Timeuuid, bytes) => {
            write!(into, "{}", Uuid::from_slice(bytes).unwrap_or_default())
        }
        (_, bytes) => bytes.iter().try_for_each(|byte| write!(into, "{byte:02x}")),
    };
    debug_assert!(written.is_ok(), "writing to a String does not fail");
}

/// The bytes of a number; zero where there are too few or too many.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: ColumnType<'_> = ColumnType::Native(NativeType::Text);
    const INT: ColumnType<'_> = ColumnType::Native(NativeType::Int);
    const DATE: ColumnType<'_> = ColumnType::Native(NativeType::Date);

    fn composite(parts: &[&[u8]]) -> Vec<u8> {
        let mut encoded = Vec::new();
        for part in parts {
            encoded.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
            encoded.extend_from_slice(part);
            encoded.push(0);
        }
        encoded
    }

    fn name(columns: &[(&str, &ColumnType<'_>)], encoded: &[u8]) -> (String, String) {
        let PartitionName { key, bucket } = PartitionName::decode(columns, encoded).unwrap();
        (key, bucket)
    }

    #[test]
    fn a_key_is_the_id_that_the_api_shows() {
        assert_eq!(name(&[("product_id", &TEXT)], b"p-1"), ("p-1".to_owned(), String::new()));
        let month = [("user_id", &TEXT), ("bucket", &TEXT)];
        assert_eq!(name(&month, &composite(&[b"u-1", b"2026-11"])), ("u-1".to_owned(), "2026-11".to_owned()));
        let owner = [("owner_kind", &TEXT), ("owner_id", &TEXT)];
        assert_eq!(name(&owner, &composite(&[b"user", b"u-1"])), ("u-1".to_owned(), "user".to_owned()));
        let stock = [("product_id", &TEXT), ("geo_zone", &TEXT)];
        assert_eq!(name(&stock, &composite(&[b"p-1", b"moscow"])), ("p-1".to_owned(), "moscow".to_owned()));
    }

    #[test]
    fn the_buckets_of_a_day_are_told_apart() {
        let columns = [("geo_zone", &TEXT), ("day", &DATE), ("slice", &TEXT), ("shard", &INT)];
        let day = (20_775_u32 + (1 << 31)).to_be_bytes();
        let encoded = composite(&[b"moscow", &day, b"40of96x32", &7_i32.to_be_bytes()]);
        assert_eq!(name(&columns, &encoded), ("moscow".to_owned(), "2026-11-18/40of96x32/7".to_owned()));
    }

    #[test]
    fn a_damaged_key_has_no_name() {
        let columns = [("user_id", &TEXT), ("bucket", &TEXT)];
        for damaged in [&b""[..], b"\x00", b"\x00\x09u", b"\x00\x01u\x00\x00"] {
            assert_eq!(PartitionName::decode(&columns, damaged), None, "{damaged:?}");
        }
    }
}
