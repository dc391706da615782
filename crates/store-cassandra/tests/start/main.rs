//! Starting on a real cluster: its schema, and what a process says that cannot start.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

mod keyspaces;
mod places;
mod refusals;
mod schema;
