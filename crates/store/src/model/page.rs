//! Pages of a list in memory.

use crate::{Page, PageRequest, Position, Refusal, Result};

/// The sort key of an item in its list: a number, then a text.
pub(super) type SortKey = (i64, String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Rising,
    Falling,
}

/// Sorts the items and returns the page after the requested position.
pub(super) fn page<T>(
    mut items: Vec<(SortKey, T)>,
    direction: Direction,
    request: &PageRequest,
) -> Result<Page<T>> {
    let after = request.after.as_ref().map(read).transpose()?;
    items.sort_by(|(a, _), (b, _)| a.cmp(b));
    if direction == Direction::Falling {
        items.reverse();
    }
    let mut following: Vec<(SortKey, T)> = items
        .into_iter()
        .filter(|(key, _)| match (&after, direction) {
            (None, _) => true,
            (Some(after), Direction::Rising) => key > after,
            (Some(after), Direction::Falling) => key < after,
        })
        .collect();
    let is_more = following.len() > request.limit;
    following.truncate(request.limit);
    let next = following.last().filter(|_| is_more).map(|(key, _)| write(key));
    let items = following.into_iter().map(|(_, item)| item).collect();
    Ok(Page { items, next })
}

fn write((number, text): &SortKey) -> Position {
    Position([&number.to_be_bytes()[..], text.as_bytes()].concat())
}

fn read(position: &Position) -> Result<SortKey> {
    let (number, text) = position.0.split_first_chunk().ok_or(Refusal::InvalidCursor)?;
    let text = std::str::from_utf8(text).map_err(|_| Refusal::InvalidCursor)?;
    Ok((i64::from_be_bytes(*number), text.to_owned()))
}
