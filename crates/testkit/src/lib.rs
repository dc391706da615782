//! What tests of several crates need: builders of values, a clock that stands still, and a store that fails on demand.
//!
//! Only ever a dev-dependency.

pub mod builders;
pub mod clock;
pub mod faults;

pub use clock::FakeClock;
pub use faults::{Calls, Fault, FaultyStore};
