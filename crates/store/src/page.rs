//! Pagination: every list is read in pages of bounded size.

/// The end of a page. It is opaque: only the engine that made it can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position(pub Vec<u8>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// At least 1.
    pub limit: usize,
    pub after: Option<Position>,
}

/// The items of a page and the position of the next one. A page may be shorter than its limit although more follow:
/// only a missing `next` ends the list.
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
