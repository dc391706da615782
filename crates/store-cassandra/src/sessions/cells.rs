//! Data of a session as cells: the value of a key with the stamp of its write, or its removal. Pure.
//!
//! The header has cells as of its last conditional change, the activity row those that plain writes made since. Of a key the
//! cell with the higher stamp counts, so a plain write and a conditional one may arrive in any order and neither is lost.

use std::collections::BTreeMap;

use mw_domain::limits::InvalidField;

use crate::carts::protocol::Stamp;

/// A value, or `None` for a removal, and the stamp of its write.
pub(super) type Cell = (Stamp, Option<String>);

/// Keys of a session of which cells are kept, removed ones included: a removal stays until it is older than every plain write
/// that could be below it.
const CELLS_MAX: usize = 1_024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Cells(BTreeMap<String, Cell>);

impl Cells {
    pub(super) fn new(cells: Option<BTreeMap<String, Cell>>) -> Self {
        Self(cells.unwrap_or_default())
    }

    /// Of each key the cell with the higher stamp.
    pub(super) fn overlay(mut self, other: Self) -> Self {
        for (key, cell) in other.0 {
            match self.0.get(&key) {
                Some(own) if own.0 >= cell.0 => {}
                _ => {
                    self.0.insert(key, cell);
                }
            }
        }
        self
    }

    pub(super) fn data(&self) -> BTreeMap<String, String> {
        let value = |(key, (_, value)): (&String, &Cell)| Some((key.clone(), value.clone()?));
        self.0.iter().filter_map(value).collect()
    }

    pub(super) fn newest_stamp(&self) -> Stamp {
        self.0.values().map(|(stamp, _)| *stamp).max().unwrap_or_default()
    }

    /// The cells that turn these into `data`, each under `stamp`.
    pub(super) fn changes_to(&self, data: &BTreeMap<String, String>, stamp: Stamp) -> Self {
        let value_of = |key: &String| self.0.get(key).and_then(|(_, value)| value.as_ref());
        let set = data.iter().filter(|(key, value)| value_of(key) != Some(*value));
        let set = set.map(|(key, value)| (key.clone(), (stamp, Some(value.clone()))));
        let gone = self.0.iter().filter(|(key, (_, value))| value.is_some() && !data.contains_key(*key));
        Self(set.chain(gone.map(|(key, _)| (key.clone(), (stamp, None)))).collect())
    }

    /// Without removals before `stamp` of keys that `plain` has no cell of: no plain write below them is left.
    pub(super) fn without_removals_before(mut self, stamp: Stamp, plain: &Self) -> Self {
        self.0.retain(|key, (at, value)| value.is_some() || *at >= stamp || plain.0.contains_key(key));
        self
    }

    pub(super) fn check_size(&self) -> Result<(), InvalidField> {
        if self.0.len() <= CELLS_MAX {
            return Ok(());
        }
        let detail = format!("more than {CELLS_MAX} different keys were set and removed; use fewer keys");
        Err(InvalidField::new("data", detail))
    }

    pub(super) fn into_map(self) -> BTreeMap<String, Cell> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(cells: &[(&str, Stamp, Option<&str>)]) -> Cells {
        let cell = |(key, stamp, value): &(&str, Stamp, Option<&str>)| {
            ((*key).to_owned(), (*stamp, value.map(ToOwned::to_owned)))
        };
        Cells(cells.iter().map(cell).collect())
    }

    fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn later_cell_of_a_key_counts_in_either_order() {
        let header = cells(&[("a", 5, Some("header")), ("b", 2, Some("old")), ("c", 9, None)]);
        let row =
            cells(&[("a", 3, Some("row")), ("b", 4, None), ("c", 7, Some("late")), ("d", 1, Some("1"))]);
        let expected = data(&[("a", "header"), ("d", "1")]);
        assert_eq!(header.clone().overlay(row.clone()).data(), expected);
        assert_eq!(row.overlay(header).data(), expected);
    }

    #[test]
    fn change_names_only_the_keys_that_differ() {
        let before =
            cells(&[("same", 1, Some("1")), ("set", 1, Some("1")), ("gone", 1, Some("1")), ("off", 1, None)]);
        let changes = before.changes_to(&data(&[("same", "1"), ("set", "2"), ("new", "3")]), 8);
        assert_eq!(changes, cells(&[("set", 8, Some("2")), ("gone", 8, None), ("new", 8, Some("3"))]));
        assert_eq!(before.overlay(changes).data(), data(&[("same", "1"), ("set", "2"), ("new", "3")]));
    }

    #[test]
    fn concurrent_changes_of_two_keys_both_stay() {
        let before = cells(&[("a", 1, Some("1"))]);
        let one = before.changes_to(&data(&[("a", "1"), ("b", "2")]), 10);
        let other = before.changes_to(&data(&[("a", "3")]), 11);
        let both = before.overlay(one).overlay(other);
        assert_eq!(both.data(), data(&[("a", "3"), ("b", "2")]));
    }

    #[test]
    fn old_removals_are_dropped_and_values_never() {
        let plain = cells(&[("d", 0, Some("below"))]);
        let all = cells(&[("a", 1, Some("1")), ("b", 1, None), ("c", 5, None), ("d", 1, None)]);
        let kept = all.without_removals_before(5, &plain);
        assert_eq!(kept, cells(&[("a", 1, Some("1")), ("c", 5, None), ("d", 1, None)]));
    }
}
