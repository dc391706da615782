//! Follows the change stream: collects which documents changed, reads them, and hands them to the taker in the order of the
//! stream. The next changes are collected while the documents of the last ones are read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mongodb::bson::Timestamp as ClusterTime;

use crate::apply::{Of, Reading};
use crate::clock;
use crate::error::Result;
use crate::key::{Id, Key, Kind};
use crate::retry::retry;
use crate::shared::{Shared, Work};
use crate::source::stream::{Events, Position};

/// Follows until an error that does not pass.
pub(crate) async fn follow(shared: Arc<Shared>, mut position: Position) -> Result<()> {
    loop {
        let mut stream = retry("open the change stream", || shared.source.open_stream(&position)).await?;
        loop {
            match stream.next().await {
                Ok(events) => hand_over(&shared, events, &mut position).await?,
                Err(error) if error.is_passing() => {
                    tracing::warn!(%error, "follow the source: opening the change stream again");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

async fn hand_over(shared: &Arc<Shared>, events: Events, position: &mut Position) -> Result<()> {
    shared.contact_ms.store(clock::now().as_millis(), Ordering::Relaxed);
    let is_new = events.time.is_some_and(|time| shared.taken_up_to().is_none_or(|taken| taken < time));
    if events.keys.is_empty() && (!is_new || shared.pending.load(Ordering::SeqCst) > 0) {
        return Ok(());
    }
    if let Some(token) = events.token.clone() {
        *position = Position::After(token);
    }
    shared.note_changed(&events.keys);
    shared.pending.fetch_add(1, Ordering::SeqCst);
    // Before the documents are read: a page that was read earlier must not replace them.
    let number = shared.readings.of_changes();
    let (reader, position) = (Arc::clone(shared), position.clone());
    let reading = tokio::spawn(async move {
        let Events { keys, counts, time, .. } = events;
        let keys: Vec<Key> = keys.into_iter().collect();
        let documents = read(&reader, &keys, time).await?;
        Ok(Reading { documents, number, of: Of::Changes { events: counts, position: Some(position), time } })
    });
    shared.send(Work::Later(reading)).await
}

/// The documents with these keys as they are now, but not before `time`.
pub(crate) async fn read(
    shared: &Shared,
    keys: &[Key],
    time: Option<ClusterTime>,
) -> Result<BTreeMap<Key, Option<mongodb::bson::Document>>> {
    let mut documents = BTreeMap::new();
    for kind in Kind::ALL {
        let ids: Vec<Id> = keys.iter().filter(|key| key.kind == kind).map(|key| key.id.clone()).collect();
        let mut found = retry("read changed documents", || shared.source.read(kind, &ids, time)).await?;
        for id in ids {
            let document = found.remove(&id);
            documents.insert(Key { kind, id }, document);
        }
    }
    Ok(documents)
}

/// Takes documents again, as they are now. The taker itself reads them, so what it took before is not newer.
pub(crate) async fn take_again(shared: &Shared, keys: Vec<Key>) -> Result<()> {
    shared.send(Work::Again(keys)).await?;
    shared.barrier().await
}
