//! Changes of whole carts, as transactions: opening, taking over a cart of another program, abandoning, merging, and the
//! steps that a checkout takes.

use std::collections::BTreeMap;

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use mw_codec::changes::ChangeRef;
use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, CartChange, CartId, MergeMode, Owner, ProductId, SessionId, Timestamp, UserId};
use mw_store::carts::{Abandon, Merge, Merged, check_version};
use mw_store::idempotency::StoredValue as _;
use mw_store::{Done, Refusal, Result};

use super::{active_of, foreign_of_owner, of_owner};
use crate::MongoStore;
use crate::documents::carts::{
    HISTORY_MS, StoredCart, changed_fields, history_entry, new_document, owner_key, projection,
};
use crate::documents::fields::whole;
use crate::documents::ids::to_bson_cart_id;
use crate::documents::times::to_bson_time;
use crate::driver::transaction::Stop;
use crate::shards::targeting::Operation;

/// The most active carts of one owner that are read where other programs opened them.
pub(super) const FOREIGN_MAX: usize = 100;

pub(super) async fn abandon(store: &MongoStore, command: &Abandon) -> Result<Done<Cart>> {
    let mut attempts = store.transaction();
    loop {
        let mut session = attempts.begin().await?;
        let result = attempts.run(abandon_in(store, &mut session, command)).await;
        if let Some(done) = attempts.end(session, result).await? {
            return Ok(done);
        }
    }
}

async fn abandon_in(
    store: &MongoStore,
    session: &mut ClientSession,
    command: &Abandon,
) -> Result<Done<Cart>, Stop> {
    let identity = command.identity.as_ref();
    if let Some(first) = store.replay(session, identity, command.now).await? {
        return Ok(first);
    }
    let active = store.active_in(session, &command.owner, command.now).await?;
    check_version(active.as_ref().map(|stored| &stored.cart), command.expected_version)?;
    let stored = active.ok_or(Refusal::CartEmpty)?;
    let mut cart = stored.cart.clone();
    cart.abandon(command.now, &command.lifetime);
    store.save_cart_in(session, Some(&stored), &cart, &BTreeMap::new(), &[]).await?;
    store.record(session, [ChangeRef::CartClosed(&cart)]).await?;
    store.store_outcome(session, identity, || cart.to_outcome()).await?;
    Ok(Done::first(cart))
}

pub(super) async fn merge(store: &MongoStore, command: &Merge) -> Result<Done<Merged>> {
    let mut attempts = store.transaction();
    loop {
        let mut session = attempts.begin().await?;
        let result = attempts.run(merge_once(store, &mut session, command)).await;
        if let Some(done) = attempts.end(session, result).await? {
            return Ok(done);
        }
    }
}

async fn merge_once(
    store: &MongoStore,
    session: &mut ClientSession,
    command: &Merge,
) -> Result<Done<Merged>, Stop> {
    let identity = command.identity.as_ref();
    if let Some(first) = store.replay(session, identity, command.now).await? {
        return Ok(first);
    }
    let parties = Parties {
        user_id: &command.user_id,
        session_id: &command.session_id,
        mode: command.mode,
        new_cart_id: command.new_cart_id,
        expected_version: command.expected_version,
        lifetime: &command.lifetime,
        now: command.now,
    };
    let merged = store.merge_in(session, parties).await?;
    store.store_outcome(session, identity, || merged.to_outcome()).await?;
    Ok(Done::first(merged))
}

/// The carts of a merge and its mode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parties<'a> {
    pub(crate) user_id: &'a UserId,
    pub(crate) session_id: &'a SessionId,
    pub(crate) mode: MergeMode,
    pub(crate) new_cart_id: CartId,
    /// The version of the user's cart.
    pub(crate) expected_version: Option<u64>,
    pub(crate) lifetime: &'a CartLifetime,
    pub(crate) now: Timestamp,
}

impl MongoStore {
    /// Merges the guest's cart into the user's.
    pub(crate) async fn merge_in(
        &self,
        session: &mut ClientSession,
        parties: Parties<'_>,
    ) -> Result<Merged, Stop> {
        let Parties { user_id, session_id, mode, new_cart_id, expected_version, lifetime, now } = parties;
        let owner = Owner::User(user_id.clone());
        let user = self.active_in(session, &owner, now).await?;
        check_version(user.as_ref().map(|stored| &stored.cart), expected_version)?;
        let guest = self.active_in(session, &Owner::Session(session_id.clone()), now).await?;
        let Some(guest) = guest.filter(|guest| !guest.cart.lines.is_empty()) else {
            return Ok(Merged { cart: user.map(|stored| stored.cart), changes: Vec::new() });
        };
        let mut cart = match &user {
            Some(stored) => stored.cart.clone(),
            None => self.open_cart_in(session, new_cart_id, &owner, now).await?,
        };
        let mut closed = guest.cart.clone();
        let changes = cart.merge_from(&mut closed, mode, now, lifetime);
        if !changes.is_empty() {
            let history = cart.merge_history(&changes);
            self.save_cart_in(session, user.as_ref(), &cart, &guest.categories, &history).await?;
        }
        self.save_cart_in(session, Some(&guest), &closed, &BTreeMap::new(), &[]).await?;
        let filled = (!changes.is_empty()).then_some(ChangeRef::Cart(&cart));
        self.record(session, filled.into_iter().chain([ChangeRef::CartClosed(&closed)])).await?;
        Ok(Merged { cart: Some(cart), changes })
    }

    /// The owner's active cart in a transaction: ours, or else the newest of another program.
    pub(crate) async fn active_in(
        &self,
        session: &mut ClientSession,
        owner: &Owner,
        now: Timestamp,
    ) -> Result<Option<StoredCart>, Stop> {
        let carts = &self.collections.carts;
        let find = carts.find_one(active_of(owner, now)).projection(projection()).session(&mut *session);
        if let Some(document) = find.await? {
            return Ok(self.read_cart(&document));
        }
        let mut filter = foreign_of_owner(owner);
        filter.insert("status", "active");
        let mut cursor = carts
            .find(filter)
            .projection(projection())
            .limit(i64::try_from(FOREIGN_MAX).unwrap_or(i64::MAX))
            .session(&mut *session)
            .await?;
        let mut documents = Vec::new();
        while let Some(document) = cursor.next(session).await {
            documents.push(document?);
        }
        Ok(self.newest_of(&documents, now))
    }

    /// A new cart, which is stored with its first change. Of two transactions that open one for an owner, one begins again.
    pub(crate) async fn open_cart_in(
        &self,
        session: &mut ClientSession,
        cart_id: CartId,
        owner: &Owner,
        now: Timestamp,
    ) -> Result<Cart, Stop> {
        let key = owner_key(owner);
        let known =
            self.collections.cart_owners.find_one(doc! { "_id": &key }).session(&mut *session).await?;
        let last_version = match &known {
            None => 0,
            Some(known) => self.last_version_in(session, owner, known).await?,
        };
        let mut filter = of_owner(owner);
        filter.insert("status", "active");
        // What is still active has expired: a process whose clock is behind must not find two.
        let close = doc! { "$set": { "status": "abandoned" } };
        self.collections.carts.update_many(filter, close).session(&mut *session).await?;
        let cart = Cart::open(cart_id, owner.clone(), now, last_version);
        let opened = doc! { "$set": {
            "cart_id": to_bson_cart_id(cart_id),
            "version": cart.version.cast_signed(),
            "purge_at": to_bson_time(now.plus_millis(2 * HISTORY_MS)),
        } };
        self.collections
            .cart_owners
            .update_one(doc! { "_id": key }, opened)
            .upsert(true)
            .session(session)
            .await?;
        Ok(cart)
    }

    /// The newest version of the owner's earlier carts that is known.
    async fn last_version_in(
        &self,
        session: &mut ClientSession,
        owner: &Owner,
        known: &Document,
    ) -> Result<u64, Stop> {
        let version = |document: &Document| document.get("version").and_then(whole).unwrap_or(0);
        let mut filter = of_owner(owner);
        if let Some(cart_id) = known.get("cart_id") {
            filter.insert("_id", cart_id.clone());
        }
        let find = self.collections.carts.find_one(filter).projection(doc! { "version": 1 });
        let last = find.session(session).await?;
        Ok(last.as_ref().map_or(0, version).max(version(known)))
    }

    /// Stores a changed cart: `before` as it was read in this transaction, `None` for a new one.
    pub(crate) async fn save_cart_in(
        &self,
        session: &mut ClientSession,
        before: Option<&StoredCart>,
        cart: &Cart,
        more_categories: &BTreeMap<ProductId, String>,
        changes: &[CartChange],
    ) -> Result<(), Stop> {
        let shape = self.options.shape;
        let carts = &self.collections.carts;
        let Some(before) = before else {
            self.counts.count(Operation::CartInsert);
            carts.insert_one(new_document(cart, shape, more_categories, changes)).session(session).await?;
            return Ok(());
        };
        let mut categories = more_categories.clone();
        categories.extend(before.categories.clone());
        let mut update = doc! { "$set": changed_fields(cart, shape, &categories) };
        if !changes.is_empty() {
            let entries: Vec<Document> = changes.iter().map(history_entry).collect();
            update.insert("$push", doc! { "history": { "$each": entries } });
        }
        carts.update_one(before.filter.clone(), update).session(session).await?;
        Ok(())
    }
}
