//! What tests of several crates need: builders of values, a clock that stands still, a store that fails on demand, and a
//! real Cassandra cluster.
//!
//! Only ever a dev-dependency.

pub mod builders;
pub mod cassandra;
pub mod clock;
pub mod faults;

pub use clock::FakeClock;
pub use faults::{Calls, Fault, FaultyStore};
