//! Hot and wide partitions: counted in every process with heavy-hitter sketches, merged over the processes once a window, and
//! divided by bucket plans where that helps.
//!
//! Only lower bounds count against a partition, so an even load never makes one hot.

pub mod adaptation;
pub mod counting;
pub mod judgement;
pub mod memory;
pub mod steward;
pub mod summary;

pub use adaptation::Adapt;
pub use counting::PartitionCounters;
pub use memory::LocalPartitions;
pub use steward::{Steward, StewardSettings};
