//! Stock of a product in a zone, and the ledger that explains it.
//!
//! Invariant at every instant: `reserved <= on_hand`. A movement that would break it is refused, so no unit is
//! promised twice.

use uuid::Uuid;

use crate::ids::{GeoZone, ProductId, ReservationId};
use crate::limits::{InvalidField, LINES_MAX, QUANTITY_MAX, RESERVATION_HISTORY_DAYS};
use crate::time::Timestamp;

/// Units on hand, and how many of them are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    pub on_hand: u64,
    pub reserved: u64,
}

/// A movement that would leave fewer units than are reserved, or a negative count.
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

/// One atomic change of both numbers of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delta {
    pub on_hand: i64,
    pub reserved: i64,
}

/// Why units moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The back office set the units on hand.
    Set,
    /// The back office added or removed units.
    Adjust,
    /// Promised to an order or a reservation.
    Hold,
    /// Promised units left the stock: the order was paid or the reservation confirmed.
    Take,
    /// The promise ended: cancelled, released or expired.
    Release,
    /// Units that had left the stock came back: a paid order was cancelled, or a delivery returned.
    Return,
}

/// One line of the ledger; a level is the sum of its ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Movement {
    pub at: Timestamp,
    /// The id of the order or the reservation, or a new id for a movement of the back office.
    pub op: Uuid,
    pub cause: Cause,
    pub delta: Delta,
    pub note: Option<String>,
}

impl Cause {
    /// The change of the level when an order or reservation of `quantity` units moves for this cause.
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

/// The stock level of one product in one zone, as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneStock {
    pub product_id: ProductId,
    pub geo_zone: GeoZone,
    pub level: Level,
    pub updated_at: Timestamp,
}

/// A number of units of a product that an order or a reservation needs.
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

/// Combines a client's lines into one demand per product, in the order of first mention.
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

impl ReservationStatus {
    pub const ALL: [Self; 4] = [Self::Held, Self::Confirmed, Self::Released, Self::Expired];

    /// The name in every representation: JSON, CQL, exports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Confirmed => "confirmed",
            Self::Released => "released",
            Self::Expired => "expired",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// Units held until an instant.
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
    /// The status as of `now`: a hold past its expiry is expired, even if it is not closed yet.
    pub fn status_at(&self, now: Timestamp) -> ReservationStatus {
        match self.status {
            ReservationStatus::Held if now >= self.expires_at => ReservationStatus::Expired,
            status => status,
        }
    }

    /// From this instant on no reader sees the reservation.
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
