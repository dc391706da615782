//! Copying a journal that fjall may be appending to.
//!
//! A batch in a journal is a start marker with the number of its items, the items, and an end marker with their checksum. Only
//! whole batches with the right checksum are copied. Where the copy meets the writer, the rest of the file is a part of a batch,
//! or holes between pages that were read before and after they were written: fjall would take such a journal for damaged.

use std::io::{self, BufReader, ErrorKind, Read, Write};

use xxhash_rust::xxh3::Xxh3Default;

/// The markers of fjall's journal entries.
const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// The last bytes of an end marker.
const TRAILER: [u8; 4] = [b'F', b'J', b'L', 3];
/// Bytes of an item after its marker and before its key: value type, compression, keyspace, and the lengths of key, value and
/// stored value.
const ITEM_HEAD_BYTES: usize = 1 + 1 + 8 + 2 + 4 + 4;
const READ_BYTES: usize = 1 << 20;

/// Copies the whole batches at the beginning of a journal; returns how many there are.
pub(super) fn copy_whole_batches(from: impl Read, to: &mut impl Write) -> io::Result<u64> {
    let mut from = BufReader::with_capacity(READ_BYTES, from);
    let mut batch = Vec::new();
    let mut batches = 0;
    loop {
        batch.clear();
        match read_batch(&mut from, &mut batch) {
            Ok(true) => to.write_all(&batch)?,
            Ok(false) => return Ok(batches),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(batches),
            Err(error) => return Err(error),
        }
        batches += 1;
    }
}

/// Reads the next batch; `false` where there is no valid one.
fn read_batch(from: &mut impl Read, batch: &mut Vec<u8>) -> io::Result<bool> {
    if marker(from, batch)? != START {
        return Ok(false);
    }
    let items = u32::from_le_bytes(array(from, batch)?);
    let _sequence: [u8; 8] = array(from, batch)?;
    let mut checksum = Xxh3Default::new();
    for _ in 0..items {
        let begin = batch.len();
        match marker(from, batch)? {
            ITEM => {
                let head: [u8; ITEM_HEAD_BYTES] = array(from, batch)?;
                let [.., k0, k1, _, _, _, _, v0, v1, v2, v3] = head;
                let key_bytes = usize::from(u16::from_le_bytes([k0, k1]));
                let value_bytes = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
                append(from, batch, key_bytes + value_bytes)?;
            }
            CLEAR => append(from, batch, 8)?,
            _ => return Ok(false),
        }
        checksum.update(batch.get(begin..).unwrap_or_default());
    }
    if marker(from, batch)? != END {
        return Ok(false);
    }
    let expected = u64::from_le_bytes(array(from, batch)?);
    Ok(array(from, batch)? == TRAILER && checksum.digest() == expected)
}

fn marker(from: &mut impl Read, batch: &mut Vec<u8>) -> io::Result<u8> {
    let [marker] = array(from, batch)?;
    Ok(marker)
}

/// Reads bytes that are also appended to the batch.
fn array<const N: usize>(from: &mut impl Read, batch: &mut Vec<u8>) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    batch.extend_from_slice(&bytes);
    Ok(bytes)
}

fn append(from: &mut impl Read, batch: &mut Vec<u8>, count: usize) -> io::Result<()> {
    let read = from.take(count as u64).read_to_end(batch)?;
    if read == count { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fjall::{Database, KeyspaceCreateOptions, PersistMode};

    /// A journal of fjall with this many batches of three rows, without its preallocated rest.
    fn journal(batches: u32) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let db = Database::builder(folder.path()).open().unwrap();
        let table = db.keyspace("table", KeyspaceCreateOptions::default).unwrap();
        for number in 0..batches {
            let mut batch = db.batch().durability(Some(PersistMode::SyncData));
            batch.insert(&table, number.to_be_bytes(), vec![0; 1_000]);
            // Not compressible: fjall compresses the values of a journal.
            let words = (0..500_u64).map(|word| xxhash_rust::xxh3::xxh3_64(&word.to_be_bytes()));
            let noise: Vec<u8> = words.flat_map(u64::to_be_bytes).collect();
            batch.insert(&table, format!("noise-{number}"), noise);
            batch.remove(&table, format!("removed-{number}"));
            batch.commit().unwrap();
        }
        let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let path = files.filter(|path| path.extension().is_some_and(|it| it == "jnl")).max().unwrap();
        let bytes = std::fs::read(path).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        bytes[..used].to_vec()
    }

    fn journal_or_empty(batches: u32) -> Vec<u8> {
        if batches == 0 { Vec::new() } else { journal(batches) }
    }

    fn copied(bytes: &[u8]) -> (u64, Vec<u8>) {
        let mut copy = Vec::new();
        (copy_whole_batches(bytes, &mut copy).unwrap(), copy)
    }

    #[test]
    fn a_whole_journal_is_copied_without_its_preallocated_rest() {
        let bytes = journal(20);
        let preallocated = [bytes.as_slice(), &[0; 5_000]].concat();
        for journal in [bytes.as_slice(), &preallocated] {
            assert_eq!(copied(journal), (20, bytes.clone()));
        }
        assert_eq!(copied(&[]), (0, Vec::new()));
    }

    #[test]
    fn a_journal_cut_anywhere_is_copied_up_to_its_last_whole_batch() {
        let journals: Vec<Vec<u8>> = (0..=3).map(journal_or_empty).collect();
        let bytes = &journals[3];
        for cut in (0..bytes.len()).step_by(97) {
            let whole = journals.iter().rposition(|journal| journal.len() <= cut).unwrap();
            assert_eq!(copied(&bytes[..cut]), (whole as u64, journals[whole].clone()), "cut at {cut}");
        }
    }

    #[test]
    fn a_hole_in_a_batch_ends_the_copy_before_it() {
        let (before, mut torn) = (journal(2), journal(4));
        let batch_bytes = before.len() / 2;
        // Inside of a value, as two reads around a write leave it: all markers are there.
        let middle = before.len() + batch_bytes / 2;
        torn[middle..middle + 100].fill(0);
        assert_eq!(copied(&torn), (2, before));
    }
}
