//! Operations: what a running shop does to its storage, what a larger ring or one more shard would make of it, and what keeps it healthy.

pub mod chunks;
pub mod http_client;
pub mod partitions;
pub mod repair;
pub mod ring;
