//! Export and import: the whole store as records. Lists, timers and sums are not exported; the import derives them again.
//!
//! Invariants: an export reads one snapshot. The records of an import call and its checkpoint are one batch: a crash leaves
//! both or neither, and the repeated import continues after the checkpoint. Importing a record again replaces it.

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use mw_codec::Damaged;
use mw_domain::stock::Movement;
use mw_domain::{
    Cart, CartStatus, GeoZone, Order, OrderEvent, OrderStatus, Product, ProductId, Reservation,
    ReservationStatus, Session, ZoneStock,
};
use mw_store::export::{Checkpoint, Export, ExportImport, LEDGER_PART_WEIGHT, Record, ledger_weight};
use mw_store::{Page, PageRequest, Position, Refusal, Result};

use crate::keys::{self, Activity, Key, OrderList};
use crate::long_reads::{LongReads, StoppableReader};
use crate::reader::{KeyRange, Reader, SnapshotReader, collect_keys};
use crate::tables::Table;
use crate::tx::Tx;
use crate::{EmbeddedStore, carts, holds, orders, products, sales, sessions, stock};

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
        let long_reads = Arc::clone(&self.long_reads);
        Ok(Box::new(SnapshotExport { snapshot: Arc::new(self.snapshot()), long_reads, rows }))
    }

    fn imports_ledger_parts(&self) -> bool {
        true
    }

    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()> {
        self.write(move |tx| {
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

/// An export in progress.
struct SnapshotExport {
    snapshot: Arc<SnapshotReader>,
    long_reads: Arc<LongReads>,
    rows: u64,
}

/// The weight of the movements from which on a page is full, whatever its number of records.
const PAGE_WEIGHT: usize = 2 * LEDGER_PART_WEIGHT;
/// In a position: the next record is a part of a ledger. Other numbers are of [`EXPORTED_TABLES`].
const IN_LEDGER: u8 = u8::MAX;

/// Where an export continues.
enum Place {
    /// In a table of [`EXPORTED_TABLES`], after a key.
    Table { number: u8, after: Option<Key> },
    /// In a ledger, after the key of a movement.
    Ledger { after: Key },
}

impl Place {
    const STOCK: u8 = 1;

    /// A position is the number of the table and the last key.
    fn read(position: Option<&Position>) -> Result<Self> {
        let Some(Position(bytes)) = position else { return Ok(Self::Table { number: 0, after: None }) };
        let (number, key) = bytes.split_first().ok_or(Refusal::InvalidCursor)?;
        if *number == IN_LEDGER {
            keys::ledger_stock(key).map_err(|_| Refusal::InvalidCursor)?;
            return Ok(Self::Ledger { after: key.to_vec() });
        }
        Ok(Self::Table { number: *number, after: (!key.is_empty()).then(|| key.to_vec()) })
    }

    fn position(&self) -> Position {
        let (number, key) = match self {
            Self::Table { number, after } => (*number, after.as_deref().unwrap_or_default()),
            Self::Ledger { after } => (IN_LEDGER, after.as_slice()),
        };
        Position([&[number], key].concat())
    }
}

/// The records of a page so far.
struct PageRecords {
    items: Vec<Record>,
    limit: usize,
    weight: usize,
}

impl PageRecords {
    fn is_full(&self) -> bool {
        self.items.len() >= self.limit || self.weight >= PAGE_WEIGHT
    }
}

#[async_trait]
impl Export for SnapshotExport {
    fn estimate(&self) -> u64 {
        self.rows
    }

    async fn page(&self, request: PageRequest) -> Result<Page<Record>> {
        let place = Place::read(request.after.as_ref())?;
        let read = move |reader: &StoppableReader| read_page(reader, place, request.limit);
        self.long_reads.run(Arc::clone(&self.snapshot), read).await
    }
}

fn read_page(reader: &dyn Reader, mut place: Place, limit: usize) -> Result<Page<Record>> {
    let mut records = PageRecords { items: Vec::new(), limit, weight: 0 };
    while !records.is_full() {
        let next = match place {
            Place::Table { number, after } => read_table(reader, number, after, &mut records)?,
            Place::Ledger { after } => Some(read_ledger_part(reader, after, &mut records)?),
        };
        let Some(next) = next else { return Ok(Page { items: records.items, next: None }) };
        place = next;
    }
    Ok(Page { items: records.items, next: Some(place.position()) })
}

/// Reads records of a table until the page is full or a ledger has more parts; `None` after the last table.
fn read_table(
    reader: &dyn Reader,
    number: u8,
    after: Option<Key>,
    records: &mut PageRecords,
) -> Result<Option<Place>> {
    let Some(table) = EXPORTED_TABLES.get(usize::from(number)) else { return Ok(None) };
    let whole = KeyRange::prefix(Vec::new());
    let range = after.map_or(whole.clone(), |key| whole.after(key));
    let mut next = Place::Table { number: number + 1, after: None };
    reader.scan(*table, &range, false, &mut |key, value| {
        let mut rest_of_ledger = None;
        let record = if *table == Table::Stock {
            let (record, part) = read_stock(reader, key, value)?;
            records.weight += part.weight;
            rest_of_ledger = part.next;
            record
        } else {
            read_record(*table, key, value)?
        };
        // The last cart of an owner, if it is closed, is among the closed carts with its lines.
        let is_repeated = *table == Table::Carts
            && matches!(&record, Record::Cart(cart) if cart.status != CartStatus::Active);
        if is_repeated {
            return Ok(ControlFlow::Continue(()));
        }
        records.items.push(record);
        if let Some(after) = rest_of_ledger {
            next = Place::Ledger { after };
            return Ok(ControlFlow::Break(()));
        }
        if records.is_full() {
            next = Place::Table { number, after: Some(key.to_vec()) };
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(Some(next))
}

/// Makes a record of a row of any table but the stock levels.
fn read_record(table: Table, key: &[u8], value: &[u8]) -> Result<Record> {
    Ok(match table {
        Table::Products => Record::Product(mw_codec::products::decode(value)?),
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

/// Movements of a ledger, and the key after which its next part begins.
struct LedgerPart {
    movements: Vec<Movement>,
    weight: usize,
    next: Option<Key>,
}

/// Reads movements until the part is full.
fn ledger_part(reader: &dyn Reader, range: &KeyRange) -> Result<LedgerPart> {
    let mut part = LedgerPart { movements: Vec::new(), weight: 0, next: None };
    let mut last = Key::new();
    reader.scan(Table::Ledger, range, false, &mut |key, value| {
        if part.weight >= LEDGER_PART_WEIGHT {
            part.next = Some(std::mem::take(&mut last));
            return Ok(ControlFlow::Break(()));
        }
        let movement = mw_codec::stock::decode_movement(value)?;
        part.weight += ledger_weight(&movement);
        part.movements.push(movement);
        last.clear();
        last.extend_from_slice(key);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(part)
}

/// A level with the first part of its ledger, from the same snapshot.
fn read_stock(reader: &dyn Reader, key: &[u8], value: &[u8]) -> Result<(Record, LedgerPart)> {
    let (product_id, geo_zone) = keys::read_stock(key)?;
    let (level, updated_at) = mw_codec::stock::decode_level(value)?;
    let mut part = ledger_part(reader, &KeyRange::prefix(keys::ledger(&product_id, &geo_zone)))?;
    let ledger = std::mem::take(&mut part.movements);
    Ok((Record::Stock { stock: ZoneStock { product_id, geo_zone, level, updated_at }, ledger }, part))
}

/// The next part of a ledger; after the last one the export goes on with the next stock level.
fn read_ledger_part(reader: &dyn Reader, after: Key, records: &mut PageRecords) -> Result<Place> {
    let stock_key = keys::ledger_stock(&after)?;
    let (product_id, geo_zone) = keys::read_stock(&stock_key)?;
    let range = KeyRange::prefix(keys::ledger(&product_id, &geo_zone)).after(after);
    let part = ledger_part(reader, &range)?;
    records.weight += part.weight;
    records.items.push(Record::Ledger { product_id, geo_zone, ledger: part.movements });
    Ok(match part.next {
        Some(after) => Place::Ledger { after },
        None => Place::Table { number: Place::STOCK, after: Some(stock_key) },
    })
}

/// Writes a record and everything that is derived from it. A record that is stored already is replaced with its derived rows.
fn import(tx: &mut Tx, record: Record) -> Result<()> {
    match record {
        Record::Product(product) => import_product(tx, &product),
        Record::Stock { stock, ledger } => import_stock(tx, &stock, &ledger),
        Record::Ledger { product_id, geo_zone, ledger } => {
            record_all(tx, &product_id, &geo_zone, &ledger);
            Ok(())
        }
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

pub(crate) fn import_product(tx: &mut Tx, product: &Product) -> Result<()> {
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
    record_all(tx, &stock.product_id, &stock.geo_zone, ledger);
    let key = keys::stock(&stock.product_id, &stock.geo_zone);
    tx.put(Table::Stock, key, mw_codec::stock::encode_level(stock.level, stock.updated_at));
    Ok(())
}

/// Adds movements to a ledger. A movement that is stored already has the same key and is replaced by itself.
fn record_all(tx: &mut Tx, product_id: &ProductId, geo_zone: &GeoZone, ledger: &[Movement]) {
    for movement in ledger {
        stock::record(tx, product_id, geo_zone, movement);
    }
}

/// A cart that was active here and is closed in the record moves to the closed carts.
pub(crate) fn import_cart(tx: &mut Tx, cart: &Cart) -> Result<()> {
    let last = carts::read_last(tx, &cart.owner)?;
    let active = last.as_ref().filter(|last| last.status == CartStatus::Active);
    if cart.status == CartStatus::Active {
        carts::save_active(tx, active.map(carts::active_index_key), cart);
        return Ok(());
    }
    match active {
        Some(active) if active.cart_id == cart.cart_id => {
            tx.remove(Table::CartActivity, keys::activity(Activity::Active, active));
            carts::save_last(tx, cart);
        }
        None if last.as_ref().is_none_or(|last| last.version < cart.version) => carts::save_last(tx, cart),
        Some(_) | None => {}
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
        let closed = Reservation { status: ReservationStatus::Released, ..before };
        tx.change_holds(holds::changes(&closed));
    }
    stock::save_reservation(tx, reservation);
    Ok(())
}

/// Removes the old list rows, timer and sums first: the record may have another time, zone or status.
pub(crate) fn import_order(tx: &mut Tx, order: &Order, events: &[OrderEvent]) -> Result<()> {
    if let Some(before) = orders::read(tx, order.order_id)? {
        for list in [OrderList::User(&before.user_id), OrderList::Zone(&before.geo_zone), OrderList::All] {
            tx.remove(orders::list_table(list), list.key(before.created_at, before.order_id));
        }
        if before.status == OrderStatus::Created {
            tx.remove(Table::PaymentTimers, keys::timer(before.pay_by, before.order_id.as_bytes()));
        }
        sales::count(tx, &before, before.status.is_sale(), false)?;
    }
    orders::save_new(tx, order, events);
    sales::count(tx, order, false, order.status.is_sale())
}
