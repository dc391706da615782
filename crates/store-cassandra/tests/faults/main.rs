//! What the shop keeps to when nodes, processes and whole data centres are lost.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

mod centres;
mod given;
mod left;
mod nodes;
mod processes;
mod traffic;
mod twice;
