//! The driver: connecting, statements and their consistency, LWT routing, speculative execution, write certainty, coalescing,
//! scans, quorum availability, the clock guard, and faults that tests inject.

pub mod connect;

pub(crate) mod certainty;
pub(crate) mod clock_guard;
pub(crate) mod coalesce;
pub(crate) mod fault_injection;
pub(crate) mod locks;
pub(crate) mod lwt_routing;
pub(crate) mod partition_key;
pub(crate) mod quorum_availability;
pub(crate) mod scan;
pub(crate) mod speculative_execution;
pub(crate) mod statements;
pub(crate) mod time;
pub(crate) mod trace;
