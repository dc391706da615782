//! Export and import of the whole store as records: for backup, restore, and migration between engines.
//!
//! Records of one kind may refer to records of another, so an import is complete only with all of them, in any order.
//! An imported record replaces a stored one. The only exception is a ledger that is too long for one record: its
//! continuations follow the record of its stock level and add to it.

use std::collections::BTreeMap;

use mw_domain::stock::{Cause, Delta, Movement};
use mw_domain::{
    Cart, CartChange, GeoZone, Order, OrderEvent, Owner, Product, ProductId, Reservation, Session, Timestamp,
    ZoneStock,
};
use uuid::Uuid;

use crate::idempotency::StoredOutcome;
use crate::{Page, PageRequest, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Product(Product),
    /// A stock level with its ledger, or with the first part of it. The movement [`Cause::Set`] with the nil id is the
    /// sum of compacted ones.
    Stock {
        stock: ZoneStock,
        ledger: Vec<Movement>,
    },
    /// The next part of a ledger: its movements are added to those that are stored.
    Ledger {
        product_id: ProductId,
        geo_zone: GeoZone,
        ledger: Vec<Movement>,
    },
    Cart(Cart),
    CartChange {
        owner: Owner,
        change: CartChange,
    },
    Session(Session),
    Reservation(Reservation),
    /// Events oldest first.
    Order {
        order: Order,
        events: Vec<OrderEvent>,
    },
    StoredOutcome(StoredOutcome),
}

/// The weight from which on a part of a ledger is full. An exported line has at most the weight of its movements and of one
/// more in bytes, which keeps it far below 16 MiB.
pub const LEDGER_PART_WEIGHT: usize = 4 << 20;

/// An upper bound of the bytes of a movement in an exported line: a character takes at most six.
pub fn ledger_weight(movement: &Movement) -> usize {
    const WITHOUT_NOTE: usize = 256;
    WITHOUT_NOTE + 6 * movement.note.as_ref().map_or(0, String::len)
}

impl Record {
    /// The record in parts of bounded size: more than one for a stock level with a long ledger.
    pub fn into_parts(self) -> Vec<Self> {
        let Self::Stock { stock, ledger } = self else { return vec![self] };
        let (product_id, geo_zone) = (stock.product_id.clone(), stock.geo_zone.clone());
        let mut parts: Vec<Vec<Movement>> = vec![Vec::new()];
        let mut weight = 0;
        for movement in ledger {
            if weight >= LEDGER_PART_WEIGHT {
                parts.push(Vec::new());
                weight = 0;
            }
            weight += ledger_weight(&movement);
            if let Some(part) = parts.last_mut() {
                part.push(movement);
            }
        }
        let mut parts = parts.into_iter();
        let head = Self::Stock { stock, ledger: parts.next().unwrap_or_default() };
        let rest = parts.map(|ledger| Self::Ledger {
            product_id: product_id.clone(),
            geo_zone: geo_zone.clone(),
            ledger,
        });
        std::iter::once(head).chain(rest).collect()
    }

    /// Adds a continuation to the record of its stock level, for engines that import a ledger whole: operations that hold no
    /// units are added up, so the result grows with the open holds and not with the age of the shop. Returns whether the two
    /// belong together.
    pub fn absorb(&mut self, continuation: &Self) -> bool {
        match (self, continuation) {
            (Self::Stock { stock, ledger }, Self::Ledger { product_id, geo_zone, ledger: more })
                if stock.product_id == *product_id && stock.geo_zone == *geo_zone =>
            {
                ledger.extend_from_slice(more);
                *ledger = sum_settled(std::mem::take(ledger));
                true
            }
            _ => false,
        }
    }
}

/// The sum of all operations that hold no units, as one movement with the nil id, and then the open holds.
fn sum_settled(ledger: Vec<Movement>) -> Vec<Movement> {
    let mut reserved: BTreeMap<Uuid, i64> = BTreeMap::new();
    for movement in &ledger {
        *reserved.entry(movement.op).or_default() += movement.delta.reserved;
    }
    let is_open = |movement: &Movement| reserved.get(&movement.op).is_some_and(|units| *units != 0);
    let (open, settled): (Vec<Movement>, Vec<Movement>) = ledger.into_iter().partition(is_open);
    let sum = Movement {
        at: settled.iter().map(|movement| movement.at).max().unwrap_or(Timestamp::EPOCH),
        op: Uuid::nil(),
        cause: Cause::Set,
        delta: Delta { on_hand: settled.iter().map(|movement| movement.delta.on_hand).sum(), reserved: 0 },
        note: None,
    };
    std::iter::once(sum).chain(open).collect()
}

/// The progress of an import, stored in the same write as the records, so that the import can resume after a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The name of the import, the same for the same file.
    pub import: String,
    /// Records of the import that are stored.
    pub done: u64,
}

/// Reads a snapshot of the store as of the start of the export.
#[async_trait::async_trait]
pub trait Export: Send + Sync {
    /// An estimate of the number of records, for a progress bar.
    fn estimate(&self) -> u64;

    async fn page(&self, page: PageRequest) -> Result<Page<Record>>;
}

#[async_trait::async_trait]
pub trait ExportImport: Send + Sync {
    /// A consistent snapshot of the store, unaffected by later writes.
    async fn export(&self) -> Result<Box<dyn Export>>;

    /// Whether `import` takes the continuations of a ledger; otherwise the caller joins them with [`Record::absorb`].
    fn imports_ledger_parts(&self) -> bool {
        false
    }

    /// Writes records and the checkpoint together.
    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()>;

    /// The stored progress of an import; 0 if it has not begun.
    async fn import_progress(&self, import: &str) -> Result<u64>;

    /// Whether the store has no rows.
    async fn is_empty(&self) -> Result<bool>;
}

#[cfg(test)]
mod tests {
    use mw_domain::Level;

    use super::*;

    fn movement(op: u128, cause: Cause, units: u32, note: Option<&str>) -> Movement {
        let delta = match cause {
            Cause::Set => Delta { on_hand: i64::from(units), reserved: 0 },
            cause => cause.delta(units),
        };
        Movement {
            at: Timestamp::from_millis(7),
            op: Uuid::from_u128(op),
            cause,
            delta,
            note: note.map(str::to_owned),
        }
    }

    fn stock(ledger: Vec<Movement>) -> Record {
        let stock = ZoneStock {
            product_id: ProductId::parse("p").unwrap(),
            geo_zone: GeoZone::parse("z").unwrap(),
            level: Level { on_hand: 5, reserved: 2 },
            updated_at: Timestamp::EPOCH,
        };
        Record::Stock { stock, ledger }
    }

    fn movements(record: &Record) -> &[Movement] {
        match record {
            Record::Stock { ledger, .. } | Record::Ledger { ledger, .. } => ledger,
            _ => &[],
        }
    }

    #[test]
    fn a_long_ledger_is_split_into_parts_of_bounded_weight() {
        let note = "я".repeat(1_024);
        let ledger: Vec<Movement> = (0..2_000).map(|op| movement(op, Cause::Set, 1, Some(&note))).collect();
        let parts = stock(ledger.clone()).into_parts();
        assert!(parts.len() > 1);
        assert!(matches!(parts.first(), Some(Record::Stock { .. })));
        for part in &parts {
            let weight: usize = movements(part).iter().map(ledger_weight).sum();
            assert!(weight < LEDGER_PART_WEIGHT + 16_384, "{weight}");
        }
        let joined: Vec<Movement> = parts.iter().flat_map(movements).cloned().collect();
        assert_eq!(joined, ledger);
        assert_eq!(stock(Vec::new()).into_parts().len(), 1);
    }

    #[test]
    fn absorbing_a_continuation_sums_what_is_settled_and_keeps_open_holds() {
        let mut head = stock(vec![
            movement(1, Cause::Set, 10, None),
            movement(2, Cause::Hold, 5, None),
            movement(3, Cause::Hold, 2, None),
        ]);
        let more = Record::Ledger {
            product_id: ProductId::parse("p").unwrap(),
            geo_zone: GeoZone::parse("z").unwrap(),
            ledger: vec![movement(2, Cause::Take, 5, None)],
        };
        assert!(head.absorb(&more));
        let ledger = movements(&head);
        assert_eq!(ledger.len(), 2);
        assert_eq!((ledger[0].op, ledger[0].delta), (Uuid::nil(), Delta { on_hand: 5, reserved: 0 }));
        assert_eq!(ledger[1], movement(3, Cause::Hold, 2, None));
        let other = Record::Ledger {
            product_id: ProductId::parse("q").unwrap(),
            geo_zone: GeoZone::parse("z").unwrap(),
            ledger: Vec::new(),
        };
        assert!(!head.absorb(&other));
    }
}
