//! What tests of several crates share: builders of values, a fake clock, fault injection, a prober, and with the features
//! `cassandra` and `mongodb` real servers.
//!
//! Only a dev-dependency. Without a feature no test compiles its driver.

pub mod builders;
#[cfg(feature = "cassandra")]
pub mod cassandra;
pub mod clock;
pub mod faults;
#[cfg(feature = "mongodb")]
pub mod mongodb;
pub mod prober;

pub use clock::FakeClock;
pub use faults::{Calls, Fault, FaultyStore};
pub use prober::{Measured, Prober};
