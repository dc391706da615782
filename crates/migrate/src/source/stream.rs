//! The change stream: which documents changed, and up to which time of the cluster everything was seen. The documents
//! themselves are read when the change is taken.

use std::collections::BTreeSet;
use std::time::Duration;

use mongodb::bson::{Bson, Document, Timestamp, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType, ResumeToken};
use tokio::time::Instant;

use super::Source;
use crate::error::{MigrateError, Result};
use crate::key::{Id, Key, Kind};

/// Changes that are taken together.
const BATCH_EVENTS: usize = 1_000;
/// How long changes wait for others.
const BATCH_WAIT: Duration = Duration::from_millis(40);
/// How long the servers wait for a change before they answer that there is none.
const AWAIT: Duration = Duration::from_millis(250);

/// Where a stream continues.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Position {
    At(Timestamp),
    After(Bson),
}

/// The documents that changed, and where the stream stands after them.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) keys: BTreeSet<Key>,
    /// How many changes that were.
    pub(crate) counts: [u64; Kind::ALL.len()],
    pub(crate) token: Option<Bson>,
    /// Everything up to this time was seen.
    pub(crate) time: Option<Timestamp>,
}

pub(crate) struct Stream(ChangeStream<ChangeStreamEvent<Document>>);

impl Source {
    pub(crate) async fn open_stream(&self, position: &Position) -> Result<Stream> {
        let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.collection()).collect();
        let pipeline = [
            doc! { "$match": { "$or": [
                { "ns.coll": { "$in": names } },
                { "operationType": { "$in": ["dropDatabase", "invalidate"] } },
            ] } },
            doc! { "$project": { "operationType": 1, "ns": 1, "documentKey": 1, "clusterTime": 1 } },
        ];
        let watch = self.database().watch().pipeline(pipeline).max_await_time(AWAIT).batch_size(1_000);
        let watch = match position {
            Position::At(time) => watch.start_at_operation_time(*time),
            Position::After(token) => {
                let token: ResumeToken = mongodb::bson::deserialize_from_bson(token.clone())
                    .map_err(|_| MigrateError::State("the resume token"))?;
                watch.resume_after(token)
            }
        };
        Ok(Stream(watch.await?))
    }
}

impl Stream {
    /// The next changes; without any, after a moment, only where the stream stands.
    pub(crate) async fn next(&mut self) -> Result<Events> {
        let mut events = Events { keys: BTreeSet::new(), counts: [0; 3], token: None, time: None };
        let mut last: Option<Timestamp> = None;
        let mut until: Option<Instant> = None;
        let mut count = 0;
        while count < BATCH_EVENTS && until.is_none_or(|until| Instant::now() < until) {
            let Some(event) = self.0.next_if_any().await? else { break };
            count += 1;
            until.get_or_insert_with(|| Instant::now() + BATCH_WAIT);
            last = event.cluster_time.or(last);
            take(&event, &mut events)?;
        }
        let token = self.0.resume_token();
        events.token = token.and_then(|token| mongodb::bson::serialize_to_bson(&token).ok());
        let seen = events.token.as_ref().and_then(token_time);
        // The events of one transaction share a time; before the next time comes, more of them may follow.
        let before_last =
            last.map(|last| Timestamp { time: last.time, increment: last.increment.saturating_sub(1) });
        events.time = match (seen, before_last) {
            (Some(seen), Some(before)) if count == BATCH_EVENTS => Some(seen.min(before)),
            (seen, before) => seen.or(before),
        };
        Ok(events)
    }
}

fn take(event: &ChangeStreamEvent<Document>, events: &mut Events) -> Result<()> {
    let name = event.ns.as_ref().and_then(|ns| ns.coll.clone()).unwrap_or_else(|| "?".to_owned());
    let changed = |what| Err(MigrateError::CollectionChanged { collection: name.clone(), what });
    match event.operation_type {
        OperationType::Drop | OperationType::DropDatabase => return changed("dropped"),
        OperationType::Rename => return changed("renamed"),
        OperationType::Invalidate => return changed("removed"),
        _ => {}
    }
    let id = event.document_key.as_ref().and_then(|key| key.get("_id"));
    if let (Some(kind), Some(id)) = (Kind::of_collection(&name), id) {
        events.keys.insert(Key { kind, id: Id::new(id)? });
        if let Some(count) = events.counts.get_mut(kind as usize) {
            *count += 1;
        }
    }
    Ok(())
}

/// The time in a resume token: after the type byte of a timestamp, its eight bytes.
pub(crate) fn token_time(token: &Bson) -> Option<Timestamp> {
    const TIMESTAMP_TYPE: &str = "82";
    let data = token.as_document()?.get_str("_data").ok()?;
    let digits = data.strip_prefix(TIMESTAMP_TYPE)?;
    let time = u32::from_str_radix(digits.get(..8)?, 16).ok()?;
    let increment = u32::from_str_radix(digits.get(8..16)?, 16).ok()?;
    Some(Timestamp { time, increment })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_the_time_up_to_which_the_stream_was_read() {
        let token = Bson::from(doc! { "_data": "82674A1B2C000000052B0229296E04" });
        assert_eq!(token_time(&token), Some(Timestamp { time: 0x674a_1b2c, increment: 5 }));
        for other in ["", "82", "81674A1B2C00000005", "82674A1B2C0000"] {
            assert_eq!(token_time(&Bson::from(doc! { "_data": other })), None, "{other}");
        }
    }
}
