//! Load of a shop: workloads as data, a generator that sends them by a schedule or as fast as it can, and a report that
//! tells what was measured and whether the server kept its promises.
//!
//! It knows the service by its HTTP contract alone. Latency counts from the instant a request was due, not from when it
//! was sent, so a server that stalls cannot hide it. Nothing is measured before the warm-up is over, and every run ends
//! with a check: acknowledged orders are readable and no unit was sold twice.

mod alarm;
mod check;
mod client;
mod compare;
mod connection;
mod draw;
mod error;
mod figures;
mod fleet;
mod reading;
pub mod report;
mod run;
mod schedule;
mod setup;
mod shopping;
mod tally;
mod target;
mod wire;
mod worker;
pub mod workload;
mod zipf;

pub use check::Check;
pub use compare::{Change, Comparison, Verdict, compare};
pub use error::LoadError;
pub use report::Report;
pub use run::{Event, Options, Progress, Rate, run};
pub use schedule::Arrivals;
pub use target::Target;
pub use workload::Workload;
