//! Lists are read page by page; nobody reads without a bound.

/// Where a page ended. Only the engine that made it can read it; a caller hands it back as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position(pub Vec<u8>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// At least 1.
    pub limit: usize,
    pub after: Option<Position>,
}

/// Some items, and where to go on. A page may hold fewer items than asked for while there are more: `next` decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<Position>,
}

impl PageRequest {
    pub const fn first(limit: usize) -> Self {
        Self { limit, after: None }
    }
}
