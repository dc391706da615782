//! The resources that rows of the feed name: products, sessions and closed carts as the row has them, the others as they are when they
//! are read.

use std::collections::HashSet;

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_codec::changes::subjects::{ProductState, SessionState, Subject};
use mw_domain::{Cart, CartId, CartStatus, GeoZone, OrderId, ProductId, SessionId, Timestamp, ZoneStock};
use mw_store::changes::{ChangeEvent, Changed};
use mw_store::{Freshness, Result};

use super::reader::Found;
use crate::CassandraStore;
use crate::orders::{ScannedOrder, read_scanned};
use crate::stock::decision::StockKey;
use crate::stock::ledger::StockHeader;

/// Resources that are read at the same time for one page.
const CONCURRENT_READS: usize = 32;

/// The time of a change, its version, and the resource.
type Resource = (Timestamp, u64, Changed);

impl CassandraStore {
    /// The resources that rows name; one that several rows name once.
    pub(super) async fn resolve(&self, found: Vec<Found>) -> Result<Vec<ChangeEvent>> {
        let mut seen = HashSet::new();
        let first_times = found.into_iter().filter(|found| seen.insert(Named::of(&found.subject)));
        let events = first_times.map(|found| self.event(found)).collect::<Vec<_>>();
        let events: Vec<Option<ChangeEvent>> =
            stream::iter(events).buffered(CONCURRENT_READS).try_collect().await?;
        Ok(events.into_iter().flatten().collect())
    }

    async fn event(&self, found: Found) -> Result<Option<ChangeEvent>> {
        let Found { subject, position } = found;
        let resource = match subject {
            Subject::Order { order_id, version } => self.order_step(order_id, version).await?,
            Subject::Stock { product_id, geo_zone } => self.stock_state(product_id, geo_zone).await?,
            Subject::Product(state) => Some(product_state(*state)),
            Subject::Cart { owner, created_at, cart_id } => {
                self.reported_cart(&owner, (created_at, cart_id)).await?.map(cart_state)
            }
            Subject::CartClosed(cart) => Some(cart_state(*cart)),
            Subject::Session(state) => Some(session_state(*state)),
        };
        Ok(resource.map(|(at, version, changed)| ChangeEvent {
            id: format!("{}:{}:{version}", changed.topic().name(), changed.subject()),
            position,
            at,
            version,
            changed,
        }))
    }

    /// The order as a step left it; `None` where an import has replaced it by another history.
    async fn order_step(&self, order_id: OrderId, version: u64) -> Result<Option<Resource>> {
        let rows = self.order_rows(order_id).await?;
        let Some(ScannedOrder { order, events, .. }) = read_scanned(rows)? else { return Ok(None) };
        let step = usize::try_from(version).ok().and_then(|version| version.checked_sub(1));
        let Some(event) = step.and_then(|step| events.get(step)) else { return Ok(None) };
        let order = order.as_of(version, event);
        let changed = if version == 1 { Changed::OrderCreated(order) } else { Changed::OrderStatus(order) };
        Ok(Some((event.at, version, changed)))
    }

    async fn stock_state(&self, product_id: ProductId, geo_zone: GeoZone) -> Result<Option<Resource>> {
        let stock_key = StockKey { product_id, geo_zone };
        let header = self.header(&stock_key, Freshness::Latest).await?;
        let Some(header) = header.filter(StockHeader::has_level) else { return Ok(None) };
        let StockKey { product_id, geo_zone } = stock_key;
        let (level, updated_at) = (header.level, header.updated_at);
        let version = header.rev.unwrap_or_default().cast_unsigned();
        let stock = ZoneStock { product_id, geo_zone, level, updated_at };
        Ok(Some((updated_at, version, Changed::Stock(stock))))
    }
}

fn product_state(ProductState { product, rev, is_deleted }: ProductState) -> Resource {
    let (at, version) = (product.updated_at, rev.cast_unsigned());
    let changed =
        if is_deleted { Changed::ProductDeleted(product.product_id) } else { Changed::ProductPut(product) };
    (at, version, changed)
}

fn cart_state(cart: Cart) -> Resource {
    let (at, version) = (cart.updated_at, cart.version);
    let is_active = cart.status == CartStatus::Active;
    (at, version, if is_active { Changed::Cart(cart) } else { Changed::CartClosed(cart) })
}

fn session_state(SessionState { session_id, at, stamp, session }: SessionState) -> Resource {
    let changed = session.map_or(Changed::SessionEnded(session_id), Changed::Session);
    (at, stamp.cast_unsigned(), changed)
}

/// What two rows name that need be returned only once.
#[derive(PartialEq, Eq, Hash)]
enum Named {
    Order(OrderId, u64),
    Stock(ProductId, GeoZone),
    Product(ProductId, i64),
    Cart(CartId),
    CartClosed(CartId, u64),
    Session(SessionId, i64),
}

impl Named {
    fn of(subject: &Subject) -> Self {
        match subject {
            Subject::Order { order_id, version } => Self::Order(*order_id, *version),
            Subject::Stock { product_id, geo_zone } => Self::Stock(product_id.clone(), geo_zone.clone()),
            Subject::Product(state) => Self::Product(state.product.product_id.clone(), state.rev),
            Subject::Cart { cart_id, .. } => Self::Cart(*cart_id),
            Subject::CartClosed(cart) => Self::CartClosed(cart.cart_id, cart.version),
            Subject::Session(state) => Self::Session(state.session_id.clone(), state.stamp),
        }
    }
}
