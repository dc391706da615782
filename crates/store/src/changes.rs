//! The contract of the change feed: every acknowledged change of a written topic, with the resource as it is after the change.
//!
//! A change is recorded by the write that it reports: a refused or failed command leaves none, and an acknowledged one is
//! never missing. The changes of a subject come in the order of their versions. Of stock and carts a reader may get only
//! the newest state; the steps of an order and the end of a cart are never left out. A reader may get a change again, under the
//! same id.
//!
//! An import of records is no change: it is the state that a reader of the feed begins with. A cart or session that ends by
//! time is not reported, because nothing is written then: its resource names the moment.

use mw_domain::{Cart, Order, Owner, Product, ProductId, Session, SessionId, Timestamp, ZoneStock};

use crate::{Position, Refusal, Result};

/// A kind of resource whose changes are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Topic {
    Orders,
    Stock,
    Products,
    Carts,
    Sessions,
}

impl Topic {
    pub const ALL: [Self; 5] = [Self::Orders, Self::Stock, Self::Products, Self::Carts, Self::Sessions];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Orders => "orders",
            Self::Stock => "stock",
            Self::Products => "products",
            Self::Carts => "carts",
            Self::Sessions => "sessions",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.name() == name)
    }
}

/// A set of topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Topics(u8);

impl Topics {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self((1 << Topic::ALL.len()) - 1);

    pub const fn contains(self, topic: Topic) -> bool {
        self.0 & Self::bit(topic) != 0
    }

    #[must_use]
    pub const fn with(self, topic: Topic) -> Self {
        Self(self.0 | Self::bit(topic))
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Topic> {
        Topic::ALL.into_iter().filter(move |topic| self.contains(*topic))
    }

    const fn bit(topic: Topic) -> u8 {
        1 << topic as u8
    }
}

impl FromIterator<Topic> for Topics {
    fn from_iter<I: IntoIterator<Item = Topic>>(topics: I) -> Self {
        topics.into_iter().fold(Self::NONE, Self::with)
    }
}

/// What an operator configures about the feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeedSettings {
    /// The topics whose changes are recorded.
    pub topics: Topics,
    /// How long a change is kept.
    pub retention_ms: i64,
}

impl Default for FeedSettings {
    fn default() -> Self {
        Self {
            topics: Topics::NONE.with(Topic::Orders).with(Topic::Stock).with(Topic::Products),
            retention_ms: 7 * 86_400_000,
        }
    }
}

/// A change, with the resource as it is after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    OrderCreated(Order),
    OrderStatus(Order),
    Stock(ZoneStock),
    ProductPut(Product),
    ProductDeleted(ProductId),
    Cart(Cart),
    /// The cart is ordered or abandoned.
    CartClosed(Cart),
    Session(Session),
    /// The session was deleted or revoked.
    SessionEnded(SessionId),
}

impl Changed {
    pub const fn topic(&self) -> Topic {
        match self {
            Self::OrderCreated(_) | Self::OrderStatus(_) => Topic::Orders,
            Self::Stock(_) => Topic::Stock,
            Self::ProductPut(_) | Self::ProductDeleted(_) => Topic::Products,
            Self::Cart(_) | Self::CartClosed(_) => Topic::Carts,
            Self::Session(_) | Self::SessionEnded(_) => Topic::Sessions,
        }
    }

    /// The name of its kind, such as `order.created`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::OrderCreated(_) => "order.created",
            Self::OrderStatus(_) => "order.status",
            Self::Stock(_) => "stock.changed",
            Self::ProductPut(_) => "product.put",
            Self::ProductDeleted(_) => "product.deleted",
            Self::Cart(_) => "cart.changed",
            Self::CartClosed(_) => "cart.closed",
            Self::Session(_) => "session.changed",
            Self::SessionEnded(_) => "session.ended",
        }
    }

    /// What has changed: changes of one subject are ordered.
    pub fn subject(&self) -> String {
        match self {
            Self::OrderCreated(order) | Self::OrderStatus(order) => order.order_id.to_string(),
            Self::Stock(stock) => format!("{}/{}", stock.product_id, stock.geo_zone),
            Self::ProductPut(product) => product.product_id.to_string(),
            Self::ProductDeleted(product_id) => product_id.to_string(),
            Self::Cart(cart) | Self::CartClosed(cart) => match &cart.owner {
                Owner::User(user_id) => format!("user:{user_id}"),
                Owner::Session(session_id) => format!("session:{session_id}"),
            },
            Self::Session(session) => session.session_id.to_string(),
            Self::SessionEnded(session_id) => session_id.to_string(),
        }
    }
}

/// A change as the feed returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeEvent {
    /// The same whenever and wherever the change is read.
    pub id: String,
    /// Reading after it continues with the next change.
    pub position: Position,
    pub at: Timestamp,
    /// Grows with every change of the subject; of an order and a cart it is the version of the resource.
    pub version: u64,
    pub changed: Changed,
}

/// Where reading the feed begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedStart {
    /// With the oldest change that is kept.
    Oldest,
    /// After every change that is acknowledged already.
    Now,
    After(Position),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadChanges {
    pub start: FeedStart,
    /// Only changes of these topics, each of which is written.
    pub topics: Topics,
    /// At least 1.
    pub limit: usize,
    /// By which a change is kept or not.
    pub now: Timestamp,
}

/// Changes in order. A page may have fewer than its limit although more follow: only a page without changes whose `next` is
/// where it began has reached the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesPage {
    pub items: Vec<ChangeEvent>,
    /// Where reading goes on; valid after a restart, and on every process of a cluster.
    pub next: Position,
}

#[async_trait::async_trait]
pub trait Changes: Send + Sync {
    /// Which topics are written, and for how long their changes are kept.
    fn feed(&self) -> FeedSettings;

    /// Refuses: `InvalidCursor`, then `CursorExpired` if a change after the position is no longer kept.
    async fn changes(&self, request: ReadChanges) -> Result<ChangesPage>;

    /// Returns once there may be changes after a position that `changes` returned; it may return without any.
    async fn changes_after(&self, position: &Position) -> Result<()>;
}

/// A page of the feed of an engine that writes no topic: it is empty, and no position but its own exists.
pub fn empty_page(request: &ReadChanges) -> Result<ChangesPage> {
    let own = Position(vec![0]);
    match &request.start {
        FeedStart::After(position) if *position != own => Err(Refusal::InvalidCursor.into()),
        _ => Ok(ChangesPage { items: Vec::new(), next: own }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_a_set() {
        let topics: Topics = [Topic::Carts, Topic::Orders, Topic::Carts].into_iter().collect();
        assert_eq!(topics.iter().collect::<Vec<_>>(), [Topic::Orders, Topic::Carts]);
        assert!(!topics.contains(Topic::Stock));
        assert!(Topics::NONE.is_empty() && Topic::ALL.into_iter().collect::<Topics>() == Topics::ALL);
    }

    #[test]
    fn every_topic_is_found_by_its_name() {
        for topic in Topic::ALL {
            assert_eq!(Topic::named(topic.name()), Some(topic));
        }
        assert_eq!(Topic::named("order"), None);
    }
}
