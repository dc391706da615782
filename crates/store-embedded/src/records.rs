//! Everything as records, and records as everything: the lists and sums that an engine keeps beside the nouns are not
//! exported but made again from them.

use std::ops::ControlFlow;

use async_trait::async_trait;
use mw_codec::Damaged;
use mw_domain::stock::Movement;
use mw_domain::{
    Cart, CartStatus, Order, OrderEvent, OrderStatus, Owner, Product, Reservation, Session, SessionId,
    UserId, ZoneStock,
};
use mw_store::records::{Checkpoint, Export, Record, Records};
use mw_store::{Page, PageRequest, Position, Refusal, Result};

use crate::keys::{self, Activity, OrderList};
use crate::tables::Table;
use crate::tx::Tx;
use crate::view::{Look, Span, View};
use crate::{EmbeddedStore, carts, orders, products, sessions, stock};

/// What is exported, in this order.
const EXPORTED: [Table; 9] = [
    Table::Products,
    Table::Stock,
    Table::Carts,
    Table::ClosedCarts,
    Table::CartChanges,
    Table::Sessions,
    Table::Reservations,
    Table::Orders,
    Table::Remembered,
];

#[async_trait]
impl Records for EmbeddedStore {
    async fn export(&self) -> Result<Box<dyn Export>> {
        let rows = EXPORTED.iter().map(|table| self.tables.get(*table).approximate_len() as u64).sum();
        Ok(Box::new(Exported { view: self.view(), rows }))
    }

    async fn import(&self, records: Vec<Record>, checkpoint: Checkpoint) -> Result<()> {
        self.write(mw_domain::Timestamp::EPOCH, move |tx| {
            for record in records {
                import(tx, record)?;
            }
            tx.put(Table::Meta, progress_key(&checkpoint.import), checkpoint.done.to_be_bytes().to_vec());
            Ok(())
        })
        .await
    }

    async fn import_progress(&self, import: &str) -> Result<u64> {
        let row = self.view().get(Table::Meta, &progress_key(import))?;
        let Some(row) = row else { return Ok(0) };
        let bytes: [u8; 8] = row.as_ref().try_into().map_err(|_| Damaged("import progress"))?;
        Ok(u64::from_be_bytes(bytes))
    }

    async fn is_empty(&self) -> Result<bool> {
        let view = self.view();
        let mut empty = true;
        for table in EXPORTED {
            view.scan(table, &Span::prefix(Vec::new()), false, &mut |_, _| {
                empty = false;
                Ok(ControlFlow::Break(()))
            })?;
        }
        Ok(empty)
    }
}

fn progress_key(import: &str) -> Vec<u8> {
    format!("import/{import}").into_bytes()
}

struct Exported {
    view: View,
    rows: u64,
}

#[async_trait]
impl Export for Exported {
    fn estimate(&self) -> u64 {
        self.rows
    }

    async fn page(&self, request: PageRequest) -> Result<Page<Record>> {
        let (mut at, mut after) = match &request.after {
            None => (0, None),
            Some(Position(bytes)) => {
                let (table, key) = bytes.split_first().ok_or(Refusal::InvalidCursor)?;
                (usize::from(*table), Some(key.to_vec()))
            }
        };
        let mut items = Vec::new();
        while let Some(table) = EXPORTED.get(at) {
            let whole = Span::prefix(Vec::new());
            let span = after.take().map_or(whole.clone(), |key| whole.after(key));
            let mut last = None;
            self.view.scan(*table, &span, false, &mut |key, value| {
                items.push(read(&self.view, *table, key, value)?);
                last = Some(key.to_vec());
                Ok(if items.len() >= request.limit {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            })?;
            if items.len() >= request.limit {
                let number = u8::try_from(at).unwrap_or(u8::MAX);
                let position = [&[number], last.unwrap_or_default().as_slice()].concat();
                return Ok(Page { items, next: Some(Position(position)) });
            }
            at += 1;
        }
        Ok(Page { items, next: None })
    }
}

fn read(view: &View, table: Table, key: &[u8], value: &[u8]) -> Result<Record> {
    Ok(match table {
        Table::Products => Record::Product(mw_codec::products::decode(value)?),
        Table::Stock => read_stock(view, key, value)?,
        Table::Carts | Table::ClosedCarts => Record::Cart(mw_codec::carts::decode(value)?),
        Table::CartChanges => {
            Record::CartChange { owner: read_owner(key)?, change: mw_codec::carts::decode_change(value)? }
        }
        Table::Sessions => Record::Session(mw_codec::sessions::decode(value)?),
        Table::Reservations => Record::Reservation(mw_codec::stock::decode_reservation(value)?.0),
        Table::Orders => {
            let (order, events) = mw_codec::orders::decode(value)?;
            Record::Order { order, events }
        }
        _ => Record::Remembered(mw_codec::once::decode(value)?),
    })
}

fn read_stock(view: &View, key: &[u8], value: &[u8]) -> Result<Record> {
    let (product_id, geo_zone) = keys::read_stock(key)?;
    let (level, updated_at) = mw_codec::stock::decode_level(value)?;
    let mut ledger = Vec::new();
    view.scan(Table::Ledger, &Span::prefix(keys::ledger(&product_id, &geo_zone)), false, &mut |_, value| {
        ledger.push(mw_codec::stock::decode_movement(value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(Record::Stock { stock: ZoneStock { product_id, geo_zone, level, updated_at }, ledger })
}

/// The owner that a key of line changes begins with.
fn read_owner(key: &[u8]) -> Result<Owner> {
    let damaged = || Damaged("cart change key");
    let (kind, rest) = key.split_first().ok_or_else(damaged)?;
    let end = rest.iter().position(|byte| *byte == 0).ok_or_else(damaged)?;
    let id = rest.get(..end).and_then(|id| std::str::from_utf8(id).ok()).ok_or_else(damaged)?;
    Ok(match kind {
        b'u' => Owner::User(UserId::parse(id).map_err(|_| damaged())?),
        _ => Owner::Session(SessionId::parse(id).map_err(|_| damaged())?),
    })
}

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
        Record::Remembered(remembered) => {
            let key = remembered.once.key.as_str().as_bytes().to_vec();
            tx.put(Table::Remembered, key, mw_codec::once::encode(&remembered.once, &remembered.outcome));
            Ok(())
        }
    }
}

fn import_product(tx: &mut Tx, product: &Product) -> Result<()> {
    let before = products::read(tx, &product.product_id)?;
    products::save(tx, before.as_ref(), product);
    Ok(())
}

fn import_stock(tx: &mut Tx, stock: &ZoneStock, ledger: &[Movement]) -> Result<()> {
    let mut old = Vec::new();
    let rows = Span::prefix(keys::ledger(&stock.product_id, &stock.geo_zone));
    tx.scan(Table::Ledger, &rows, false, &mut |key, _| {
        old.push(key.to_vec());
        Ok(ControlFlow::Continue(()))
    })?;
    for key in old {
        tx.remove(Table::Ledger, key);
    }
    for movement in ledger {
        stock::record(tx, &stock.product_id, &stock.geo_zone, movement);
    }
    let key = keys::stock(&stock.product_id, &stock.geo_zone);
    tx.put(Table::Stock, key, mw_codec::stock::encode_level(stock.level, stock.updated_at));
    Ok(())
}

fn import_cart(tx: &mut Tx, cart: &Cart) -> Result<()> {
    let row = tx.get(Table::Carts, &keys::active_cart(&cart.owner))?;
    let active = row.map(|row| mw_codec::carts::decode(&row)).transpose()?;
    if cart.status == CartStatus::Active {
        carts::save_active(tx, active.as_ref().map(carts::active_place), cart);
        return Ok(());
    }
    if let Some(active) = active.filter(|active| active.cart_id == cart.cart_id) {
        tx.remove(Table::Carts, keys::active_cart(&cart.owner));
        tx.remove(Table::CartActivity, keys::activity(Activity::Active, &active));
    }
    carts::save_closed(tx, cart);
    Ok(())
}

fn import_session(tx: &mut Tx, session: &Session) -> Result<()> {
    let row = tx.get(Table::Sessions, &keys::session(&session.session_id))?;
    if let Some(before) = row.map(|row| mw_codec::sessions::decode(&row)).transpose()? {
        sessions::remove(tx, &before);
    }
    sessions::save(tx, session);
    Ok(())
}

fn import_reservation(tx: &mut Tx, reservation: &Reservation) -> Result<()> {
    let row = tx.get(Table::Reservations, &keys::reservation(reservation.reservation_id))?;
    if let Some((before, _)) = row.map(|row| mw_codec::stock::decode_reservation(&row)).transpose()? {
        tx.remove(Table::HoldsDue, keys::due(before.expires_at, before.reservation_id.as_bytes()));
    }
    stock::save_reservation(tx, reservation);
    Ok(())
}

fn import_order(tx: &mut Tx, order: &Order, events: &[OrderEvent]) -> Result<()> {
    if let Some(before) = orders::read(tx, order.order_id)? {
        for list in [OrderList::Customer(&before.user_id), OrderList::Zone(&before.geo_zone), OrderList::All]
        {
            tx.remove(orders::list_table(list), list.key(before.created_at, before.order_id));
        }
        if before.status == OrderStatus::Created {
            tx.remove(Table::PaymentsDue, keys::due(before.pay_by, before.order_id.as_bytes()));
        }
        orders::count_sale(tx, &before, before.status.is_sale(), false)?;
    }
    orders::save_new(tx, order, events);
    orders::count_sale(tx, order, false, order.status.is_sale())
}
