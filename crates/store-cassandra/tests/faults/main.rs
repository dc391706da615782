//! The engine while nodes, processes or a data centre are lost, and while requests are duplicated.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod background_load;
mod carts;
mod changes;
mod data_centres;
mod dead_processes;
mod duplicate_requests;
mod fixtures;
mod lost_nodes;
mod recovery;
mod refused_merges;
mod statement_faults;
mod timers;
mod tombstones;
