//! Operations: what a running shop does to its storage, and what a larger ring would make of it.

pub mod ring;
