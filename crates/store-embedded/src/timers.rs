//! Timers: index rows ordered by the moment at which a hold ends or an unpaid order is cancelled.
//!
//! Owns the lookup of due timers and [`NextTimers`], the lower bounds that spare readers and background work that lookup.
//! A timer row is written and removed in the same batch as the reservation or order that it belongs to.

use std::ops::ControlFlow;

use mw_domain::Timestamp;
use mw_store::Result;

use crate::keys;
use crate::reader::{KeyRange, Reader};
use crate::tables::Table;

/// Lower bounds of the earliest timers: no timer fires before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NextTimers {
    pub(crate) hold: Timestamp,
    pub(crate) payment: Timestamp,
}

impl NextTimers {
    /// For a store without timers.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self { hold: Timestamp::MAX, payment: Timestamp::MAX };

    /// Reads the exact bounds. They are not stored: each open derives them from the timer rows.
    pub(crate) fn read(reader: &dyn Reader) -> Result<Self> {
        Ok(Self {
            hold: first_due(reader, Table::HoldTimers, BEGINNING)?,
            payment: first_due(reader, Table::PaymentTimers, BEGINNING)?,
        })
    }

    pub(crate) fn min(self, other: Self) -> Self {
        Self { hold: self.hold.min(other.hold), payment: self.payment.min(other.payment) }
    }
}

/// Before every timer.
pub(crate) const BEGINNING: Timestamp = Timestamp::from_millis(i64::MIN);

/// The timers of a table that fire from `from` up to and including `now`, at most `limit`: moment and id.
pub(crate) fn due(
    reader: &dyn Reader,
    table: Table,
    from: Timestamp,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<(Timestamp, [u8; 16])>> {
    let mut timers = Vec::new();
    let range = KeyRange { from: keys::timer_from(from), to: Some(keys::timer_from(now.plus_millis(1))) };
    reader.scan(table, &range, false, &mut |key, _| {
        if timers.len() == limit {
            return Ok(ControlFlow::Break(()));
        }
        timers.push(keys::read_timer(key)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(timers)
}

/// When the first timer from `from` on fires; [`Timestamp::MAX`] without one.
pub(crate) fn first_due(reader: &dyn Reader, table: Table, from: Timestamp) -> Result<Timestamp> {
    let first = due(reader, table, from, Timestamp::MAX, 1)?;
    Ok(first.first().map_or(Timestamp::MAX, |(at, _)| *at))
}
