//! Moves pending changes into numbered rows. Every process does it, for the changes of all: what a dead process has left
//! pending is numbered by the others, or by the next one that starts.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mongodb::ClientSession;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Document, doc};
use mongodb::options::ReturnDocument;
use mw_store::{Freshness, Result, StoreError};
use tokio::time::{sleep, timeout};

use super::{FEED, Feed};
use crate::MongoStore;
use crate::documents::fields::whole;
use crate::driver::transaction::Stop;

/// Pending documents of one round.
const PENDING_MAX: i64 = 1_000;
/// A row is full with so many bytes of changes.
const ROW_BYTES: usize = 64 << 10;
/// Between two looks at what other processes have left, and at what they have numbered.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same while readers wait.
const LOOK_EVERY_FOR_READERS: Duration = Duration::from_millis(100);
/// From the first change on until all that have come meanwhile are numbered together.
const COLLECT: Duration = Duration::from_millis(500);
/// The same while readers wait.
const COLLECT_FOR_READERS: Duration = Duration::from_millis(20);

/// Begins to number changes, where any are written.
pub(crate) fn start(store: &Arc<MongoStore>) {
    let feed = Arc::clone(&store.feed);
    if !feed.settings.topics.is_empty() {
        let task = tokio::spawn(number_forever(Arc::downgrade(store), feed));
        store.feed.stop_with(task.abort_handle());
    }
}

/// For as long as the store lives.
async fn number_forever(store: Weak<MongoStore>, feed: Arc<Feed>) {
    loop {
        let has_readers = feed.newest.receiver_count() > 0;
        let look = if has_readers { LOOK_EVERY_FOR_READERS } else { LOOK_EVERY };
        if timeout(look, feed.noted.notified()).await.is_ok() {
            sleep(if has_readers { COLLECT_FOR_READERS } else { COLLECT }).await;
        }
        let Some(store) = store.upgrade() else { return };
        let looked = store.look(has_readers).await;
        if let Err(error) = looked {
            tracing::debug!(%error, "number changes: what is pending waits");
            sleep(LOOK_EVERY_FOR_READERS).await;
        }
    }
}

/// What a round has numbered.
#[derive(Debug)]
enum Round {
    /// All that was pending when it began.
    All,
    Some,
}

impl MongoStore {
    async fn look(&self, has_readers: bool) -> Result<()> {
        self.number_pending().await?;
        if has_readers {
            self.feed.publish(self.newest_change().await?);
        }
        Ok(())
    }

    /// Numbers everything that is committed by now.
    pub(super) async fn number_pending(&self) -> Result<()> {
        loop {
            let _one = self.feed.round.lock().await;
            let criteria = self.reads.criteria(Freshness::Latest);
            let any = self.feed.pending.find_one(doc! {}).projection(doc! { "_id": 1 });
            if self.read(any.selection_criteria(criteria)).await?.is_none() {
                return Ok(());
            }
            let round = self.number_some().await.map_err(StoreError::before_first_effect)?;
            if matches!(round, Round::All) {
                return Ok(());
            }
        }
    }

    async fn number_some(&self) -> Result<Round> {
        let mut attempts = self.transaction();
        loop {
            let mut session = attempts.begin().await?;
            let numbered = attempts.run(self.number_in(&mut session)).await;
            // A crash before the commit leaves all of them pending, after it none.
            if let Some((round, newest)) = attempts.end(session, numbered).await? {
                self.feed.publish(newest);
                return Ok(round);
            }
        }
    }

    async fn number_in(&self, session: &mut ClientSession) -> Result<(Round, u64), Stop> {
        // From one snapshot: a change in it has all earlier changes of its subject in it too, with a lower `since`.
        let pending = &self.feed.pending;
        let query = pending.find(doc! {}).sort(doc! { "since": 1, "_id": 1 }).limit(PENDING_MAX);
        let mut cursor = query.session(&mut *session).await?;
        let (mut ids, mut rows) = (Vec::new(), Rows::default());
        while let Some(document) = cursor.next(session).await {
            let mut document = document?;
            rows.add(&document)?;
            ids.extend(document.remove("_id"));
        }
        if ids.is_empty() {
            return Ok((Round::All, 0));
        }
        let is_all = ids.len() < usize::try_from(PENDING_MAX).unwrap_or(usize::MAX);
        let (newest, at) = self.take_numbers(session, rows.count).await?;
        let documents = rows.numbered(newest, at, self.feed.settings.retention_ms);
        self.feed.changes.insert_many(documents).session(&mut *session).await?;
        pending.delete_many(doc! { "_id": { "$in": ids } }).session(session).await?;
        Ok((if is_all { Round::All } else { Round::Some }, newest))
    }

    /// Raises the last number; returns it and the time of the round, which never goes back.
    async fn take_numbers(&self, session: &mut ClientSession, count: u64) -> Result<(u64, DateTime), Stop> {
        let raised = doc! {
            "last": { "$add": [{ "$ifNull": ["$last", 0_i64] }, count.cast_signed()] },
            "at": { "$max": ["$$NOW", "$at"] },
        };
        let state = self
            .collections
            .settings
            .find_one_and_update(doc! { "_id": FEED }, vec![doc! { "$set": raised }])
            .upsert(true)
            .return_document(ReturnDocument::After)
            .session(session)
            .await?;
        let read =
            |state: Document| Some((state.get("last").and_then(whole)?, *state.get_datetime("at").ok()?));
        let damaged = || StoreError::Corrupt("read the last number of the change feed".to_owned());
        Ok(state.and_then(read).ok_or_else(damaged)?)
    }
}

/// Changes on their way into rows.
#[derive(Debug, Default)]
struct Rows {
    /// Encoded changes of a row, and how many they are.
    rows: Vec<(Vec<u8>, u64)>,
    count: u64,
}

impl Rows {
    fn add(&mut self, pending: &Document) -> Result<()> {
        for change in read_changes(pending)? {
            if self.rows.last().is_none_or(|(bytes, _)| bytes.len() >= ROW_BYTES) {
                self.rows.push((Vec::new(), 0));
            }
            if let Some((bytes, count)) = self.rows.last_mut() {
                mw_codec::changes::append(bytes, change.as_ref());
                *count += 1;
                self.count += 1;
            }
        }
        Ok(())
    }

    /// The documents of the rows, the last of which ends with the number `newest`.
    fn numbered(&self, newest: u64, at: DateTime, retention_ms: i64) -> Vec<Document> {
        let purge_at = DateTime::from_millis(at.timestamp_millis().saturating_add(retention_ms));
        let mut last = newest - self.count;
        let document = |(changes, count): &(Vec<u8>, u64)| {
            let first = last + 1;
            last += count;
            let bytes = mw_codec::changes::encode(changes);
            doc! {
                "_id": last.cast_signed(),
                "first": first.cast_signed(),
                "purge_at": purge_at,
                "changes": Binary { subtype: BinarySubtype::Generic, bytes },
            }
        };
        self.rows.iter().map(document).collect()
    }
}

/// The changes of a pending document or a row.
pub(super) fn read_changes(
    document: &Document,
) -> Result<impl Iterator<Item = mw_codec::changes::StoredChange> + use<>> {
    let Some(Bson::Binary(changes)) = document.get("changes") else {
        return Err(StoreError::Corrupt(format!("read changes: row {:?}", document.get("_id"))));
    };
    Ok(mw_codec::changes::decode(&changes.bytes)?.into_iter())
}
