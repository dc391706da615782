//! A correct store with one flaw: each flaw is a mistake that an engine could make.

use std::sync::atomic::{AtomicU64, Ordering};

use mw_domain::{Cart, Order, Owner, Period, Reservation, ReservationId, Timestamp, UserId};
use mw_store::carts::{Merge, Merged, RemoveLine};
use mw_store::changes::{Changed, Changes, ChangesPage, FeedSettings, ReadChanges, Topics};
use mw_store::contract::random::FEED_RETENTION_MS;
use mw_store::export::Record;
use mw_store::model::Model;
use mw_store::orders::{PlaceOrder, SetStatus};
use mw_store::products::{CategoryQuery, Listed};
use mw_store::stock::Reserve;
use mw_store::{Carts, Done, ExportImport, Freshness, Orders, Page, PageRequest, Products, Result, Stock};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// No flaw: the suite must pass.
    None,
    /// A merge forgets the last line it moved.
    MergeLosesLine,
    /// A cart is readable for one second after its expiry.
    CartExpiresLate,
    /// A placed order does not store the outcome of its key.
    OrderForgetsKey,
    /// A refused hold keeps the units of its first line.
    RefusedHoldKeepsUnits,
    /// A category read backwards has equal prices in the order of their ids.
    EqualPricesNotReversed,
    /// A cancelled order keeps its units.
    CancelKeepsUnits,
    /// The first item of a later page is lost.
    PageLosesItem,
    /// The feed has no steps of an order after the first.
    FeedLosesSteps,
    /// The feed has the changes of a page in reverse.
    FeedIsReversed,
    /// A change has another id each time it is read.
    FeedRenamesChanges,
    /// The feed reports a hold that was refused.
    FeedReportsRefused,
}

pub(crate) struct Flawed {
    inner: Model,
    flaw: Flaw,
    reads: AtomicU64,
}

impl Flawed {
    pub(crate) fn new(flaw: Flaw) -> Self {
        let feed = FeedSettings { topics: Topics::ALL, retention_ms: FEED_RETENTION_MS };
        Self { inner: Model::with_feed(feed), flaw, reads: AtomicU64::new(0) }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }
}

/// The methods that a flaw touches; every other call goes to the model as it is.
macro_rules! flawed {
    ($self:ident, Carts Read, active_cart($($argument:expr),*)) => {
        $self.flawed_active_cart($($argument),*).await
    };
    ($self:ident, Carts Write, merge($($argument:expr),*)) => {
        $self.flawed_merge($($argument),*).await
    };
    ($self:ident, Products Read, category($($argument:expr),*)) => {
        $self.flawed_category($($argument),*).await
    };
    ($self:ident, Stock Write, reserve($($argument:expr),*)) => {
        $self.flawed_reserve($($argument),*).await
    };
    ($self:ident, Orders Write, place_order($($argument:expr),*)) => {
        $self.flawed_place_order($($argument),*).await
    };
    ($self:ident, Orders Write, set_status($($argument:expr),*)) => {
        $self.flawed_set_status($($argument),*).await
    };
    ($self:ident, Changes Read, changes($($argument:expr),*)) => {
        $self.flawed_changes($($argument),*).await
    };
    ($self:ident, Orders Read, user_orders($($argument:expr),*)) => {
        $self.flawed_user_orders($($argument),*).await
    };
    ($self:ident, $noun:ident $access:ident, $method:ident($($argument:expr),*)) => {
        $self.inner.$method($($argument),*).await
    };
}

mw_store::delegate_store!(Flawed, flawed);

impl Flawed {
    async fn flawed_active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        let late = i64::from(self.has(Flaw::CartExpiresLate));
        self.inner.active_cart(owner, now.minus_seconds(late)).await
    }

    async fn flawed_merge(&self, command: Merge) -> Result<Done<Merged>> {
        let (user_id, lifetime, now) = (command.user_id.clone(), command.lifetime, command.now);
        let done = self.inner.merge(command).await?;
        if let (true, Some(lost)) = (self.has(Flaw::MergeLosesLine), done.value.changes.last()) {
            let removal = RemoveLine {
                owner: Owner::User(user_id),
                product_id: lost.product_id.clone(),
                expected_version: None,
                lifetime,
                now,
            };
            self.inner.remove_line(removal).await?;
        }
        Ok(done)
    }

    async fn flawed_category(
        &self,
        query: &CategoryQuery,
        freshness: Freshness,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Listed>> {
        let mut listed = self.inner.category(query, freshness, now, page).await?;
        if query.descending && self.has(Flaw::EqualPricesNotReversed) {
            listed
                .items
                .sort_by_key(|item| (std::cmp::Reverse(item.product.price), item.product.product_id.clone()));
        }
        Ok(listed)
    }

    async fn flawed_reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
        let first = Reserve { lines: command.lines.iter().take(1).cloned().collect(), ..command.clone() };
        let reserved = self.inner.reserve(command).await;
        if reserved.is_err() && self.has(Flaw::RefusedHoldKeepsUnits) {
            // The client of the whole reservation does not see whether this part succeeds.
            self.inner.reserve(Reserve { identity: None, ..first }).await.ok();
        }
        if reserved.is_err() && self.has(Flaw::FeedReportsRefused) {
            self.report_products().await?;
        }
        reserved
    }

    async fn flawed_place_order(&self, command: PlaceOrder) -> Result<Done<Order>> {
        let identity = if self.has(Flaw::OrderForgetsKey) { None } else { command.identity.clone() };
        self.inner.place_order(PlaceOrder { identity, ..command }).await
    }

    async fn flawed_set_status(&self, command: SetStatus) -> Result<Done<Order>> {
        let before = self.inner.order(command.order_id).await?;
        let done = self.inner.set_status(command).await?;
        let is_cancelled = done.value.status == mw_domain::OrderStatus::Cancelled;
        let was_so = before.is_some_and(|order| order.status == done.value.status);
        if is_cancelled && !was_so && self.has(Flaw::CancelKeepsUnits) {
            self.keep_units(&done.value).await?;
        }
        Ok(done)
    }

    async fn flawed_user_orders(
        &self,
        user_id: &UserId,
        period: Period,
        page: PageRequest,
    ) -> Result<Page<Order>> {
        let is_first = page.after.is_none();
        let mut orders = self.inner.user_orders(user_id, period, page).await?;
        if self.has(Flaw::PageLosesItem) && !is_first && orders.items.len() > 1 {
            orders.items.remove(0);
        }
        Ok(orders)
    }

    async fn flawed_changes(&self, request: ReadChanges) -> Result<ChangesPage> {
        let mut page = self.inner.changes(request).await?;
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        match self.flaw {
            Flaw::FeedLosesSteps => {
                page.items.retain(|change| !matches!(change.changed, Changed::OrderStatus(_)));
            }
            Flaw::FeedIsReversed => page.items.reverse(),
            Flaw::FeedRenamesChanges => {
                for change in &mut page.items {
                    change.id = format!("{} {read}", change.id);
                }
            }
            _ => {}
        }
        Ok(page)
    }

    /// Writes every product again, which no client has asked for.
    async fn report_products(&self) -> Result<()> {
        let export = self.inner.export().await?;
        for record in export.page(PageRequest::first(10_000)).await?.items {
            if let Record::Product(product) = record {
                self.inner.put_product(product).await?;
            }
        }
        Ok(())
    }

    /// Holds the units of a cancelled order again, for longer than any test runs.
    async fn keep_units(&self, order: &Order) -> Result<()> {
        let lines = order
            .lines
            .iter()
            .map(|line| mw_domain::Demand { product_id: line.product_id.clone(), quantity: line.quantity });
        let hold = Reserve {
            reservation_id: ReservationId::new(order.order_id.uuid()),
            geo_zone: order.geo_zone.clone(),
            lines: lines.collect(),
            expires_at: Timestamp::MAX,
            now: order.updated_at,
            identity: None,
        };
        self.inner.reserve(hold).await.map(drop)
    }
}
