//! Export of stock: the figures of each product and zone, with the sum of its ledger and the open holds.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, doc};
use mongodb::{ClientSession, Collection};
use mw_codec::spool::Spool;
use mw_domain::stock::{Cause, Delta, Movement};
use mw_domain::{ProductId, ZoneStock};
use mw_store::export::Record;
use mw_store::stock::decision::StockKey;
use mw_store::stock::ledger::{LedgerRow, LedgerState};
use uuid::Uuid;

use crate::MongoStore;
use crate::documents::ids::read_id;
use crate::driver::transaction::Stop;
use crate::stock::entries::StockEntry;
use crate::stock::entries_of;
use crate::stock::ledger::{of_products, read_key, read_row};

/// Products whose ledgers are read at once.
const PRODUCTS_AT_ONCE: usize = 100;

impl MongoStore {
    /// The stock of the products of a collection.
    pub(super) async fn export_stock(
        &self,
        session: &mut ClientSession,
        collection: &Collection<Document>,
        spool: &mut Spool,
    ) -> Result<(), Stop> {
        let projection = doc! { "stocks": 1, "stock": 1 };
        let mut cursor =
            self.snapshot_of(collection).find(doc! {}).projection(projection).session(&mut *session).await?;
        let mut products = Vec::new();
        loop {
            let next = cursor.next(session).await.transpose()?;
            let is_end = next.is_none();
            products.extend(next);
            if products.len() >= PRODUCTS_AT_ONCE || is_end {
                self.export_stock_of(session, &products, spool).await?;
                products.clear();
            }
            if is_end {
                return Ok(());
            }
        }
    }

    async fn export_stock_of(
        &self,
        session: &mut ClientSession,
        products: &[Document],
        spool: &mut Spool,
    ) -> Result<(), Stop> {
        let ids: Vec<Bson> = products.iter().filter_map(|product| product.get("_id").cloned()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let mut ledgers: HashMap<StockKey, Ledger> = HashMap::new();
        let mut cursor =
            self.snapshot_of(&self.sales.ledger).find(of_products(&ids)).session(&mut *session).await?;
        while let Some(document) = cursor.next(session).await {
            let document = document?;
            let Some(key) = document.get_document("_id").ok().and_then(read_key) else { continue };
            ledgers.entry(key).or_default().add(&read_row(&document)?);
        }
        for product in products {
            let Some(product_id) = product.get("_id").and_then(|id| read_id(id, ProductId::parse)) else {
                continue;
            };
            for entry in entries_of(product, self) {
                let key = StockKey { product_id: product_id.clone(), geo_zone: entry.geo_zone.clone() };
                let ledger = ledgers.remove(&key).unwrap_or_default();
                spool.push(&ledger.record(key, &entry))?;
            }
        }
        Ok(())
    }
}

/// What a ledger adds up to.
#[derive(Debug, Default)]
struct Ledger {
    on_hand: i64,
    held: u64,
    holds: Vec<Movement>,
}

impl Ledger {
    fn add(&mut self, row: &LedgerRow) {
        let delta = row.state.effect(row.quantity);
        self.on_hand += delta.on_hand;
        if row.state == LedgerState::Held {
            self.held += delta.reserved.unsigned_abs();
            self.holds.push(Movement { at: row.at, op: row.op_id, cause: Cause::Hold, delta, note: None });
        }
    }

    fn record(mut self, key: StockKey, entry: &StockEntry) -> Record {
        let mut level = entry.level();
        // What other programs did since the service last wrote the entry is part of the sum.
        let external = if let Some(recorded) = entry.recorded {
            entry.quantity.max(0) - recorded
        } else {
            level.on_hand += self.held - entry.reserved.min(self.held);
            level.reserved = self.held;
            level.on_hand.cast_signed() - self.on_hand
        };
        self.holds.sort_by_key(|hold| (hold.at, hold.op));
        let sum = Movement {
            at: entry.updated_at,
            op: Uuid::nil(),
            cause: Cause::Set,
            delta: Delta { on_hand: self.on_hand + external, reserved: 0 },
            note: None,
        };
        let StockKey { product_id, geo_zone } = key;
        let stock = ZoneStock { product_id, geo_zone, level, updated_at: entry.updated_at };
        Record::Stock { stock, ledger: std::iter::once(sum).chain(self.holds).collect() }
    }
}
