//! Startup on a real cluster: schema, replication, and the errors of a process that cannot start.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

mod data_centres;
mod keyspaces;
mod refusals;
mod schema;
