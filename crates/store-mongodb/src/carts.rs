//! Carts: a document each. A line change is one atomic update of the owner's active cart, which also notes the change in
//! the document's history; opening and closing a cart, merging and whatever has a key are transactions.
//!
//! An owner has at most one active cart: the request that opens one writes the owner's document in `cart_owners` in the same
//! transaction, so that of two at once one begins again and finds the other's cart. A unique index could not do it: there
//! is none beside a hashed shard key.

mod decisions;
mod history;
mod lines;
mod lists;

pub(crate) use decisions::Parties;

use async_trait::async_trait;
use mongodb::bson::{Bson, Document, doc};
use mw_domain::{Cart, CartChange, Owner, Timestamp};
use mw_store::carts::{Abandon, Merge, Merged, RemoveLine, SetLine};
use mw_store::changes::Topic;
use mw_store::{Carts, Done, Freshness, Page, PageRequest, Result, StoreError};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use crate::MongoStore;
use crate::documents::carts::{StoredCart, owner_key, projection, projection_without_history};
use crate::documents::ids::to_bson_id;
use crate::documents::times::to_bson_time;
use crate::policy::Written;
use crate::shards::targeting::Operation;

/// Finds the carts of an owner, on one shard where the shard key allows it.
fn of_owner(owner: &Owner) -> Document {
    let mut filter = doc! { "owner": owner_key(owner) };
    match owner {
        Owner::User(user) => filter.insert("user_id", to_bson_id(user.as_str())),
        Owner::Session(session) => {
            filter.insert("user_id", Bson::Null);
            filter.insert("session_id", session.as_str())
        }
    };
    filter
}

/// Finds the carts that other programs wrote for an owner.
fn foreign_of_owner(owner: &Owner) -> Document {
    let mut filter = of_owner(owner);
    filter.insert("owner", Bson::Null);
    filter
}

/// Finds the owner's active cart, if the service has written it.
fn active_of(owner: &Owner, now: Timestamp) -> Document {
    let mut filter = of_owner(owner);
    filter.insert("status", "active");
    filter.insert("expires_at", doc! { "$gt": to_bson_time(now) });
    filter
}

impl MongoStore {
    fn read_cart(&self, document: &Document) -> Option<StoredCart> {
        self.readable(StoredCart::read(document, &self.options.cart_lifetime))
    }

    /// The newest of the active carts that other programs wrote for an owner.
    fn newest_of(&self, documents: &[Document], now: Timestamp) -> Option<StoredCart> {
        documents
            .iter()
            .filter_map(|document| self.read_cart(document))
            .filter(|stored| !stored.cart.is_expired(now))
            .max_by_key(|stored| (stored.cart.updated_at, stored.cart.cart_id))
    }
}

impl MongoStore {
    /// Where the changes of carts are in the feed each is a transaction, and those of one cart go one after the other.
    async fn line_lock(&self, owner: &Owner) -> Result<Option<OwnedMutexGuard<()>>> {
        if !self.feed.writes(Topic::Carts) {
            return Ok(None);
        }
        let locked = timeout(self.options.request_timeout, self.cart_locks.lock_one(owner_key(owner))).await;
        let waited = "change a cart: waited for its other changes longer than the request timeout";
        locked.map(Some).map_err(|_| StoreError::Unavailable(waited.to_owned()))
    }

    /// Notes a write of carts, also one that failed: it may have been applied.
    fn wrote_carts<T>(&self, written: Result<T>) -> Result<T> {
        self.reads.wrote(Written::Carts);
        written
    }
}

#[async_trait]
impl Carts for MongoStore {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        self.counts.count(Operation::cart_of(owner));
        let criteria = self.reads.criteria(Freshness::Latest);
        let carts = &self.collections.carts;
        let find = carts
            .find_one(active_of(owner, now))
            .projection(projection_without_history())
            .read_concern(self.reads.cart_concern())
            .selection_criteria(criteria.clone());
        if let Some(document) = self.read(find).await? {
            return Ok(self.read_cart(&document).map(|stored| stored.cart));
        }
        let mut filter = foreign_of_owner(owner);
        filter.insert("status", "active");
        let find = carts.find(filter).projection(projection()).selection_criteria(criteria);
        let documents = self.read_all(find, decisions::FOREIGN_MAX).await?;
        Ok(self.newest_of(&documents, now).map(|stored| stored.cart))
    }

    async fn set_line(&self, command: SetLine) -> Result<Cart> {
        self.counts.count(Operation::CartChange);
        let _one = self.line_lock(&command.owner).await?;
        self.wrote_carts(lines::set_line(self, &command).await)
    }

    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>> {
        self.counts.count(Operation::CartChange);
        let _one = self.line_lock(&command.owner).await?;
        self.wrote_carts(lines::remove_line(self, &command).await)
    }

    async fn abandon(&self, command: Abandon) -> Result<Done<Cart>> {
        self.counts.count(Operation::CartChange);
        self.wrote_carts(decisions::abandon(self, &command).await)
    }

    async fn merge(&self, command: Merge) -> Result<Done<Merged>> {
        self.counts.count(Operation::CartChange);
        self.wrote_carts(decisions::merge(self, &command).await)
    }

    async fn carts(&self, owner: &Owner, now: Timestamp, page: PageRequest) -> Result<Page<Cart>> {
        self.counts.count(Operation::cart_of(owner));
        lists::carts(self, owner, now, &page).await
    }

    async fn cart_changes(
        &self,
        owner: &Owner,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<CartChange>> {
        history::changes(self, owner, now, &page).await
    }

    async fn idle_carts(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Cart>> {
        self.counts.count(Operation::IdleCarts);
        lists::idle(self, idle_since, now, &page).await
    }
}
