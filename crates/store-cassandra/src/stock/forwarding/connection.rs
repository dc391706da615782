//! Reading and writing frames on a connection, with a bound on their length.

use std::io;

use mw_codec::Damaged;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use uuid::Uuid;

use super::frames::{FRAME_MAX, Frame};

/// Why a connection between two processes ended. The commands that wait on it are resolved elsewhere.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Damaged(#[from] Damaged),
    #[error("a frame of {0} bytes is longer than {FRAME_MAX}")]
    FrameTooLong(usize),
    #[error("the commands are outdated")]
    OutdatedCommands,
    #[error("unexpected frame")]
    UnexpectedFrame,
    #[error("the other process does not know the token (store.cassandra.internal_token)")]
    WrongToken,
    #[error("process {0} listens on this address now")]
    OtherProcess(Uuid),
    #[error("no frame for {0:?}")]
    TimedOut(std::time::Duration),
}

/// Appends a frame to what is to be written.
pub(super) fn append(frame: &Frame, into: &mut Vec<u8>) -> Result<(), LinkError> {
    let body = frame.encode();
    let too_long = || LinkError::FrameTooLong(body.len());
    let length = u32::try_from(body.len()).map_err(|_| too_long())?;
    if body.len() > FRAME_MAX {
        return Err(too_long());
    }
    into.extend_from_slice(&length.to_be_bytes());
    into.extend_from_slice(&body);
    Ok(())
}

pub(super) async fn write_frame(
    stream: &mut (impl AsyncWrite + Unpin),
    frame: &Frame,
) -> Result<(), LinkError> {
    let mut bytes = Vec::new();
    append(frame, &mut bytes)?;
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads the next frame. A future that is dropped may have read a part of it: the connection is of no use then.
pub(super) async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> Result<Frame, LinkError> {
    let length = usize::try_from(stream.read_u32().await?).unwrap_or(usize::MAX);
    if length > FRAME_MAX {
        return Err(LinkError::FrameTooLong(length));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Frame::decode(&body)?)
}
