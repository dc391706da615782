//! The log: the last batch of changes, in pieces, then the head that names them. A batch counts from its head on, and its effects
//! begin after the head, so a batch without a head has none.
//!
//! Invariant: before the next batch is logged, and before a process reads the state to compute one, the last batch is written whole.
//! Every write of a batch has a fixed write timestamp, so writing it again, also by two processes at once, changes nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use mw_store::migration::Change;
use mw_store::{Result, StoreError};
use scylla::response::PagingState;
use tokio::sync::MutexGuard;

use super::stamps::Stamp;
use crate::CassandraStore;

const PART: &str = "log";
const HEAD: &[u8] = b"head";
const PIECE: &[u8] = b"piece/";
/// Bytes of a piece: mutations stay far below the limit of a node.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces of a page.
pub(super) const PIECES_AT_ONCE: i32 = 16;

/// What this process knows of the log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The stamp of the next change; `None`: this process does not run the migration.
    next: Option<Stamp>,
}

/// Notes that a batch may be unfinished, unless it ends well.
struct Unfinished<'a>(Option<&'a AtomicBool>);

impl Unfinished<'_> {
    fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(flag) = self.0 {
            flag.store(true, Ordering::SeqCst);
        }
    }
}

/// The log as it is stored.
#[derive(Debug, Default)]
struct Stored {
    /// The stamp of the last batch, and how many changes and pieces it has.
    head: Option<(Stamp, u32, u32)>,
    /// Each piece with the stamp of its batch.
    pieces: Vec<(u32, Stamp, Vec<u8>)>,
}

impl Stored {
    /// A stamp above everything that was logged.
    fn next(&self) -> Option<Stamp> {
        let after = |(stamp, count, _): &(Stamp, u32, u32)| stamp.plus(usize::try_from(*count).unwrap_or(0));
        let of_pieces = self.pieces.iter().map(|(_, stamp, _)| stamp.plus(1));
        of_pieces.chain(self.head.as_ref().map(after)).max()
    }

    /// The last batch; `None` where the next one had begun to replace its pieces, which happens only after it was written whole.
    fn batch(mut self) -> Result<Option<(Stamp, Vec<Change>)>> {
        let Some((first, _, count)) = self.head else { return Ok(None) };
        self.pieces.sort_unstable_by_key(|(number, ..)| *number);
        let pieces: Vec<Vec<u8>> = self
            .pieces
            .into_iter()
            .filter(|(number, stamp, _)| *number < count && *stamp == first)
            .map(|(_, _, bytes)| bytes)
            .collect();
        if count == 0 || pieces.len() < usize::try_from(count).unwrap_or(usize::MAX) {
            return Ok(None);
        }
        Ok(Some((first, mw_codec::migration::decode(&pieces.concat())?)))
    }
}

fn piece_key(number: u32) -> Vec<u8> {
    [PIECE, &number.to_be_bytes()].concat()
}

fn corrupt() -> StoreError {
    StoreError::Corrupt("the log of the migration".to_owned())
}

fn read_head(value: &[u8]) -> Option<(Stamp, u32, u32)> {
    let (stamp, rest) = value.split_first_chunk()?;
    let (changes, rest) = rest.split_first_chunk()?;
    let pieces = rest.try_into().ok()?;
    Some((
        Stamp::from_stored(i64::from_be_bytes(*stamp)),
        u32::from_be_bytes(*changes),
        u32::from_be_bytes(pieces),
    ))
}

fn read_piece(key: &[u8], value: &[u8]) -> Option<(u32, Stamp, Vec<u8>)> {
    let number = u32::from_be_bytes(key.strip_prefix(PIECE)?.try_into().ok()?);
    let (stamp, bytes) = value.split_first_chunk()?;
    Some((number, Stamp::from_stored(i64::from_be_bytes(*stamp)), bytes.to_vec()))
}

impl CassandraStore {
    /// Writes what another process left of the last batch, and shuts out the head of a batch that it may still send.
    pub(super) async fn open_log(&self) -> Result<()> {
        let mut log = self.migration.log.lock().await;
        let stored = self.read_log().await?;
        let now = Stamp::at(self.clock.micros());
        let next = stored.next().map_or(now, |next| next.max(now));
        if let Some((first, changes)) = stored.batch()? {
            self.write_changes(first, changes).await?;
        }
        self.write_head(next, 0, 0).await?;
        self.check_run().await?;
        log.next = Some(next.plus(1));
        self.migration.is_unfinished.store(false, Ordering::SeqCst);
        Ok(())
    }

    pub(super) async fn apply_logged(&self, changes: Vec<Change>) -> Result<()> {
        let mut log = self.migration.log.lock().await;
        let next = log.next.ok_or_else(not_run)?;
        if self.migration.is_unfinished() {
            self.redo().await?;
        }
        if changes.is_empty() {
            return Ok(());
        }
        let first = next.max(Stamp::at(self.clock.micros()));
        log.next = Some(first.plus(changes.len()));
        // After the stamp was taken: whatever this process still logs when another one has taken over is older than what that one
        // logs first, and is never read.
        self.check_run().await?;
        let unfinished = Unfinished(Some(&self.migration.is_unfinished));
        let bytes = mw_codec::migration::encode(&changes);
        let count = u32::try_from(changes.len()).map_err(|_| corrupt())?;
        let mut pieces = 0;
        for piece in bytes.chunks(PIECE_BYTES) {
            let value = [&first.get().to_be_bytes()[..], piece].concat();
            // A crash in here leaves pieces without a head: the last batch was written whole, and this one has no effect.
            self.write_log_row(first, piece_key(pieces), value).await?;
            pieces += 1;
        }
        self.write_head(first, count, pieces).await?;
        // Another process may have taken over before the head was there: it does not know this batch, which then has no effects.
        self.check_run().await?;
        // A crash from here on leaves the batch in the log, and the next run writes it.
        self.write_changes(first, changes).await?;
        unfinished.end();
        Ok(())
    }

    /// Empties the log when this process leaves: after the cutover the service owns the rows, and no batch may be written again.
    pub(super) async fn close_log(&self) -> Result<()> {
        let mut log = self.migration.log.lock().await;
        let Some(next) = log.next.take() else { return Ok(()) };
        if self.migration.is_unfinished() {
            // The next run writes the batch.
            return Ok(());
        }
        self.check_run().await?;
        self.write_head(next.max(Stamp::at(self.clock.micros())), 0, 0).await
    }

    /// Makes sure that the state says what was taken, if this process may change it.
    pub(super) async fn finish_batch(&self) -> Result<()> {
        if !self.migration.is_unfinished() {
            return Ok(());
        }
        self.without_batch().await.map(drop)
    }

    /// No batch is written until the result is dropped, and the last one is whole.
    pub(super) async fn without_batch(&self) -> Result<MutexGuard<'_, Log>> {
        let log = self.migration.log.lock().await;
        if self.migration.is_unfinished() {
            self.redo().await?;
        }
        Ok(log)
    }

    /// Writes the batch of the log again. It is called with the log locked.
    async fn redo(&self) -> Result<()> {
        self.check_run().await?;
        if let Some((first, changes)) = self.read_log().await?.batch()? {
            self.write_changes(first, changes).await?;
        }
        self.migration.is_unfinished.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// A stamp for one write that is not logged, since it may be repeated at any later time.
    pub(super) async fn lone_stamp(&self) -> Result<Stamp> {
        let mut log = self.migration.log.lock().await;
        let stamp = log.next.ok_or_else(not_run)?.max(Stamp::at(self.clock.micros()));
        log.next = Some(stamp.plus(1));
        Ok(stamp)
    }

    async fn write_head(&self, first: Stamp, changes: u32, pieces: u32) -> Result<()> {
        let value = [&first.get().to_be_bytes()[..], &changes.to_be_bytes(), &pieces.to_be_bytes()].concat();
        self.write_log_row(first, HEAD.to_vec(), value).await
    }

    async fn write_log_row(&self, stamp: Stamp, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
        self.cql.write(&self.migration().await?.write, (stamp.get(), value, PART, key)).await
    }

    async fn read_log(&self) -> Result<Stored> {
        let statements = self.migration().await?;
        let mut stored = Stored::default();
        let mut from = Some(PagingState::start());
        while let Some(page) = from {
            let (rows, next) =
                self.cql.page::<(Vec<u8>, Option<Vec<u8>>)>(&statements.read_part, (PART,), page).await?;
            for (key, value) in rows {
                let value = value.unwrap_or_default();
                if key == HEAD {
                    stored.head = Some(read_head(&value).ok_or_else(corrupt)?);
                } else {
                    stored.pieces.push(read_piece(&key, &value).ok_or_else(corrupt)?);
                }
            }
            from = next;
        }
        Ok(stored)
    }
}

pub(super) fn not_run() -> StoreError {
    StoreError::NotServing(
        "write to the target of the migration: this process does not run the migration".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(head: Option<(i64, u32, u32)>, pieces: &[(u32, i64, &[u8])]) -> Stored {
        let piece = |(number, stamp, bytes): &(u32, i64, &[u8])| {
            (*number, Stamp::from_stored(*stamp), bytes.to_vec())
        };
        Stored {
            head: head.map(|(stamp, changes, pieces)| (Stamp::from_stored(stamp), changes, pieces)),
            pieces: pieces.iter().map(piece).collect(),
        }
    }

    #[test]
    fn a_batch_is_read_from_its_pieces_and_only_with_all_of_them() {
        let change = Change::State { key: b"k".to_vec(), value: None };
        let bytes = mw_codec::migration::encode(std::slice::from_ref(&change));
        let (a, b) = bytes.split_at(2);
        let read = |stored: Stored| stored.batch().unwrap();
        // A longer batch before it left a third piece.
        let whole = stored(Some((7, 1, 2)), &[(1, 7, b), (0, 7, a), (2, 3, b"old")]);
        assert_eq!(read(whole), Some((Stamp::from_stored(7), vec![change])));
        for (head, pieces) in [
            (None, vec![(0, 7, a)]),
            (Some((7, 1, 2)), vec![(0, 7, a)]),
            // The next batch began to replace the pieces.
            (Some((7, 1, 2)), vec![(0, 9, a), (1, 7, b)]),
            (Some((7, 0, 0)), vec![(0, 3, a)]),
        ] {
            assert_eq!(read(stored(head, &pieces)), None);
        }
    }

    #[test]
    fn the_next_stamp_is_above_every_batch_that_was_logged_or_begun() {
        assert_eq!(stored(None, &[]).next(), None);
        assert_eq!(stored(Some((7, 5, 1)), &[(0, 7, b"")]).next(), Some(Stamp::from_stored(12)));
        assert_eq!(stored(Some((7, 5, 1)), &[(0, 20, b"")]).next(), Some(Stamp::from_stored(21)));
    }

    #[test]
    fn head_and_pieces_read_back() {
        let first = Stamp::from_stored(-5);
        let head = [&first.get().to_be_bytes()[..], &3_u32.to_be_bytes(), &2_u32.to_be_bytes()].concat();
        assert_eq!(read_head(&head), Some((first, 3, 2)));
        assert_eq!(read_head(&head[1..]), None);
        let piece = [&first.get().to_be_bytes()[..], b"bytes"].concat();
        assert_eq!(read_piece(&piece_key(258), &piece), Some((258, first, b"bytes".to_vec())));
        assert_eq!(read_piece(b"other", &piece), None);
    }
}
