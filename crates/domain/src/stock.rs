//! Stock of a product in a zone, and the ledger that explains it.
//!
//! What must hold whenever anybody looks: `reserved <= on_hand`. A movement that would break it is refused, so a unit
//! is never promised twice.

use uuid::Uuid;

use crate::ids::{GeoZone, ProductId, ReservationId};
use crate::limits::{InvalidField, LINES_MAX, QUANTITY_MAX, RESERVATION_HISTORY_DAYS};
use crate::time::Timestamp;

/// Units on hand, and how many of them are promised to somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    pub on_hand: u64,
    pub reserved: u64,
}

/// A movement that would leave fewer units than are promised, or less than nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the movement would leave fewer units than are reserved")]
pub struct BelowReserved;

impl Level {
    pub const fn available(&self) -> u64 {
        self.on_hand.saturating_sub(self.reserved)
    }

    /// Applies a movement, or refuses it whole.
    pub fn moved(&self, by: Delta) -> Result<Self, BelowReserved> {
        let on_hand = self.on_hand.checked_add_signed(by.on_hand).ok_or(BelowReserved)?;
        let reserved = self.reserved.checked_add_signed(by.reserved).ok_or(BelowReserved)?;
        if reserved > on_hand { Err(BelowReserved) } else { Ok(Self { on_hand, reserved }) }
    }
}

/// A change of the two figures that happens as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delta {
    pub on_hand: i64,
    pub reserved: i64,
}

/// Why units moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The back office set the figure.
    Set,
    /// The back office added or removed units.
    Adjust,
    /// Promised to an order or a reservation.
    Hold,
    /// Promised units left: paid or confirmed.
    Take,
    /// The promise ended: cancelled, released or expired.
    Release,
    /// Units that had left came back: a paid order cancelled, or a delivery returned.
    Return,
}

/// One line of the ledger; the figures are the sum of all lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Movement {
    pub at: Timestamp,
    /// The order, the reservation, or a fresh id for the back office's own movements.
    pub op: Uuid,
    pub cause: Cause,
    pub delta: Delta,
    pub note: Option<String>,
}

impl Cause {
    /// What this cause does to the figures of a product of which an order or reservation has `quantity`.
    pub fn delta(self, quantity: u32) -> Delta {
        let units = i64::from(quantity);
        match self {
            Self::Hold => Delta { on_hand: 0, reserved: units },
            Self::Take => Delta { on_hand: -units, reserved: -units },
            Self::Release => Delta { on_hand: 0, reserved: -units },
            Self::Return => Delta { on_hand: units, reserved: 0 },
            Self::Set | Self::Adjust => Delta::default(),
        }
    }
}

/// The figures of one product in one zone, as a reader sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneStock {
    pub product_id: ProductId,
    pub geo_zone: GeoZone,
    pub level: Level,
    pub updated_at: Timestamp,
}

/// So many units of a product are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    pub product_id: ProductId,
    pub quantity: u32,
}

/// A demand that the zone cannot meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub product_id: ProductId,
    pub requested: u32,
    pub available: u64,
}

/// Makes one demand a product out of what a client listed, in the order of first mention.
pub fn combine(lines: Vec<Demand>) -> Result<Vec<Demand>, InvalidField> {
    if lines.is_empty() {
        return Err(InvalidField::new("lines", "at least 1 line"));
    }
    if lines.len() > LINES_MAX {
        return Err(InvalidField::new("lines", format!("at most {LINES_MAX} lines")));
    }
    let mut combined: Vec<Demand> = Vec::with_capacity(lines.len());
    for (at, line) in lines.into_iter().enumerate() {
        let known = combined.iter_mut().find(|known| known.product_id == line.product_id);
        let quantity = if let Some(known) = known {
            known.quantity = known.quantity.saturating_add(line.quantity);
            known.quantity
        } else {
            combined.push(line.clone());
            line.quantity
        };
        if !(1..=QUANTITY_MAX).contains(&quantity) {
            let detail = format!("a product's quantity is 1 to {QUANTITY_MAX}, repeated lines summed");
            return Err(InvalidField::new(format!("lines[{at}].quantity"), detail));
        }
    }
    Ok(combined)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReservationStatus {
    Held,
    Confirmed,
    Released,
    Expired,
}

/// Units held for somebody until a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub reservation_id: ReservationId,
    pub geo_zone: GeoZone,
    pub lines: Vec<Demand>,
    pub status: ReservationStatus,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

impl Reservation {
    /// The status as of `now`: a hold past its time is expired, whether or not it has been settled.
    pub fn status_at(&self, now: Timestamp) -> ReservationStatus {
        match self.status {
            ReservationStatus::Held if now >= self.expires_at => ReservationStatus::Expired,
            status => status,
        }
    }

    /// From when on nobody may see it any more.
    pub fn forgotten_at(&self) -> Timestamp {
        self.expires_at.plus_seconds(RESERVATION_HISTORY_DAYS * 86_400)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(name: &str, quantity: u32) -> Demand {
        Demand { product_id: ProductId::parse(name).unwrap(), quantity }
    }

    #[test]
    fn promised_units_cannot_be_promised_again_or_taken_away() {
        let level = Level { on_hand: 5, reserved: 0 };
        let held = level.moved(Cause::Hold.delta(4)).unwrap();
        assert_eq!((held.available(), held.reserved), (1, 4));
        assert_eq!(held.moved(Cause::Hold.delta(2)), Err(BelowReserved));
        assert_eq!(held.moved(Delta { on_hand: -2, reserved: 0 }), Err(BelowReserved));
        assert_eq!(level.moved(Cause::Release.delta(1)), Err(BelowReserved));
    }

    #[test]
    fn what_is_held_then_taken_then_returned_is_where_it_was() {
        let level = Level { on_hand: 7, reserved: 1 };
        let end = [Cause::Hold, Cause::Take, Cause::Return]
            .into_iter()
            .try_fold(level, |level, cause| level.moved(cause.delta(3)));
        assert_eq!(end, Ok(level));
    }

    #[test]
    fn a_repeated_product_is_one_demand() {
        let combined = combine(vec![demand("b", 1), demand("a", 2), demand("b", 3)]).unwrap();
        assert_eq!(combined, [demand("b", 4), demand("a", 2)]);
    }

    #[test]
    fn demands_are_bounded() {
        assert_eq!(combine(vec![]).unwrap_err().field, "lines");
        let many: Vec<Demand> = (0..101).map(|at| demand(&at.to_string(), 1)).collect();
        assert_eq!(combine(many).unwrap_err().field, "lines");
        let summed = combine(vec![demand("a", 10_000), demand("a", 1)]).unwrap_err();
        assert_eq!(summed.field, "lines[1].quantity");
        assert_eq!(combine(vec![demand("a", 0)]).unwrap_err().field, "lines[0].quantity");
    }
}
