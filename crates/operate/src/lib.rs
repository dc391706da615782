//! Operations: what a running shop does to its storage, what a larger ring would make of it, and what keeps it healthy.

pub mod http_client;
pub mod partitions;
pub mod repair;
pub mod ring;
