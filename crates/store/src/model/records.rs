//! Everything the model holds, out and in.

use mw_domain::ZoneStock;

use super::page::{Direction, page};
use super::{Figure, Model, State, StoredOrder};
use crate::records::{Checkpoint, Export, Record};
use crate::{Page, PageRequest, Records, Result};

/// The records as they were when the export began.
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
        for ((product_id, geo_zone), figure) in &self.figures {
            records.push(Record::Stock {
                stock: ZoneStock {
                    product_id: product_id.clone(),
                    geo_zone: geo_zone.clone(),
                    level: figure.level,
                    updated_at: figure.updated_at,
                },
                ledger: figure.ledger.clone(),
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
        records.extend(self.remembered.values().cloned().map(Record::Remembered));
        records
    }

    fn keep(&mut self, record: Record) {
        match record {
            Record::Product(product) => {
                self.products.insert(product.product_id.clone(), product);
            }
            Record::Stock { stock, ledger } => {
                let figure = Figure { level: stock.level, updated_at: stock.updated_at, ledger };
                self.figures.insert((stock.product_id, stock.geo_zone), figure);
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
            Record::Remembered(remembered) => {
                self.remembered.insert(remembered.once.key.clone(), remembered);
            }
        }
    }
}

#[async_trait::async_trait]
impl Records for Model {
    async fn export(&self) -> Result<Box<dyn Export>> {
        Ok(Box::new(Snapshot(self.state().records())))
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
