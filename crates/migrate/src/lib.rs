//! The live migration of a shop from MongoDB into another engine, while other programs write at the source.
//!
//! The change stream is opened before the copy. Ranges of `_id` are copied in parallel and the stream is followed; both only
//! name documents, and one task takes them (`apply.rs`): it reads what a document is now and writes what follows from it, so
//! copy and changes commute. All state is in the target (`state.rs`), written with the documents, so a crash at any instant
//! leaves a state from which the next run goes on.

mod apply;
mod clock;
pub mod control;
mod copy;
mod cutover;
pub mod error;
mod follow;
mod key;
mod mapping;
pub mod plan;
mod retry;
mod run;
mod shared;
mod source;
mod state;
pub mod status;
mod verify;

pub use cutover::{CutOver, Cutover};
pub use error::{MigrateError, Result};
pub use key::Kind;
pub use mapping::{Rejection, Settings};
pub use run::{Ended, Parts, RunOptions, clear_target, finish, run};
pub use source::{Source, source_options};
pub use state::{AllCounts, Counts, Phase};
pub use status::{RejectedDocument, Status};
pub use verify::{Difference, Verified};
