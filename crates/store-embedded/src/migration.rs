//! The embedded engine as the target of a live migration.
//!
//! Invariant: the changes of one call are one batch, the rows of the migration's state included. A crash leaves all of them or
//! none, so the state always says exactly what was taken.

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use mw_domain::stock::{Cause, Delta};
use mw_domain::{
    Cart, CartStatus, GeoZone, Level, Movement, OrderId, OrderStatus, ProductId, Timestamp, ZoneStock,
};
use mw_store::migration::{CartKey, Change, MigrationTarget, OrderViews, ProductViews, StateRow};
use mw_store::stock::Audit;
use mw_store::{Result, Stock};
use uuid::Uuid;

use crate::export::{import_cart, import_order, import_product};
use crate::keys::{self, Activity, Key, OrderList};
use crate::long_reads::StoppableReader;
use crate::reader::{KeyRange, Reader, collect_keys};
use crate::tables::Table;
use crate::tx::Tx;
use crate::{EmbeddedStore, carts, orders, products, sales, stock};

/// State rows are in [`Table::Meta`] under this prefix.
const STATE_PREFIX: &[u8] = b"migration/";
/// Rows that one command removes.
const CLEARED_AT_ONCE: usize = 5_000;

#[async_trait]
impl MigrationTarget for EmbeddedStore {
    async fn apply(&self, changes: Vec<Change>) -> Result<()> {
        // A crash before the commit leaves none of the changes, and the migration reads their documents again.
        self.write(move |tx| changes.into_iter().try_for_each(|change| apply(tx, change))).await
    }

    async fn state(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>> {
        let snapshot = self.snapshot();
        let read = |key: &Vec<u8>| Ok(snapshot.get(Table::Meta, &state_key(key))?.map(|row| row.to_vec()));
        keys.iter().map(read).collect()
    }

    async fn states(&self, prefix: Vec<u8>, after: Option<Vec<u8>>, limit: usize) -> Result<Vec<StateRow>> {
        let whole = KeyRange::prefix(state_key(&prefix));
        let range = after.map_or(whole.clone(), |key| whole.after(state_key(&key)));
        let mut rows = Vec::new();
        self.snapshot().scan(Table::Meta, &range, false, &mut |key, value| {
            if rows.len() == limit {
                return Ok(ControlFlow::Break(()));
            }
            let key = key.strip_prefix(STATE_PREFIX).unwrap_or_default();
            rows.push((key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(rows)
    }

    async fn remove_states(&self, prefix: Vec<u8>) -> Result<()> {
        let range = KeyRange::prefix(state_key(&prefix));
        let remove = move |tx: &mut Tx| {
            let keys = first_keys(tx, Table::Meta, &range)?;
            let removed = keys.len();
            for key in keys {
                tx.remove(Table::Meta, key);
            }
            Ok(removed)
        };
        // A crash in here leaves the rest of the rows; the repeated call removes them.
        while self.write(remove.clone()).await? > 0 {}
        Ok(())
    }

    async fn orders_in_views(&self, ids: Vec<OrderId>) -> Result<Vec<Option<OrderViews>>> {
        let snapshot = self.snapshot();
        ids.into_iter().map(|id| order_views(&snapshot, id)).collect()
    }

    async fn products_in_views(&self, ids: Vec<ProductId>) -> Result<Vec<ProductViews>> {
        let snapshot = self.snapshot();
        ids.iter().map(|id| product_views(&snapshot, id)).collect()
    }

    async fn carts_by_key(&self, keys: Vec<CartKey>) -> Result<Vec<Option<Cart>>> {
        let snapshot = self.snapshot();
        keys.iter().map(|key| stored_cart(&snapshot, key)).collect()
    }

    async fn stray_rows(&self, limit: usize) -> Result<Vec<String>> {
        let read = move |reader: &StoppableReader| stray_rows(reader, limit);
        self.long_reads.run(Arc::new(self.snapshot()), read).await
    }

    async fn audit_stock(&self) -> Result<Audit> {
        self.audit(&|_| {}).await
    }

    async fn clear(&self) -> Result<()> {
        for table in Table::ALL {
            // A crash in here leaves the rest of the rows and the state; the repeated call removes them.
            while self.write(move |tx| clear_slice(tx, table)).await? > 0 {}
        }
        Ok(())
    }
}

fn state_key(key: &[u8]) -> Key {
    [STATE_PREFIX, key].concat()
}

fn apply(tx: &mut Tx, change: Change) -> Result<()> {
    match change {
        Change::Product(product) => import_product(tx, &product),
        Change::RemoveProduct(product_id) => {
            if let Some(product) = products::read(tx, &product_id)? {
                products::remove(tx, &product);
            }
            Ok(())
        }
        Change::Stock { stock, held, released } => {
            set_stock(tx, &stock, &held, &released);
            Ok(())
        }
        Change::RemoveStock { product_id, geo_zone } => remove_stock(tx, &product_id, &geo_zone),
        Change::Cart(cart) => import_cart(tx, &cart),
        Change::RemoveCart(key) => remove_cart(tx, &key),
        Change::Order { order, events } => import_order(tx, &order, &events),
        Change::RemoveOrder(order_id) => remove_order(tx, order_id),
        Change::State { key, value: Some(value) } => {
            tx.put(Table::Meta, state_key(&key), value);
            Ok(())
        }
        Change::State { key, value: None } => {
            tx.remove(Table::Meta, state_key(&key));
            Ok(())
        }
    }
}

fn set_stock(tx: &mut Tx, stock: &ZoneStock, held: &[Movement], released: &[Movement]) {
    let (product_id, geo_zone) = (&stock.product_id, &stock.geo_zone);
    for movement in released {
        let key = keys::movement(product_id, geo_zone, movement.at, &movement.op, movement.cause);
        tx.remove(Table::Ledger, key);
    }
    let sum = Movement {
        at: stock.updated_at,
        op: Uuid::nil(),
        cause: Cause::Set,
        delta: Delta { on_hand: stock.level.on_hand.cast_signed(), reserved: 0 },
        note: None,
    };
    for movement in std::iter::once(&sum).chain(held) {
        stock::record(tx, product_id, geo_zone, movement);
    }
    let value = mw_codec::stock::encode_level(stock.level, stock.updated_at);
    tx.put(Table::Stock, keys::stock(product_id, geo_zone), value);
}

fn remove_stock(tx: &mut Tx, product_id: &ProductId, geo_zone: &GeoZone) -> Result<()> {
    for key in collect_keys(tx, Table::Ledger, &KeyRange::prefix(keys::ledger(product_id, geo_zone)))? {
        tx.remove(Table::Ledger, key);
    }
    tx.remove(Table::Stock, keys::stock(product_id, geo_zone));
    Ok(())
}

fn stored_cart(reader: &dyn Reader, key: &CartKey) -> Result<Option<Cart>> {
    let closed = keys::closed_cart_of(&key.owner, key.created_at, key.cart_id);
    if let Some(row) = reader.get(Table::ClosedCarts, &closed)? {
        return Ok(Some(mw_codec::carts::decode(&row)?));
    }
    let last = carts::read_last(reader, &key.owner)?;
    Ok(last.filter(|last| last.cart_id == key.cart_id && last.status == CartStatus::Active))
}

fn remove_cart(tx: &mut Tx, key: &CartKey) -> Result<()> {
    let closed = keys::closed_cart_of(&key.owner, key.created_at, key.cart_id);
    if let Some(row) = tx.get(Table::ClosedCarts, &closed)? {
        let cart = mw_codec::carts::decode(&row)?;
        tx.remove(Table::CartActivity, keys::activity(Activity::Abandoned, &cart));
        tx.remove(Table::ClosedCarts, closed);
    }
    if let Some(last) = carts::read_last(tx, &key.owner)?.filter(|last| last.cart_id == key.cart_id) {
        tx.remove(Table::CartActivity, keys::activity(Activity::Active, &last));
        tx.remove(Table::Carts, keys::active_cart(&key.owner));
    }
    Ok(())
}

fn remove_order(tx: &mut Tx, order_id: OrderId) -> Result<()> {
    let Some(order) = orders::read(tx, order_id)? else { return Ok(()) };
    for list in [OrderList::User(&order.user_id), OrderList::Zone(&order.geo_zone), OrderList::All] {
        tx.remove(orders::list_table(list), list.key(order.created_at, order_id));
    }
    if order.status == OrderStatus::Created {
        tx.remove(Table::PaymentTimers, keys::timer(order.pay_by, order_id.as_bytes()));
    }
    sales::count(tx, &order, order.status.is_sale(), false)?;
    tx.remove(Table::Orders, keys::order(order_id));
    Ok(())
}

fn order_views(reader: &dyn Reader, id: OrderId) -> Result<Option<OrderViews>> {
    let Some((order, events)) = orders::read_with_events(reader, id)? else { return Ok(None) };
    let lists = [
        (OrderList::User(&order.user_id), "customer"),
        (OrderList::Zone(&order.geo_zone), "zone and day"),
        (OrderList::All, "period"),
    ];
    let mut missing_from = Vec::new();
    for (list, name) in lists {
        if reader.get(orders::list_table(list), &list.key(order.created_at, id))?.is_none() {
            missing_from.push(name);
        }
    }
    Ok(Some(OrderViews { order, events, missing_from }))
}

fn product_views(reader: &dyn Reader, id: &ProductId) -> Result<ProductViews> {
    let mut views = ProductViews { product: products::read(reader, id)?, ..ProductViews::default() };
    reader.scan(Table::Stock, &KeyRange::prefix(keys::zones(id)), false, &mut |key, value| {
        let (_, geo_zone) = keys::read_stock(key)?;
        let (level, _): (Level, Timestamp) = mw_codec::stock::decode_level(value)?;
        views.levels.push((geo_zone, level));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(views)
}

/// Rows of the order lists whose order is missing or stands elsewhere in the list.
fn stray_rows(reader: &dyn Reader, limit: usize) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for table in [Table::OrdersByCustomer, Table::OrdersByZone, Table::OrdersByTime] {
        reader.scan(table, &KeyRange::prefix(Vec::new()), false, &mut |key, _| {
            let (_, id) = keys::read_order(key)?;
            let order = orders::read(reader, id)?;
            let is_its_row = order.is_some_and(|order| {
                [OrderList::User(&order.user_id), OrderList::Zone(&order.geo_zone), OrderList::All]
                    .into_iter()
                    .filter(|list| orders::list_table(*list) == table)
                    .any(|list| list.key(order.created_at, id) == key)
            });
            if !is_its_row {
                found.push(format!("{}: a row of order {id} that is not its own", table.name()));
            }
            Ok(if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
    }
    Ok(found)
}

/// Removes rows of a table, except for the state; returns how many.
fn clear_slice(tx: &mut Tx, table: Table) -> Result<usize> {
    if table == Table::Meta {
        return Ok(0);
    }
    let keys = first_keys(tx, table, &KeyRange::prefix(Vec::new()))?;
    let removed = keys.len();
    for key in keys {
        tx.remove(table, key);
    }
    Ok(removed)
}

/// The first keys of a range, as many as one command removes.
fn first_keys(tx: &Tx, table: Table, range: &KeyRange) -> Result<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    tx.scan(table, range, false, &mut |key, _| {
        keys.push(key.to_vec());
        Ok(if keys.len() < CLEARED_AT_ONCE { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(keys)
}
