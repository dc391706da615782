//! Errors of the migration. Each says what to do next.

use mw_store::StoreError;
use mw_store_mongodb::StartError;

#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("connect to the source: {0}")]
    Connect(#[from] StartError),
    #[error("read the source: {0}")]
    Source(#[from] Box<mongodb::error::Error>),
    #[error(
        "follow the source: its oplog no longer has the changes after the last one that was taken (error 286): run `mw migrate \
         run --recopy`, which opens a new change stream and reads every document again; enlarge the oplog first (`mw migrate \
         plan` says how many hours it has)"
    )]
    HistoryLost,
    #[error(
        "follow the source: collection {collection} was {what}: the migration cannot go on; run `mw migrate abort --yes` and begin \
         again"
    )]
    CollectionChanged { collection: String, what: &'static str },
    #[error("write to the target: {0}")]
    Target(#[from] StoreError),
    #[error(
        "read the state of the migration: {0} cannot be read; run `mw migrate abort --yes` and begin again"
    )]
    State(&'static str),
    #[error("{0}")]
    Refused(String),
    #[error("talk to the running migration: {0}")]
    Control(#[from] std::io::Error),
    #[error("run the migration: a part of it ended early: {0}")]
    Ended(String),
}

impl From<mongodb::error::Error> for MigrateError {
    fn from(error: mongodb::error::Error) -> Self {
        if is_history_lost(&error) { Self::HistoryLost } else { Self::Source(Box::new(error)) }
    }
}

impl MigrateError {
    pub(crate) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    /// Whether the same may succeed a moment later: servers that elect, restart or are overloaded.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Source(error) => is_passing(error),
            Self::Target(error) => matches!(
                error,
                StoreError::Overloaded | StoreError::Unavailable(_) | StoreError::Ambiguous { .. }
            ),
            _ => false,
        }
    }
}

/// `ChangeStreamHistoryLost`, and a resume point that the oplog does not have.
fn is_history_lost(error: &mongodb::error::Error) -> bool {
    const HISTORY_LOST: i32 = 286;
    const CAPPED_POSITION_LOST: i32 = 136;
    matches!(code(error), Some(HISTORY_LOST | CAPPED_POSITION_LOST))
}

fn code(error: &mongodb::error::Error) -> Option<i32> {
    match error.kind.as_ref() {
        mongodb::error::ErrorKind::Command(command) => Some(command.code),
        _ => None,
    }
}

/// A server that says no is not asked again; everything else is the network or an election.
fn is_passing(error: &mongodb::error::Error) -> bool {
    use mongodb::error::ErrorKind;
    const NOT_AUTHORIZED: i32 = 13;
    const AUTHENTICATION_FAILED: i32 = 18;
    match error.kind.as_ref() {
        ErrorKind::Command(command) => ![NOT_AUTHORIZED, AUTHENTICATION_FAILED].contains(&command.code),
        ErrorKind::Io(_)
        | ErrorKind::ConnectionPoolCleared { .. }
        | ErrorKind::ServerSelection { .. }
        | ErrorKind::InvalidResponse { .. } => true,
        _ => false,
    }
}

pub type Result<T, E = MigrateError> = std::result::Result<T, E>;
