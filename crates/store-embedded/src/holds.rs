//! Open holds in memory, by stock level and by the moment they end, so that a command expires only the holds whose units it needs
//! and a reader subtracts ended holds without reading them, however many end at the same moment.
//!
//! Invariant: the index holds the open holds of the last batch that the writer has begun to commit. A reader whose snapshot is
//! older takes the changes of later batches back; the changes of the last [`HISTORY_MAX`] batches are kept for that. The index
//! is derived from the timers at every open.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{PoisonError, RwLock};

use mw_domain::{Reservation, ReservationStatus, Timestamp};
use mw_store::Result;

use crate::keys::{self, Key};
use crate::reader::Reader;
use crate::stock;
use crate::tables::Table;
use crate::timers;

/// Batches whose changes can be taken back; a reader of an older snapshot reads the holds themselves.
const HISTORY_MAX: usize = 1_024;

/// When a hold ends, and its id.
pub(crate) type HoldEnd = (Timestamp, [u8; 16]);

/// A line of a hold that a command opened or closed.
#[derive(Debug, Clone)]
pub(crate) struct HoldChange {
    /// `None`: every line of a hold that could not be read.
    pub(crate) stock_key: Option<Key>,
    pub(crate) end: HoldEnd,
    /// The units of an opened hold; `None` for a closed one.
    pub(crate) opened: Option<u64>,
}

/// The changes of a reservation that was written: opened while it is held, closed otherwise.
pub(crate) fn changes(reservation: &Reservation) -> impl Iterator<Item = HoldChange> {
    let end = (reservation.expires_at, *reservation.reservation_id.as_bytes());
    let is_open = reservation.status == ReservationStatus::Held;
    reservation.lines.iter().map(move |line| HoldChange {
        stock_key: Some(keys::stock(&line.product_id, &reservation.geo_zone)),
        end,
        opened: is_open.then_some(u64::from(line.quantity)),
    })
}

/// What a change did to the units of a stock level.
#[derive(Debug)]
struct UnitChange {
    stock_key: Key,
    ends_at: Timestamp,
    units: i64,
}

type Holds = BTreeMap<HoldEnd, u64>;

#[derive(Debug, Default)]
struct State {
    by_stock: HashMap<Key, Holds>,
    /// By commit sequence number, rising.
    history: VecDeque<(u64, Vec<UnitChange>)>,
    /// The last batch whose changes can no longer be taken back.
    forgotten: u64,
}

#[derive(Debug, Default)]
pub(crate) struct HoldIndex(RwLock<State>);

impl HoldIndex {
    /// Reads all open holds. One that cannot be read is logged and left out: its units stay reserved, which the audit reports.
    pub(crate) fn read(reader: &dyn Reader) -> Result<Self> {
        let mut state = State::default();
        for (_, id) in timers::due(reader, Table::HoldTimers, timers::BEGINNING, Timestamp::MAX, usize::MAX)?
        {
            match stock::held(reader, id) {
                Ok(Some(hold)) => changes(&hold).for_each(|change| state.apply(change, &mut Vec::new())),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, "read open hold: its units stay reserved; run mw stock audit");
                }
            }
        }
        Ok(Self(RwLock::new(state)))
    }

    /// Applies the changes of a batch, before it becomes visible.
    pub(crate) fn apply(&self, commit_sequence: u64, changes: &mut Vec<HoldChange>) {
        if changes.is_empty() {
            return;
        }
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut applied = Vec::with_capacity(changes.len());
        for change in changes.drain(..) {
            state.apply(change, &mut applied);
        }
        state.history.push_back((commit_sequence, applied));
        if state.history.len() > HISTORY_MAX
            && let Some((sequence, _)) = state.history.pop_front()
        {
            state.forgotten = sequence;
        }
    }

    /// The units of holds of a stock level that ended by `now`, as of a batch; `None` if the batch is too old to tell.
    pub(crate) fn ended_units(&self, stock_key: &[u8], now: Timestamp, commit_sequence: u64) -> Option<u64> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if commit_sequence < state.forgotten {
            return None;
        }
        let mut units: i64 = state.ended(stock_key, now).map(|(_, units)| units.cast_signed()).sum();
        for (sequence, changes) in state.history.iter().rev() {
            if *sequence <= commit_sequence {
                break;
            }
            let later =
                changes.iter().filter(|change| change.stock_key == stock_key && change.ends_at <= now);
            units -= later.map(|change| change.units).sum::<i64>();
        }
        Some(u64::try_from(units).unwrap_or_default())
    }

    /// For the writer: the units of ended holds of a stock level, with the changes of the running batch.
    pub(crate) fn pending_units(&self, stock_key: &[u8], now: Timestamp, pending: &[HoldChange]) -> u64 {
        self.pending(stock_key, now, pending, usize::MAX).map(|(_, units)| units).sum()
    }

    /// For the writer: up to `limit` ended holds of a stock level, with the changes of the running batch.
    pub(crate) fn pending_ends(
        &self,
        stock_key: &[u8],
        now: Timestamp,
        pending: &[HoldChange],
        limit: usize,
    ) -> Vec<HoldEnd> {
        self.pending(stock_key, now, pending, limit).map(|(end, _)| end).collect()
    }

    fn pending(
        &self,
        stock_key: &[u8],
        now: Timestamp,
        pending: &[HoldChange],
        limit: usize,
    ) -> impl Iterator<Item = (HoldEnd, u64)> {
        let concerned = |change: &&HoldChange| change.stock_key.as_deref().is_none_or(|key| key == stock_key);
        let mut opened = Holds::new();
        let mut changed = HashSet::new();
        for change in pending.iter().filter(concerned).filter(|change| change.end.0 <= now) {
            changed.insert(change.end);
            match change.opened {
                Some(units) => drop(opened.insert(change.end, units)),
                None => drop(opened.remove(&change.end)),
            }
        }
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let stored = state.ended(stock_key, now).filter(|(end, _)| !changed.contains(end));
        let found: Vec<(HoldEnd, u64)> = stored.chain(opened).take(limit).collect();
        found.into_iter()
    }
}

impl State {
    fn apply(&mut self, change: HoldChange, applied: &mut Vec<UnitChange>) {
        let HoldChange { stock_key, end, opened } = change;
        let stock_keys = match stock_key {
            Some(stock_key) => vec![stock_key],
            None => self.by_stock.keys().cloned().collect(),
        };
        for stock_key in stock_keys {
            let holds = self.by_stock.entry(stock_key.clone()).or_default();
            let before = match opened {
                Some(units) => holds.insert(end, units),
                None => holds.remove(&end),
            };
            if holds.is_empty() {
                self.by_stock.remove(&stock_key);
            }
            let units = opened.unwrap_or_default().cast_signed() - before.unwrap_or_default().cast_signed();
            if units != 0 {
                applied.push(UnitChange { stock_key, ends_at: end.0, units });
            }
        }
    }

    fn ended(&self, stock_key: &[u8], now: Timestamp) -> impl Iterator<Item = (HoldEnd, u64)> {
        let holds = self.by_stock.get(stock_key).into_iter();
        holds.flat_map(move |holds| holds.range(..=(now, [u8::MAX; 16])).map(|(end, units)| (*end, *units)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn change(ms: i64, id: u8, opened: Option<u64>) -> HoldChange {
        HoldChange { stock_key: Some(b"p".to_vec()), end: (at(ms), [id; 16]), opened }
    }

    #[test]
    fn a_reader_of_an_older_snapshot_sees_the_holds_of_its_batch() {
        let index = HoldIndex::default();
        index.apply(1, &mut vec![change(10, 1, Some(2)), change(20, 2, Some(5))]);
        index.apply(2, &mut vec![change(10, 1, None)]);
        assert_eq!(index.ended_units(b"p", at(9), 2), Some(0));
        assert_eq!(index.ended_units(b"p", at(20), 2), Some(5));
        assert_eq!(index.ended_units(b"p", at(20), 1), Some(7));
        assert_eq!(index.ended_units(b"p", at(15), 1), Some(2));
        assert_eq!(index.ended_units(b"p", at(20), 0), Some(0));
        assert_eq!(index.ended_units(b"q", at(20), 2), Some(0));
        for sequence in 3..2_000 {
            index.apply(sequence, &mut vec![change(30, 3, Some(sequence))]);
        }
        assert_eq!(index.ended_units(b"p", at(20), 1), None, "too old to tell");
        assert_eq!(index.ended_units(b"p", at(30), 1_999), Some(5 + 1_999));
    }

    #[test]
    fn the_writer_sees_the_changes_of_its_running_batch() {
        let index = HoldIndex::default();
        index.apply(1, &mut vec![change(10, 1, Some(2)), change(11, 2, Some(5))]);
        let pending = [change(10, 1, None), change(12, 3, Some(7)), change(99, 4, Some(1))];
        assert_eq!(index.pending_units(b"p", at(20), &pending), 12);
        assert_eq!(index.pending_ends(b"p", at(20), &pending, 1), [(at(11), [2; 16])]);
        let unreadable = [HoldChange { stock_key: None, ..change(11, 2, None) }];
        assert_eq!(index.pending_units(b"p", at(20), &unreadable), 2);
    }
}
