//! Export and import of the model.

use mw_domain::ZoneStock;

use super::page::{Direction, page};
use super::{Model, State, StockEntry, StoredOrder};
use crate::export::{Checkpoint, Export, Record};
use crate::{ExportImport, Page, PageRequest, Result};

/// The records as of the start of the export.
struct Snapshot(Vec<Record>);

#[async_trait::async_trait]
impl Export for Snapshot {
    fn estimate(&self) -> u64 {
        self.0.len() as u64
    }

    async fn page(&self, request: PageRequest) -> Result<Page<Record>> {
        let records = (0..).zip(&self.0).map(|(at, record)| ((at, String::new()), record.clone())).collect();
        page(records, Direction::Rising, &request)
    }
}

impl State {
    fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        records.extend(self.products.values().cloned().map(Record::Product));
        for ((product_id, geo_zone), entry) in &self.stock {
            records.push(Record::Stock {
                stock: ZoneStock {
                    product_id: product_id.clone(),
                    geo_zone: geo_zone.clone(),
                    level: entry.level,
                    updated_at: entry.updated_at,
                },
                ledger: entry.ledger.clone(),
            });
        }
        records.extend(self.carts.values().cloned().map(Record::Cart));
        for ((owner, ..), change) in &self.changes {
            records.push(Record::CartChange { owner: owner.clone(), change: change.clone() });
        }
        records.extend(self.sessions.values().cloned().map(Record::Session));
        records.extend(self.reservations.values().cloned().map(Record::Reservation));
        for StoredOrder { order, events } in self.orders.values() {
            records.push(Record::Order { order: order.clone(), events: events.clone() });
        }
        records.extend(self.stored_outcomes.values().cloned().map(Record::StoredOutcome));
        records
    }

    fn keep(&mut self, record: Record) {
        match record {
            Record::Product(product) => {
                self.products.insert(product.product_id.clone(), product);
            }
            Record::Stock { stock, ledger } => {
                let entry = StockEntry { level: stock.level, updated_at: stock.updated_at, ledger };
                self.stock.insert((stock.product_id, stock.geo_zone), entry);
            }
            Record::Ledger { product_id, geo_zone, ledger } => {
                let entry = self.stock.entry((product_id, geo_zone)).or_default();
                for movement in ledger {
                    if !entry.ledger.contains(&movement) {
                        entry.ledger.push(movement);
                    }
                }
            }
            Record::Cart(cart) => self.keep_cart(&cart),
            Record::CartChange { owner, change } => self.note(&owner, [change]),
            Record::Session(session) => self.keep_session(&session),
            Record::Reservation(reservation) => {
                self.reservations.insert(reservation.reservation_id, reservation);
            }
            Record::Order { order, events } => {
                self.orders.insert(order.order_id, StoredOrder { order, events });
            }
            Record::StoredOutcome(stored_outcome) => {
                self.stored_outcomes.insert(stored_outcome.identity.key.clone(), stored_outcome);
            }
        }
    }
}

#[async_trait::async_trait]
impl ExportImport for Model {
    async fn export(&self) -> Result<Box<dyn Export>> {
        Ok(Box::new(Snapshot(self.state().records())))
    }

    fn imports_ledger_parts(&self) -> bool {
        true
    }

    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()> {
        let mut state = self.state();
        for record in records {
            state.keep(record);
        }
        state.imports.insert(checkpoint.import, checkpoint.done);
        Ok(())
    }

    async fn import_progress(&self, import: &str) -> Result<u64> {
        Ok(self.state().imports.get(import).copied().unwrap_or(0))
    }

    async fn is_empty(&self) -> Result<bool> {
        let state = self.state();
        Ok(state.records().is_empty() && state.imports.is_empty())
    }
}
