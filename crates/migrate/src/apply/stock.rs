//! Stock levels: what is on hand is what can be sold and what created orders hold. Product and orders change the two figures
//! apart, in any order.

use std::collections::BTreeMap;

use mw_domain::{GeoZone, Level, Movement, ProductId, Timestamp, ZoneStock};
use mw_store::migration::{Change, MigrationTarget};

use crate::error::Result;
use crate::state::{self, StockFigures};

/// What a batch does to stock levels.
#[derive(Debug, Default)]
pub(crate) struct StockEdits(BTreeMap<(ProductId, GeoZone), Edit>);

/// What becomes of the count of units to sell.
#[derive(Debug, Default)]
enum Sellable {
    #[default]
    Unchanged,
    Units(u64),
    NoEntry,
}

#[derive(Debug, Default)]
struct Edit {
    sellable: Sellable,
    held: Vec<Movement>,
    released: Vec<Movement>,
}

impl StockEdits {
    fn edit(&mut self, product_id: &ProductId, zone: &GeoZone) -> &mut Edit {
        self.0.entry((product_id.clone(), zone.clone())).or_default()
    }

    pub(super) fn set_sellable(&mut self, product_id: &ProductId, zone: &GeoZone, units: Option<u64>) {
        self.edit(product_id, zone).sellable = units.map_or(Sellable::NoEntry, Sellable::Units);
    }

    /// Adds the hold of an order, or takes it away.
    pub(super) fn hold(&mut self, product_id: &ProductId, zone: &GeoZone, hold: Movement, is_held: bool) {
        let edit = self.edit(product_id, zone);
        if is_held { edit.held.push(hold) } else { edit.released.push(hold) }
    }

    /// Finds the new levels from the figures that are stored.
    pub(super) async fn write(
        self,
        target: &dyn MigrationTarget,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) -> Result<()> {
        let keys: Vec<Vec<u8>> = self.0.keys().map(|(id, zone)| state::stock_key(id, zone)).collect();
        let rows = target.state(keys.clone()).await?;
        for ((((product_id, geo_zone), edit), key), row) in self.0.into_iter().zip(keys).zip(rows) {
            let stored = row.map(|row| StockFigures::decode(&row)).transpose()?;
            let mut figures = stored.unwrap_or_default();
            match edit.sellable {
                Sellable::Unchanged => {}
                Sellable::Units(units) => figures.sellable = Some(units),
                Sellable::NoEntry => figures.sellable = None,
            }
            for hold in &edit.released {
                figures.held = figures.held.saturating_sub(hold.delta.reserved.unsigned_abs());
            }
            for hold in &edit.held {
                figures.held = figures.held.saturating_add(hold.delta.reserved.unsigned_abs());
            }
            if figures.sellable.is_none() && figures.held == 0 {
                changes.push(Change::RemoveStock { product_id, geo_zone });
                changes.push(Change::State { key, value: None });
                continue;
            }
            let on_hand = figures.sellable.unwrap_or(0).saturating_add(figures.held);
            let level = Level { on_hand, reserved: figures.held };
            let stock = ZoneStock { product_id, geo_zone, level, updated_at: now };
            changes.push(Change::Stock { stock, held: edit.held, released: edit.released });
            changes.push(Change::State { key, value: Some(figures.encode()?) });
        }
        Ok(())
    }
}
