//! Carts: the active cart of an owner, closed carts, the history of line changes, and the activity index of idle carts.
//!
//! Invariants: an owner has at most one active cart; it is one row with all lines, so one read finds it, and the single
//! writer loses no line by replacing the row. When the cart is closed, the row stays without lines until it expires: the versions
//! of the next cart go on from it. Row, history and index are written in one batch, so a crash leaves all of a
//! command or none.

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use mw_codec::changes::ChangeRef;
use mw_domain::limits::CART_HISTORY_DAYS;
use mw_domain::{Cart, CartChange, CartId, CartStatus, Owner, Timestamp};
use mw_store::carts::{Abandon, Carts, Merge, Merged, RemoveLine, SetLine, check_version};
use mw_store::{Done, Page, PageRequest, Position, Refusal, Result, StoreError};

use crate::EmbeddedStore;
use crate::idempotency;
use crate::keys::{self, Activity, Key};
use crate::long_reads::StoppableReader;
use crate::reader::{KeyRange, List, Reader, page};
use crate::tables::Table;
use crate::tx::Tx;

#[async_trait]
impl Carts for EmbeddedStore {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        self.options.partitions.read(Table::Carts.name(), owner.id());
        read_active(&self.snapshot(), owner, now)
    }

    async fn set_line(&self, command: SetLine) -> Result<Cart> {
        self.options.partitions.write(Table::Carts.name(), command.owner.id());
        self.write(move |tx| set_line(tx, command)).await
    }

    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>> {
        self.options.partitions.write(Table::Carts.name(), command.owner.id());
        self.write(move |tx| remove_line(tx, &command)).await
    }

    async fn abandon(&self, command: Abandon) -> Result<Done<Cart>> {
        self.write(move |tx| {
            let Abandon { owner, expected_version, lifetime, now, identity } = command;
            idempotency::run(tx, identity, now, |tx| {
                let mut cart =
                    expected(read_active(tx, &owner, now)?, expected_version)?.ok_or(Refusal::CartEmpty)?;
                let index_key = active_index_key(&cart);
                cart.abandon(now, &lifetime);
                close(tx, index_key, &cart);
                Ok(cart)
            })
        })
        .await
    }

    async fn merge(&self, command: Merge) -> Result<Done<Merged>> {
        self.write(move |tx| {
            let identity = command.identity.clone();
            idempotency::run(tx, identity, command.now, |tx| merge(tx, &command))
        })
        .await
    }

    async fn carts(&self, owner: &Owner, now: Timestamp, request: PageRequest) -> Result<Page<Cart>> {
        self.options.partitions.read(Table::ClosedCarts.name(), owner.id());
        let snapshot = self.snapshot();
        let list = List::of(keys::closed_carts(owner), |tail| tail.len() == keys::TIME_ID_LEN);
        let mut found = page(&snapshot, Table::ClosedCarts, &list, &request, &mut |_, value| {
            Ok(Some(mw_codec::carts::decode(value)?).filter(|cart| !cart.is_expired(now)))
        })?;
        if let Some(active) = read_active(&snapshot, owner, now)? {
            insert_active(&mut found, active, &request);
        }
        Ok(found)
    }

    async fn cart_changes(
        &self,
        owner: &Owner,
        now: Timestamp,
        request: PageRequest,
    ) -> Result<Page<CartChange>> {
        let list = List::of(keys::cart_changes(owner), keys::is_change_position);
        let oldest = now.minus_seconds(CART_HISTORY_DAYS * 86_400);
        page(&self.snapshot(), Table::CartChanges, &list, &request, &mut |_, value| {
            Ok(Some(mw_codec::carts::decode_change(value)?).filter(|change| change.at > oldest))
        })
    }

    async fn idle_carts(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        request: PageRequest,
    ) -> Result<Page<Cart>> {
        // Abandoned carts come first, then the active ones up to the hour of `idle_since`.
        let to = keys::activity_after_hour(Activity::Active, idle_since.hour());
        let list = List {
            prefix: Vec::new(),
            range: KeyRange { from: Vec::new(), to: Some(to) },
            reverse: false,
            is_position: |tail| keys::read_activity(tail).is_ok(),
        };
        let read = move |reader: &StoppableReader| {
            page(reader, Table::CartActivity, &list, &request, &mut |key, value| {
                let cart = read_indexed(reader, key, value, now)?;
                Ok(cart.filter(|cart| cart.is_idle(idle_since)))
            })
        };
        self.long_reads.run(Arc::new(self.snapshot()), read).await
    }
}

/// The active cart of an owner, unless it has expired.
pub(crate) fn read_active(reader: &dyn Reader, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
    Ok(read_last(reader, owner)?.filter(|cart| cart.status == CartStatus::Active && !cart.is_expired(now)))
}

/// The owner's last cart: the active one, also if it has expired, or the closed one without its lines.
pub(crate) fn read_last(reader: &dyn Reader, owner: &Owner) -> Result<Option<Cart>> {
    let row = reader.get(Table::Carts, &keys::active_cart(owner))?;
    Ok(row.map(|row| mw_codec::carts::decode(&row)).transpose()?)
}

/// A new cart, whose versions are above those of the owner's last.
fn open(reader: &dyn Reader, cart_id: CartId, owner: Owner, now: Timestamp) -> Result<Cart> {
    let last_version = read_last(reader, &owner)?.map_or(0, |last| last.version);
    Ok(Cart::open(cart_id, owner, now, last_version))
}

/// The cart of a row of the activity index; `None` if it has expired or is no longer in that state.
pub(crate) fn read_indexed(
    reader: &dyn Reader,
    key: &[u8],
    value: &[u8],
    now: Timestamp,
) -> Result<Option<Cart>> {
    let (half, _, owner, cart_id) = keys::read_activity(key)?;
    let cart = match half {
        Activity::Active => read_active(reader, &owner, now)?,
        Activity::Abandoned => read_closed(reader, &owner, cart_id, value)?,
    };
    Ok(cart.filter(|cart| cart.cart_id == cart_id && !cart.is_expired(now)))
}

/// A closed cart by its id; the value of its index row has its creation time, which completes its key.
fn read_closed(reader: &dyn Reader, owner: &Owner, cart_id: CartId, value: &[u8]) -> Result<Option<Cart>> {
    let Some(created_at) = keys::read_created_at(value)? else {
        return find_closed(reader, owner, cart_id);
    };
    let row = reader.get(Table::ClosedCarts, &keys::closed_cart_of(owner, created_at, cart_id))?;
    Ok(row.map(|row| mw_codec::carts::decode(&row)).transpose()?)
}

/// Looks for a closed cart among all of its owner: only for index rows of format 1, which have no value. They go when their
/// carts expire.
fn find_closed(reader: &dyn Reader, owner: &Owner, cart_id: CartId) -> Result<Option<Cart>> {
    let mut found = None;
    reader.scan(
        Table::ClosedCarts,
        &KeyRange::prefix(keys::closed_carts(owner)),
        false,
        &mut |key, value| {
            if !key.ends_with(&keys::descending_id(cart_id)) {
                return Ok(ControlFlow::Continue(()));
            }
            found = Some(mw_codec::carts::decode(value)?);
            Ok(ControlFlow::Break(()))
        },
    )?;
    Ok(found)
}

/// Inserts the active cart in order among the closed carts of a page.
fn insert_active(found: &mut Page<Cart>, active: Cart, request: &PageRequest) {
    let rank = keys::cart_rank(&active);
    if request.after.as_ref().is_some_and(|Position(after)| rank <= *after) {
        return;
    }
    let at = found.items.partition_point(|cart| keys::cart_rank(cart) < rank);
    let belongs_later = found.next.as_ref().is_some_and(|Position(last)| rank > *last);
    if belongs_later {
        return;
    }
    found.items.insert(at, active);
    // The last closed cart moves to the next page.
    if found.items.len() > request.limit {
        found.items.truncate(request.limit);
        found.next = found.items.last().map(|cart| Position(keys::cart_rank(cart)));
    }
}

/// Checks that the cart has the version that the caller expects.
pub(crate) fn expected(cart: Option<Cart>, version: Option<u64>) -> Result<Option<Cart>> {
    check_version(cart.as_ref(), version)?;
    Ok(cart)
}

/// Sets a line, in a new cart if the owner has no active one. Cart, index row and history are one batch.
fn set_line(tx: &mut Tx, command: SetLine) -> Result<Cart> {
    let SetLine { owner, product_id, quantity, new_cart_id, expected_version, lifetime, now } = command;
    let before = expected(read_active(tx, &owner, now)?, expected_version)?;
    let old_index_key = before.as_ref().map(active_index_key);
    let mut cart = before.map_or_else(|| open(tx, new_cart_id, owner, now), Ok)?;
    cart.set_line(product_id.clone(), quantity, now, &lifetime)?;
    save_changed(tx, old_index_key, &cart);
    save_change(tx, &cart.owner, &cart.line_history(&product_id));
    Ok(cart)
}

/// Removes a line. An absent line changes nothing and writes nothing.
fn remove_line(tx: &mut Tx, command: &RemoveLine) -> Result<Option<Cart>> {
    let RemoveLine { owner, product_id, expected_version, lifetime, now } = command;
    let Some(mut cart) = expected(read_active(tx, owner, *now)?, *expected_version)? else {
        return Ok(None);
    };
    let old_index_key = active_index_key(&cart);
    if cart.remove_line(product_id, *now, lifetime) {
        save_changed(tx, Some(old_index_key), &cart);
        save_change(tx, owner, &cart.line_history(product_id));
    }
    Ok(Some(cart))
}

/// Merges the guest's cart into the user's. Both carts change in one batch: a crash before the commit leaves the guest's cart open,
/// and the repeated request merges it; no crash leaves a line in both carts or in none.
pub(crate) fn merge(tx: &mut Tx, command: &Merge) -> Result<Merged> {
    let user = Owner::User(command.user_id.clone());
    let before = expected(read_active(tx, &user, command.now)?, command.expected_version)?;
    let guest = read_active(tx, &Owner::Session(command.session_id.clone()), command.now)?;
    let Some(mut guest) = guest.filter(|guest| !guest.lines.is_empty()) else {
        return Ok(Merged { cart: before, changes: Vec::new() });
    };
    let guest_index_key = active_index_key(&guest);
    let old_index_key = before.as_ref().map(active_index_key);
    let mut cart = before.map_or_else(|| open(tx, command.new_cart_id, user, command.now), Ok)?;
    let changes = cart.merge_from(&mut guest, command.mode, command.now, &command.lifetime);
    // Closed even if it adds nothing to the user's cart, so that a repeat finds no guest cart.
    close(tx, guest_index_key, &guest);
    if !changes.is_empty() {
        save_changed(tx, old_index_key, &cart);
        for change in cart.merge_history(&changes) {
            save_change(tx, &cart.owner, &change);
        }
    }
    Ok(Merged { cart: Some(cart), changes })
}

/// The key of an active cart in the activity index.
pub(crate) fn active_index_key(cart: &Cart) -> Key {
    keys::activity(Activity::Active, cart)
}

/// Writes an active cart that the running command has changed.
fn save_changed(tx: &mut Tx, old_index_key: Option<Key>, cart: &Cart) {
    save_active(tx, old_index_key, cart);
    tx.record_change(cart.updated_at, ChangeRef::Cart(cart));
}

/// Writes the active cart. Its index row changes only with the hour of its last change.
pub(crate) fn save_active(tx: &mut Tx, old_index_key: Option<Key>, cart: &Cart) {
    let index_key = active_index_key(cart);
    if old_index_key.as_ref() != Some(&index_key) {
        if let Some(old_index_key) = old_index_key {
            tx.remove(Table::CartActivity, old_index_key);
        }
        tx.put(Table::CartActivity, index_key, Vec::new());
    }
    tx.put(Table::Carts, keys::active_cart(&cart.owner), mw_codec::carts::encode(cart));
}

/// Moves a cart that is no longer active to the closed carts; `old_index_key` is its key while it was active.
pub(crate) fn close(tx: &mut Tx, old_index_key: Key, cart: &Cart) {
    save_last(tx, cart);
    tx.remove(Table::CartActivity, old_index_key);
    save_closed(tx, cart);
    tx.record_change(cart.updated_at, ChangeRef::CartClosed(cart));
}

/// Keeps the version of a closed cart in the place of the active one.
pub(crate) fn save_last(tx: &mut Tx, cart: &Cart) {
    let last = Cart { lines: Vec::new(), ..cart.clone() };
    tx.put(Table::Carts, keys::active_cart(&cart.owner), mw_codec::carts::encode(&last));
}

/// Writes a closed cart. Only an abandoned cart that was not merged counts as idle and has an index row.
pub(crate) fn save_closed(tx: &mut Tx, cart: &Cart) {
    if cart.status == CartStatus::Abandoned && cart.merged_into.is_none() {
        let created_at = keys::created_at(cart.created_at);
        tx.put(Table::CartActivity, keys::activity(Activity::Abandoned, cart), created_at);
    }
    tx.put(Table::ClosedCarts, keys::closed_cart(cart), mw_codec::carts::encode(cart));
}

/// Appends a line change to the owner's history, with the expiry after which compaction drops it.
pub(crate) fn save_change(tx: &mut Tx, owner: &Owner, change: &CartChange) {
    let expires_at = change.at.plus_seconds(CART_HISTORY_DAYS * 86_400);
    tx.put(
        Table::CartChanges,
        keys::cart_change(owner, change),
        mw_codec::carts::encode_change(change, expires_at),
    );
}

/// Removes rows of the activity index whose carts have expired, with the cart of an active one; returns how many.
pub(crate) fn purge(tx: &mut Tx, rows: &[Key], now: Timestamp) -> Result<usize> {
    let mut removed = 0;
    for key in rows {
        match tx.attempt(|tx| purge_row(tx, key, now)) {
            Ok(is_removed) => removed += usize::from(is_removed),
            // One error in the log, and the rest of the rows goes on.
            Err(error @ StoreError::Corrupt(_)) => {
                tracing::error!(%error, "purge expired cart: left as it is");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

fn purge_row(tx: &mut Tx, key: &Key, now: Timestamp) -> Result<bool> {
    let Some(value) = tx.get(Table::CartActivity, key)? else { return Ok(false) };
    if read_indexed(tx, key, &value, now)?.is_some() {
        return Ok(false);
    }
    // The cart's own row goes too, unless the owner has a newer cart by now.
    let (half, _, owner, cart_id) = keys::read_activity(key)?;
    if half == Activity::Active {
        let expired = read_last(tx, &owner)?;
        if expired.is_some_and(|cart| cart.cart_id == cart_id) {
            tx.remove(Table::Carts, keys::active_cart(&owner));
        }
    }
    tx.remove(Table::CartActivity, key.clone());
    Ok(true)
}
