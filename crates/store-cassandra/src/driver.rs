//! The driver: connecting, statements and their consistency, LWT routing, speculative execution, write certainty, coalescing,
//! scans, quorum availability and the clock guard.

pub mod connect;

pub(crate) mod certainty;
pub(crate) mod clock_guard;
pub(crate) mod coalesce;
pub(crate) mod locks;
pub(crate) mod lwt_routing;
pub(crate) mod quorum_availability;
pub(crate) mod scan;
pub(crate) mod speculative_execution;
pub(crate) mod statements;
pub(crate) mod time;
pub(crate) mod trace;
