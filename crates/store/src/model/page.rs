//! Pages of a list that is wholly in memory.

use crate::{Page, PageRequest, Position, Refusal, Result};

/// Where an item stands in its list: a number, then a text.
pub(super) type Place = (i64, String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Rising,
    Falling,
}

/// Sorts the items and answers those that follow the asked position.
pub(super) fn page<T>(
    mut items: Vec<(Place, T)>,
    direction: Direction,
    request: &PageRequest,
) -> Result<Page<T>> {
    let after = request.after.as_ref().map(read).transpose()?;
    items.sort_by(|(a, _), (b, _)| a.cmp(b));
    if direction == Direction::Falling {
        items.reverse();
    }
    let mut following: Vec<(Place, T)> = items
        .into_iter()
        .filter(|(place, _)| match (&after, direction) {
            (None, _) => true,
            (Some(after), Direction::Rising) => place > after,
            (Some(after), Direction::Falling) => place < after,
        })
        .collect();
    let is_more = following.len() > request.limit;
    following.truncate(request.limit);
    let next = following.last().filter(|_| is_more).map(|(place, _)| write(place));
    let items = following.into_iter().map(|(_, item)| item).collect();
    Ok(Page { items, next })
}

fn write((number, text): &Place) -> Position {
    Position([&number.to_be_bytes()[..], text.as_bytes()].concat())
}

fn read(position: &Position) -> Result<Place> {
    let (number, text) = position.0.split_first_chunk().ok_or(Refusal::InvalidCursor)?;
    let text = std::str::from_utf8(text).map_err(|_| Refusal::InvalidCursor)?;
    Ok((i64::from_be_bytes(*number), text.to_owned()))
}
