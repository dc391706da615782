//! Orders: a document each with its events. It is placed in the transaction that holds its units, closes its cart and
//! stores its idempotency key, so it is in every view or in none.

pub(crate) mod documents;
mod lists;
mod unpaid;

pub(crate) use lists::OtherShape;

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::SelectionCriteria;
use mongodb::{ClientSession, Collection};
use mw_domain::{GeoZone, Order, OrderEvent, OrderId, Owner, Period, ProductId, Timestamp, UserId};
use mw_store::orders::{Basket, PlaceOrder, Sales, SetStatus};
use mw_store::{Carts as _, Done, Freshness, Orders, Page, PageRequest, Result};

use crate::MongoStore;
use crate::documents::ids::{read_id, to_bson_id, to_bson_order_id};
use crate::driver::transaction::Stop;
use crate::orders::documents::StoredOrder;
use crate::policy::Call;
use crate::shards::targeting::Operation;
use crate::stock::command::{StockRequest, demands_of, keys_of, units_of};

impl MongoStore {
    /// An order of a document; one that cannot be read is counted and left out.
    pub(crate) fn readable_order(&self, document: &Document) -> Option<StoredOrder> {
        self.readable(StoredOrder::read(document, &self.options.statuses))
    }

    async fn stored_order(
        &self,
        order_id: OrderId,
        criteria: SelectionCriteria,
    ) -> Result<Option<StoredOrder>> {
        self.counts.count(Operation::OrderById);
        let filter = doc! { "_id": to_bson_order_id(order_id) };
        let found = self.read(self.sales.orders.find_one(filter).selection_criteria(criteria)).await?;
        let mut stored: Vec<StoredOrder> = found.iter().filter_map(|it| self.readable_order(it)).collect();
        self.name_lines_now(&mut stored).await?;
        Ok(stored.pop())
    }

    /// Names the lines of orders of other programs after their products.
    pub(crate) async fn name_lines(
        &self,
        session: &mut ClientSession,
        products: &Collection<Document>,
        orders: &mut [StoredOrder],
    ) -> Result<(), Stop> {
        let Some(filter) = unnamed(orders) else { return Ok(()) };
        let query = products.find(filter).projection(doc! { "name": 1 });
        let mut cursor = query.session(&mut *session).await?;
        let mut found = Vec::new();
        while let Some(product) = cursor.next(session).await {
            found.push(product?);
        }
        give_names(orders, &found);
        Ok(())
    }

    /// Like [`Self::name_lines`], outside of a transaction.
    pub(crate) async fn name_lines_now(&self, orders: &mut [StoredOrder]) -> Result<()> {
        let Some(filter) = unnamed(orders) else { return Ok(()) };
        let products =
            self.collect(self.collections.products.find(filter).projection(doc! { "name": 1 })).await?;
        give_names(orders, &products);
        Ok(())
    }

    /// All documents of a query.
    pub(crate) async fn collect(&self, query: mongodb::action::Find<'_, Document>) -> Result<Vec<Document>> {
        self.read(async { query.await?.try_collect().await }).await
    }
}

/// The products of lines without a name.
fn unnamed(orders: &[StoredOrder]) -> Option<Document> {
    let lines = orders.iter().filter(|stored| stored.lacks_names).flat_map(|stored| &stored.order.lines);
    let ids: BTreeSet<&str> = lines.map(|line| line.product_id.as_str()).collect();
    let ids: Vec<Bson> = ids.into_iter().map(to_bson_id).collect();
    (!ids.is_empty()).then(|| doc! { "_id": { "$in": ids } })
}

fn give_names(orders: &mut [StoredOrder], products: &[Document]) {
    let names: HashMap<ProductId, &str> = products
        .iter()
        .filter_map(|product| {
            Some((read_id(product.get("_id")?, ProductId::parse)?, product.get_str("name").ok()?))
        })
        .collect();
    for line in
        orders.iter_mut().filter(|stored| stored.lacks_names).flat_map(|stored| &mut stored.order.lines)
    {
        match names.get(&line.product_id) {
            Some(name) if line.name == line.product_id.as_str() => line.name = (*name).to_owned(),
            _ => {}
        }
    }
}

#[async_trait]
impl Orders for MongoStore {
    async fn place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
        let lines = match &command.basket {
            Basket::Lines(lines) => lines.clone(),
            // Only to find the keeper: the transaction reads the cart again.
            Basket::Cart { .. } => {
                let owner = Owner::User(command.user_id.clone());
                self.active_cart(&owner, command.now).await?.map(|cart| cart.demands()).unwrap_or_default()
            }
        };
        let (keys, units) = (keys_of(&lines, &command.geo_zone), units_of(&lines));
        self.counts.count(Operation::OrderInsert);
        self.submit(StockRequest::Place(Box::new(command)), keys, units).await?.order()
    }

    async fn order(&self, order_id: OrderId) -> Result<Option<Order>> {
        let criteria = self.reads.criteria_of(Call::OrderStatus);
        Ok(self.stored_order(order_id, criteria).await?.map(|stored| stored.order))
    }

    async fn order_events(&self, order_id: OrderId) -> Result<Option<Vec<OrderEvent>>> {
        let criteria = self.reads.criteria_of(Call::OrderStatus);
        let stored = self.stored_order(order_id, criteria).await?;
        Ok(stored.map(|stored| stored.events.into_iter().rev().collect()))
    }

    async fn set_status(&self, command: SetStatus) -> Result<Done<Order>> {
        // Lines never change: they name the keeper, and the transaction reads the order again.
        let criteria = self.reads.criteria(Freshness::Latest);
        let stored = self.stored_order(command.order_id, criteria).await?;
        let lines = stored.as_ref().map(|stored| demands_of(&stored.order)).unwrap_or_default();
        let keys = stored.map(|stored| keys_of(&lines, &stored.order.geo_zone)).unwrap_or_default();
        let units = units_of(&lines);
        self.submit(StockRequest::SetStatus(Box::new(command)), keys, units).await?.order()
    }

    async fn user_orders(&self, user_id: &UserId, period: Period, page: PageRequest) -> Result<Page<Order>> {
        self.counts.count(Operation::UserOrders);
        self.list_orders(&lists::Of::User(user_id), period, page).await
    }

    async fn orders(
        &self,
        geo_zone: Option<&GeoZone>,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        self.counts.count(Operation::OrdersOfPeriod);
        self.list_orders(&geo_zone.map_or(lists::Of::Shop, lists::Of::Zone), period, page).await
    }

    async fn sales(&self, geo_zone: Option<&GeoZone>, period: Period) -> Result<Vec<Sales>> {
        self.counts.count(Operation::OrdersOfPeriod);
        self.sales_report(geo_zone, period).await
    }

    async fn cancel_unpaid(&self, now: Timestamp, note: &str, limit: usize) -> Result<usize> {
        self.cancel_unpaid_orders(now, note, limit).await
    }
}
