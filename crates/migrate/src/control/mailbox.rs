//! Commands and their answers as rows of the target, from whichever machine. The process that runs the migration takes a
//! request away before it begins, so a request is done once at most, and says from time to time that it is still at it.

use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{Document, Uuid, doc};
use mw_store::migration::Mailbox;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

use super::{CONNECTIONS_MAX, Request, Response, messages, response};
use crate::error::{MigrateError, Result};
use crate::key::{decode, encode};
use crate::shared::Shared;

const REQUESTS: &[u8] = b"request/";
const ANSWERS: &[u8] = b"answer/";
/// The one row of an answer.
const ANSWER: &[u8] = b"answer";
/// How often the process that runs the migration looks for requests, and a command for its answer.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// A request that is not taken by then is taken back.
const TAKEN_WITHIN: Duration = Duration::from_secs(10);
/// How often the process says that it is still at a request, and when it counts as gone.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(20);

fn request_key(id: Uuid) -> Vec<u8> {
    [REQUESTS, &id.bytes()].concat()
}

fn answers_of(id: &[u8]) -> Vec<u8> {
    [ANSWERS, id, b"/"].concat()
}

/// Asks the process that runs the migration into a target; `None` where none does.
pub async fn ask_through(mailbox: &dyn Mailbox, request: Request) -> Result<Option<Response>> {
    if !mailbox.has_reader().await? {
        return Ok(None);
    }
    let id = Uuid::new();
    mailbox.put(request_key(id), encode(&messages::write_request(request))?).await?;
    let asked = Instant::now();
    let mut last: Option<(Document, Instant)> = None;
    loop {
        sleep(LOOK_EVERY).await;
        let found = match mailbox.list(answers_of(&id.bytes()), 1).await {
            Ok(found) => found.into_iter().next(),
            Err(error) => {
                tracing::warn!(%error, "wait for an answer: looking again");
                None
            }
        };
        let Some((key, value)) = found else {
            if last.is_none() && asked.elapsed() > TAKEN_WITHIN {
                mailbox.take_away(request_key(id)).await?;
                return Ok(None);
            }
            continue;
        };
        let document = decode(&value).ok_or(MigrateError::State("an answer of the running migration"))?;
        if let Some(answer) = messages::read_answer(&document) {
            // What stays after an error here disappears by itself.
            let _ = mailbox.take_away(key).await;
            return Ok(Some(answer));
        }
        match &last {
            Some((seen, at)) if *seen == document => {
                if at.elapsed() > HEARTBEAT_WITHIN {
                    return Err(MigrateError::Ended(
                        "the process that runs it took the command and does not answer; see `mw migrate status`".to_owned(),
                    ));
                }
            }
            _ => last = Some((document, Instant::now())),
        }
    }
}

/// Answers requests until the migration ends.
pub(crate) async fn serve(shared: Arc<Shared>, abort: Arc<watch::Sender<bool>>) -> Result<()> {
    let Some(mailbox) = shared.target.mailbox() else { return std::future::pending().await };
    let mut working = JoinSet::new();
    loop {
        sleep(LOOK_EVERY).await;
        while working.try_join_next().is_some() {}
        let room = CONNECTIONS_MAX.saturating_sub(working.len());
        let requests = match mailbox.list(REQUESTS.to_vec(), room.max(1)).await {
            Ok(requests) => requests,
            Err(error) => {
                tracing::warn!(%error, "look for commands: looking again");
                continue;
            }
        };
        for (key, value) in requests.into_iter().take(room) {
            // A crash after it leaves a command without an answer; its sender sees that nothing is done for it.
            if let Err(error) = mailbox.take_away(key.clone()).await {
                tracing::warn!(%error, "take a command: trying again");
                continue;
            }
            let id = key.strip_prefix(REQUESTS).unwrap_or_default().to_vec();
            let request = decode(&value).and_then(|document| messages::read_request(&document));
            let (Some(request), Some(_)) = (request, key.strip_prefix(REQUESTS)) else { continue };
            let (shared, abort) = (Arc::clone(&shared), Arc::clone(&abort));
            working.spawn(async move {
                if let Err(error) = answer(&shared, &id, request, &abort).await {
                    tracing::warn!(%error, "answer a command");
                }
            });
        }
    }
}

async fn answer(
    shared: &Arc<Shared>,
    id: &[u8],
    request: Request,
    abort: &watch::Sender<bool>,
) -> Result<()> {
    let Some(mailbox) = shared.target.mailbox() else { return Ok(()) };
    let _answering = shared.begin_answer();
    let key = [&answers_of(id), ANSWER].concat();
    let mut heartbeats = interval(HEARTBEAT_EVERY);
    let mut heartbeat = 0_i64;
    let mut responding = std::pin::pin!(response(shared, request));
    let answer = loop {
        tokio::select! {
            answer = &mut responding => break answer,
            _ = heartbeats.tick() => {
                heartbeat += 1;
                if let Err(error) = mailbox.put(key.clone(), encode(&doc! { "working": heartbeat })?).await {
                    tracing::debug!(%error, "say that a command is being done");
                }
            }
        }
    };
    mailbox.put(key, encode(&messages::write_answer(&answer))?).await?;
    if answer == Response::Aborting {
        abort.send_replace(true);
    }
    Ok(())
}
