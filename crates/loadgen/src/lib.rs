//! Load generator: workloads as data, an open-loop (scheduled) or closed-loop generator, and a report of what was measured
//! and whether the server kept its guarantees.
//!
//! It knows the service by its HTTP contract alone. Latency counts from the instant a request was scheduled, not from when
//! it was sent, so a stall of the server is not hidden (coordinated omission). Nothing is measured during the warm-up, and
//! every run ends with a check: acknowledged orders are readable and no unit was sold twice.

mod check;
mod client;
mod compare;
mod connection;
mod error;
mod numbers;
mod read_back;
pub mod report;
mod run;
mod sampling;
mod scenarios;
mod schedule;
mod setup;
mod stats;
mod target;
mod timer;
mod wire;
mod worker;
mod worker_pool;
pub mod workload;
mod zipf;

pub use check::Check;
pub use compare::{Assessment, Change, Comparison, compare};
pub use error::LoadError;
pub use report::Report;
pub use run::{Event, Options, Progress, Rate, run};
pub use schedule::Arrivals;
pub use target::Target;
pub use workload::Workload;
