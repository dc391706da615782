//! Export and import: the whole store as records. Lists, timers and sums are not exported; the import derives them again.
//!
//! Invariants: an export reads one snapshot. The records of an import call and its checkpoint are one batch: a crash leaves
//! both or neither, and the repeated import continues after the checkpoint. Importing a record again replaces it.

use std::ops::ControlFlow;

use async_trait::async_trait;
use mw_codec::Damaged;
use mw_domain::stock::Movement;
use mw_domain::{Cart, CartStatus, Order, OrderEvent, OrderStatus, Product, Reservation, Session, ZoneStock};
use mw_store::export::{Checkpoint, Export, ExportImport, Record};
use mw_store::{Page, PageRequest, Position, Refusal, Result};

use crate::keys::{self, Activity, OrderList};
use crate::reader::{KeyRange, Reader, SnapshotReader, collect_keys};
use crate::tables::Table;
use crate::tx::Tx;
use crate::{EmbeddedStore, carts, orders, products, sessions, stock};

/// The exported tables, in this order.
const EXPORTED_TABLES: [Table; 9] = [
    Table::Products,
    Table::Stock,
    Table::Carts,
    Table::ClosedCarts,
    Table::CartChanges,
    Table::Sessions,
    Table::Reservations,
    Table::Orders,
    Table::IdempotencyKeys,
];

#[async_trait]
impl ExportImport for EmbeddedStore {
    async fn export(&self) -> Result<Box<dyn Export>> {
        let rows = EXPORTED_TABLES.iter().map(|table| self.tables.get(*table).approximate_len() as u64).sum();
        Ok(Box::new(SnapshotExport { snapshot: self.snapshot(), rows }))
    }

    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()> {
        self.write(mw_domain::Timestamp::EPOCH, move |tx| {
            // A crash or a refused record leaves neither the records nor the checkpoint; the import repeats them.
            for record in records {
                import(tx, record)?;
            }
            tx.put(Table::Meta, checkpoint_key(&checkpoint.import), checkpoint.done.to_be_bytes().to_vec());
            Ok(())
        })
        .await
    }

    async fn import_progress(&self, import: &str) -> Result<u64> {
        let row = self.snapshot().get(Table::Meta, &checkpoint_key(import))?;
        let Some(row) = row else { return Ok(0) };
        let bytes: [u8; 8] = row.as_ref().try_into().map_err(|_| Damaged("import checkpoint"))?;
        Ok(u64::from_be_bytes(bytes))
    }

    // Reads one row a table at most.
    async fn is_empty(&self) -> Result<bool> {
        let snapshot = self.snapshot();
        let mut is_empty = true;
        for table in EXPORTED_TABLES {
            snapshot.scan(table, &KeyRange::prefix(Vec::new()), false, &mut |_, _| {
                is_empty = false;
                Ok(ControlFlow::Break(()))
            })?;
        }
        Ok(is_empty)
    }
}

/// The row of [`Table::Meta`] with the checkpoint of an import.
fn checkpoint_key(import: &str) -> Vec<u8> {
    format!("import/{import}").into_bytes()
}

/// An export in progress: pages continue at a table and a key.
struct SnapshotExport {
    snapshot: SnapshotReader,
    rows: u64,
}

#[async_trait]
impl Export for SnapshotExport {
    fn estimate(&self) -> u64 {
        self.rows
    }

    async fn page(&self, request: PageRequest) -> Result<Page<Record>> {
        let (mut table_index, mut after) = match &request.after {
            None => (0, None),
            Some(Position(bytes)) => {
                let (table, key) = bytes.split_first().ok_or(Refusal::InvalidCursor)?;
                (usize::from(*table), Some(key.to_vec()))
            }
        };
        let mut items = Vec::new();
        while let Some(table) = EXPORTED_TABLES.get(table_index) {
            let whole = KeyRange::prefix(Vec::new());
            let range = after.take().map_or(whole.clone(), |key| whole.after(key));
            let mut last = None;
            self.snapshot.scan(*table, &range, false, &mut |key, value| {
                items.push(read_record(&self.snapshot, *table, key, value)?);
                last = Some(key.to_vec());
                Ok(if items.len() >= request.limit {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            })?;
            // A position is the number of the table and the last key.
            if items.len() >= request.limit {
                let table_byte = u8::try_from(table_index).unwrap_or(u8::MAX);
                let position = [&[table_byte], last.unwrap_or_default().as_slice()].concat();
                return Ok(Page { items, next: Some(Position(position)) });
            }
            table_index += 1;
        }
        Ok(Page { items, next: None })
    }
}

/// Makes a record of a row, with the rows that belong to it.
fn read_record(snapshot: &SnapshotReader, table: Table, key: &[u8], value: &[u8]) -> Result<Record> {
    Ok(match table {
        Table::Products => Record::Product(mw_codec::products::decode(value)?),
        Table::Stock => read_stock(snapshot, key, value)?,
        Table::Carts | Table::ClosedCarts => Record::Cart(mw_codec::carts::decode(value)?),
        Table::CartChanges => Record::CartChange {
            owner: keys::read_change_owner(key)?,
            change: mw_codec::carts::decode_change(value)?,
        },
        Table::Sessions => Record::Session(mw_codec::sessions::decode(value)?),
        Table::Reservations => Record::Reservation(mw_codec::stock::decode_reservation(value)?.0),
        Table::Orders => {
            let (order, events) = mw_codec::orders::decode(value)?;
            Record::Order { order, events }
        }
        _ => Record::StoredOutcome(mw_codec::idempotency::decode(value)?),
    })
}

/// A level with its ledger, from the same snapshot.
fn read_stock(snapshot: &SnapshotReader, key: &[u8], value: &[u8]) -> Result<Record> {
    let (product_id, geo_zone) = keys::read_stock(key)?;
    let (level, updated_at) = mw_codec::stock::decode_level(value)?;
    let mut ledger = Vec::new();
    snapshot.scan(
        Table::Ledger,
        &KeyRange::prefix(keys::ledger(&product_id, &geo_zone)),
        false,
        &mut |_, value| {
            ledger.push(mw_codec::stock::decode_movement(value)?);
            Ok(ControlFlow::Continue(()))
        },
    )?;
    Ok(Record::Stock { stock: ZoneStock { product_id, geo_zone, level, updated_at }, ledger })
}

/// Writes a record and everything that is derived from it. A record that is stored already is replaced with its derived rows.
fn import(tx: &mut Tx, record: Record) -> Result<()> {
    match record {
        Record::Product(product) => import_product(tx, &product),
        Record::Stock { stock, ledger } => import_stock(tx, &stock, &ledger),
        Record::Cart(cart) => import_cart(tx, &cart),
        Record::CartChange { owner, change } => {
            carts::save_change(tx, &owner, &change);
            Ok(())
        }
        Record::Session(session) => import_session(tx, &session),
        Record::Reservation(reservation) => import_reservation(tx, &reservation),
        Record::Order { order, events } => import_order(tx, &order, &events),
        Record::StoredOutcome(stored_outcome) => {
            let key = stored_outcome.identity.key.as_str().as_bytes().to_vec();
            tx.put(
                Table::IdempotencyKeys,
                key,
                mw_codec::idempotency::encode(&stored_outcome.identity, &stored_outcome.outcome),
            );
            Ok(())
        }
    }
}

fn import_product(tx: &mut Tx, product: &Product) -> Result<()> {
    let before = products::read(tx, &product.product_id)?;
    products::save(tx, before.as_ref(), product);
    Ok(())
}

/// Replaces a level together with its whole ledger.
fn import_stock(tx: &mut Tx, stock: &ZoneStock, ledger: &[Movement]) -> Result<()> {
    let old_rows = KeyRange::prefix(keys::ledger(&stock.product_id, &stock.geo_zone));
    for key in collect_keys(tx, Table::Ledger, &old_rows)? {
        tx.remove(Table::Ledger, key);
    }
    for movement in ledger {
        stock::record(tx, &stock.product_id, &stock.geo_zone, movement);
    }
    let key = keys::stock(&stock.product_id, &stock.geo_zone);
    tx.put(Table::Stock, key, mw_codec::stock::encode_level(stock.level, stock.updated_at));
    Ok(())
}

/// A cart that was active here and is closed in the record moves to the closed carts.
fn import_cart(tx: &mut Tx, cart: &Cart) -> Result<()> {
    let row = tx.get(Table::Carts, &keys::active_cart(&cart.owner))?;
    let active = row.map(|row| mw_codec::carts::decode(&row)).transpose()?;
    if cart.status == CartStatus::Active {
        carts::save_active(tx, active.as_ref().map(carts::active_index_key), cart);
        return Ok(());
    }
    if let Some(active) = active.filter(|active| active.cart_id == cart.cart_id) {
        tx.remove(Table::Carts, keys::active_cart(&cart.owner));
        tx.remove(Table::CartActivity, keys::activity(Activity::Active, &active));
    }
    carts::save_closed(tx, cart);
    Ok(())
}

/// Removes the old row in the user's list first: the record may have another user or creation time.
fn import_session(tx: &mut Tx, session: &Session) -> Result<()> {
    let row = tx.get(Table::Sessions, &keys::session(&session.session_id))?;
    if let Some(before) = row.map(|row| mw_codec::sessions::decode(&row)).transpose()? {
        sessions::remove(tx, &before);
    }
    sessions::save(tx, session);
    Ok(())
}

/// Removes the old timer first: the record may have another expiry.
fn import_reservation(tx: &mut Tx, reservation: &Reservation) -> Result<()> {
    let row = tx.get(Table::Reservations, &keys::reservation(reservation.reservation_id))?;
    if let Some((before, _)) = row.map(|row| mw_codec::stock::decode_reservation(&row)).transpose()? {
        tx.remove(Table::HoldTimers, keys::timer(before.expires_at, before.reservation_id.as_bytes()));
    }
    stock::save_reservation(tx, reservation);
    Ok(())
}

/// Removes the old list rows, timer and sums first: the record may have another time, zone or status.
fn import_order(tx: &mut Tx, order: &Order, events: &[OrderEvent]) -> Result<()> {
    if let Some(before) = orders::read(tx, order.order_id)? {
        for list in [OrderList::User(&before.user_id), OrderList::Zone(&before.geo_zone), OrderList::All] {
            tx.remove(orders::list_table(list), list.key(before.created_at, before.order_id));
        }
        if before.status == OrderStatus::Created {
            tx.remove(Table::PaymentTimers, keys::timer(before.pay_by, before.order_id.as_bytes()));
        }
        orders::count_sale(tx, &before, before.status.is_sale(), false)?;
    }
    orders::save_new(tx, order, events);
    orders::count_sale(tx, order, false, order.status.is_sale())
}
