//! The bytes of an archive: a header with the names of the tables, then groups, each with its length and checksum.
//!
//! ```text
//! segment  magic, first commit (u64), number of tables (u8), then for each: length (u8), name
//! group    length of the body (u32), checksum of the body (u64), body
//! body     commit (u64), milliseconds since the epoch (i64), rows
//! row      table (u8), length of the key (u32), key, length of the value (u32, all ones: the row is removed), value
//! ```
//!
//! Numbers are big-endian. Tables are named in the header, so that a release with other tables reads the archive.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use mw_domain::Timestamp;
use xxhash_rust::xxh3::xxh3_64;

use crate::tables::Table;

const MAGIC: &[u8; 8] = b"mwgroup1";
/// The length of a value that stands for a removed row.
const REMOVED: u32 = u32::MAX;

/// The first bytes of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) first: u64,
    /// The names of the tables, by the number that rows have.
    pub(super) tables: Vec<String>,
}

impl Header {
    pub(super) fn of_this_release(first: u64) -> Self {
        Self { first, tables: Table::ALL.iter().map(|table| table.name().to_owned()).collect() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.first.to_be_bytes());
        // Tables and their names are few and short.
        bytes.push(u8::try_from(self.tables.len()).unwrap_or(u8::MAX));
        for name in &self.tables {
            bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes
    }

    fn read(from: &mut impl Read) -> io::Result<Self> {
        if array(from)? != *MAGIC {
            return Err(io::Error::new(ErrorKind::InvalidData, "no segment of an archive"));
        }
        let first = u64::from_be_bytes(array(from)?);
        let [count] = array(from)?;
        let mut tables = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let [length] = array(from)?;
            let mut name = vec![0; usize::from(length)];
            from.read_exact(&mut name)?;
            tables.push(String::from_utf8_lossy(&name).into_owned());
        }
        Ok(Self { first, tables })
    }
}

/// A committed group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) sequence: u64,
    pub(super) at: Timestamp,
    rows: Vec<u8>,
}

/// Table, key, and value; `None` for a removed row.
pub(super) type Row<'a> = (u8, &'a [u8], Option<&'a [u8]>);

impl Group {
    pub(super) fn rows(&self) -> Result<Vec<Row<'_>>, String> {
        let mut rest = self.rows.as_slice();
        let mut rows = Vec::new();
        while let Some((table, tail)) = rest.split_first() {
            rest = tail;
            let key = take(&mut rest)?.ok_or("a row without a key")?;
            rows.push((*table, key, take(&mut rest)?));
        }
        Ok(rows)
    }
}

/// A length and as many bytes.
fn take<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, String> {
    let (length, tail) = rest.split_first_chunk::<4>().ok_or("a row is cut off")?;
    let length = u32::from_be_bytes(*length);
    if length == REMOVED {
        *rest = tail;
        return Ok(None);
    }
    let (bytes, tail) = tail.split_at_checked(length as usize).ok_or("a row is cut off")?;
    *rest = tail;
    Ok(Some(bytes))
}

pub(super) fn encode_row(into: &mut Vec<u8>, table: usize, key: &[u8], value: Option<&[u8]>) {
    into.push(u8::try_from(table).unwrap_or(u8::MAX));
    encode_bytes(into, key);
    match value {
        Some(value) => encode_bytes(into, value),
        None => into.extend(REMOVED.to_be_bytes()),
    }
}

fn encode_bytes(into: &mut Vec<u8>, bytes: &[u8]) {
    into.extend(u32::try_from(bytes.len()).unwrap_or(REMOVED).to_be_bytes());
    into.extend_from_slice(bytes);
}

/// A group with its length and checksum.
pub(super) fn encode(sequence: u64, at: Timestamp, rows: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(16 + rows.len());
    body.extend(sequence.to_be_bytes());
    body.extend(at.as_millis().to_be_bytes());
    body.extend_from_slice(rows);
    let mut bytes = Vec::with_capacity(12 + body.len());
    bytes.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(xxh3_64(&body).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Reads the groups of a segment.
pub(super) struct GroupReader<R> {
    pub(super) header: Header,
    from: R,
    position: u64,
}

impl GroupReader<BufReader<File>> {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::new(BufReader::with_capacity(1 << 20, File::open(path)?))
    }
}

impl<R: Read> GroupReader<R> {
    pub(super) fn new(mut from: R) -> io::Result<Self> {
        let header = Header::read(&mut from)?;
        let position = header.encode().len() as u64;
        Ok(Self { header, from, position })
    }

    /// Where the next group begins.
    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    /// The next whole group; `None` at the end, or where the rest is a part of a group.
    pub(super) fn next_group(&mut self) -> io::Result<Option<Group>> {
        match self.read_group() {
            Ok(group) => Ok(group),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_group(&mut self) -> io::Result<Option<Group>> {
        let length = u32::from_be_bytes(array(&mut self.from)?);
        let checksum = u64::from_be_bytes(array(&mut self.from)?);
        let mut body = Vec::new();
        (&mut self.from).take(u64::from(length)).read_to_end(&mut body)?;
        if body.len() as u64 != u64::from(length) || xxh3_64(&body) != checksum {
            return Ok(None);
        }
        let Some((sequence, rest)) = body.split_first_chunk::<8>() else { return Ok(None) };
        let Some((at, rows)) = rest.split_first_chunk::<8>() else { return Ok(None) };
        let (sequence, at) = (u64::from_be_bytes(*sequence), i64::from_be_bytes(*at));
        let rows = rows.to_vec();
        self.position += 12 + u64::from(length);
        Ok(Some(Group { sequence, at: Timestamp::from_millis(at), rows }))
    }
}

fn array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> Vec<u8> {
        let mut rows = Vec::new();
        encode_row(&mut rows, 3, b"key", Some(b"value"));
        encode_row(&mut rows, 0, b"", None);
        let mut bytes = Header::of_this_release(7).encode();
        for sequence in [7, 8] {
            bytes.extend(encode(sequence, Timestamp::from_millis(1_790_000_000_000), &rows));
        }
        bytes
    }

    fn sequences(bytes: &[u8]) -> Vec<u64> {
        let mut groups = GroupReader::new(bytes).unwrap();
        let mut sequences = Vec::new();
        while let Some(group) = groups.next_group().unwrap() {
            sequences.push(group.sequence);
        }
        sequences
    }

    #[test]
    fn a_segment_reads_as_it_was_written() {
        let bytes = segment();
        let mut groups = GroupReader::new(bytes.as_slice()).unwrap();
        assert_eq!(groups.header, Header::of_this_release(7));
        let group = groups.next_group().unwrap().unwrap();
        assert_eq!((group.sequence, group.at.as_millis()), (7, 1_790_000_000_000));
        let rows: Vec<Row<'_>> = vec![(3, b"key", Some(b"value")), (0, b"", None)];
        assert_eq!(group.rows(), Ok(rows));
        assert_eq!(sequences(&bytes), [7, 8]);
        assert_eq!(groups.next_group().unwrap().map(|group| group.sequence), Some(8));
        assert_eq!(groups.position(), bytes.len() as u64);
    }

    #[test]
    fn a_segment_cut_or_changed_anywhere_gives_only_whole_groups() {
        let bytes = segment();
        let header = Header::of_this_release(7).encode().len();
        let group = (bytes.len() - header) / 2;
        for cut in header..bytes.len() {
            let whole = if cut < header + group { vec![] } else { vec![7] };
            assert_eq!(sequences(&bytes[..cut]), whole, "cut at {cut}");
            let mut changed = bytes.clone();
            changed[cut] ^= 1;
            assert_eq!(sequences(&changed), whole, "changed at {cut}");
        }
        assert!(GroupReader::new(&bytes[..header - 1]).is_err());
    }
}
