//! How commands reach a running migration: through the target where it is a cluster (`mailbox.rs`), else through a socket. An embedded target is opened by one process, so the commands of an operator reach it
//! there: one request on a connection, then notes, then one answer. Each is a BSON document, which begins with its length.

mod mailbox;
mod messages;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::Document;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

pub use mailbox::ask_through;
pub(crate) use mailbox::serve as serve_mailbox;

use crate::CutOver;
use crate::cutover::{Cutover, cut_over};
use crate::error::{MigrateError, Result};
use crate::key::{decode, encode};
use crate::shared::Shared;
use crate::status::{self, RejectedDocument, Status};
use crate::verify::{Verified, verify};

/// The socket's name in the folder of an embedded store.
const SOCKET: &str = "migrate.sock";
/// A longer message is none of ours.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Commands at the same time; further ones wait.
const CONNECTIONS_MAX: usize = 16;
/// After an error of the listener.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);
/// Shorter than the documents of a list, so that an answer stays below its limit.
const LISTED_MAX: usize = 50_000;

/// What an operator asks of a running migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    Status,
    Rejected,
    Verify { repair: bool },
    CutOver(Cutover),
    Abort,
}

/// What it answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Response {
    Status(Status),
    Rejected(Vec<RejectedDocument>),
    Verified(Verified),
    CutOver(CutOver),
    Aborting,
    Failed(String),
}

/// The bound socket; removed with it.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Binds the socket in the folder of a store that this process has opened: a socket that is there was left by a crash.
    pub fn bind(folder: &Path) -> Result<Self> {
        let path = folder.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        Ok(Self { listener: UnixListener::bind(&path)?, path })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Asks the migration that runs in a folder; `None` where none does.
pub async fn ask(folder: &Path, request: Request) -> Result<Option<Response>> {
    let Ok(mut stream) = UnixStream::connect(folder.join(SOCKET)).await else { return Ok(None) };
    send(&mut stream, &messages::write_request(request)).await?;
    let document = receive(&mut stream).await?;
    let answer =
        messages::read_answer(&document).ok_or(MigrateError::State("an answer of the running migration"))?;
    Ok(Some(answer))
}

async fn send(stream: &mut UnixStream, document: &Document) -> Result<()> {
    stream.write_all(&encode(document)?).await?;
    Ok(stream.flush().await?)
}

async fn receive(stream: &mut UnixStream) -> Result<Document> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let bytes = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    if !(5..=MESSAGE_BYTES_MAX).contains(&bytes) {
        return Err(MigrateError::State("a message"));
    }
    let mut message = vec![0; bytes];
    let (head, rest) = message.split_at_mut(4);
    head.copy_from_slice(&length);
    stream.read_exact(rest).await?;
    decode(&message).ok_or(MigrateError::State("a message"))
}

/// Answers requests until the migration ends.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    listener: Listener,
    abort: Arc<watch::Sender<bool>>,
) -> Result<()> {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        let Ok((stream, _)) = listener.listener.accept().await else {
            tokio::time::sleep(ACCEPT_WAIT).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let (shared, abort) = (Arc::clone(&shared), Arc::clone(&abort));
        connections.spawn(async move {
            // A client that leaves early needs no answer.
            if let Err(error) = answer(&shared, stream, &abort).await {
                tracing::debug!(%error, "answer a command");
            }
        });
    }
}

async fn answer(shared: &Arc<Shared>, mut stream: UnixStream, abort: &watch::Sender<bool>) -> Result<()> {
    let request = messages::read_request(&receive(&mut stream).await?);
    let request = request.ok_or(MigrateError::State("a request"))?;
    let _answering = shared.begin_answer();
    let answer = response(shared, request).await;
    send(&mut stream, &messages::write_answer(&answer)).await?;
    if answer == Response::Aborting {
        abort.send_replace(true);
    }
    Ok(())
}

async fn response(shared: &Arc<Shared>, request: Request) -> Response {
    let answered = match request {
        Request::Status => Ok(Response::Status(status::running(shared).await)),
        Request::Rejected => status::rejected(&*shared.target).await.map(|mut rejected| {
            rejected.truncate(LISTED_MAX);
            Response::Rejected(rejected)
        }),
        Request::Verify { repair } => verify(shared, repair).await.map(Response::Verified),
        Request::CutOver(cutover) => cut_over(shared, cutover).await.map(Response::CutOver),
        Request::Abort => Ok(Response::Aborting),
    };
    answered.unwrap_or_else(|error| Response::Failed(error.to_string()))
}
