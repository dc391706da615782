//! What tests of several crates share: builders of values, a fake clock, fault injection, and with the feature `cassandra` a
//! real Cassandra cluster.
//!
//! Only a dev-dependency. Without the feature no test compiles the Cassandra driver.

pub mod builders;
#[cfg(feature = "cassandra")]
pub mod cassandra;
pub mod clock;
pub mod faults;

pub use clock::FakeClock;
pub use faults::{Calls, Fault, FaultyStore};
