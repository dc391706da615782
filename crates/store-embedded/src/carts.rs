//! Carts. The active cart of an owner is one row with its lines, so that reading it is one look; closed carts move to
//! their own table. The writer is alone, so changing a row whole loses no line.

use async_trait::async_trait;
use mw_domain::limits::CART_HISTORY_DAYS;
use mw_domain::{Cart, CartChange, CartStatus, Owner, Timestamp};
use mw_store::carts::{Abandon, Carts, Merge, Merged, RemoveLine, SetLine};
use mw_store::{Done, Page, PageRequest, Position, Refusal, Result};

use crate::EmbeddedStore;
use crate::keys::{self, Activity, Key};
use crate::once;
use crate::tables::Table;
use crate::tx::Tx;
use crate::view::{List, Look, Span, page};

#[async_trait]
impl Carts for EmbeddedStore {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        read_active(&self.view(), owner, now)
    }

    async fn set_line(&self, command: SetLine) -> Result<Cart> {
        self.write(command.now, move |tx| set_line(tx, command)).await
    }

    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>> {
        self.write(command.now, move |tx| remove_line(tx, &command)).await
    }

    async fn abandon(&self, command: Abandon) -> Result<Done<Cart>> {
        self.write(command.now, move |tx| {
            let Abandon { owner, expected_version, lifetime, now, once } = command;
            once::run(tx, once, now, |tx| {
                let mut cart =
                    expected(read_active(tx, &owner, now)?, expected_version)?.ok_or(Refusal::CartEmpty)?;
                let place = active_place(&cart);
                cart.abandon(now, &lifetime);
                close(tx, place, &cart);
                Ok(cart)
            })
        })
        .await
    }

    async fn merge(&self, command: Merge) -> Result<Done<Merged>> {
        self.write(command.now, move |tx| {
            let once = command.once.clone();
            once::run(tx, once, command.now, |tx| merge(tx, &command))
        })
        .await
    }

    async fn carts(&self, owner: &Owner, now: Timestamp, request: PageRequest) -> Result<Page<Cart>> {
        let view = self.view();
        let list = List::of(keys::closed_carts(owner), |tail| tail.len() == keys::TIME_ID_LEN);
        let mut found = page(&view, Table::ClosedCarts, &list, &request, &mut |_, value| {
            Ok(Some(mw_codec::carts::decode(value)?).filter(|cart| !cart.is_expired(now)))
        })?;
        if let Some(active) = read_active(&view, owner, now)? {
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
        page(&self.view(), Table::CartChanges, &list, &request, &mut |_, value| {
            Ok(Some(mw_codec::carts::decode_change(value)?).filter(|change| change.at > oldest))
        })
    }

    async fn idle_carts(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        request: PageRequest,
    ) -> Result<Page<Cart>> {
        let view = self.view();
        // Abandoned carts come first, then the active ones up to the hour in question.
        let to = keys::activity_after_hour(Activity::Active, idle_since.hour());
        let list = List {
            prefix: Vec::new(),
            span: Span { from: Vec::new(), to: Some(to) },
            reverse: false,
            is_position: |tail| keys::read_activity(tail).is_ok(),
        };
        page(&view, Table::CartActivity, &list, &request, &mut |key, _| {
            let cart = read_indexed(&view, key, now)?;
            Ok(cart.filter(|cart| match cart.status {
                CartStatus::Active => cart.updated_at <= idle_since,
                CartStatus::Abandoned => cart.merged_into.is_none(),
                CartStatus::Ordered => false,
            }))
        })
    }
}

pub(crate) fn read_active(look: &dyn Look, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
    let Some(row) = look.get(Table::Carts, &keys::active_cart(owner))? else {
        return Ok(None);
    };
    let cart = mw_codec::carts::decode(&row)?;
    Ok(Some(cart).filter(|cart| !cart.is_expired(now)))
}

/// The cart that a row of the activity index stands for; `None` where it has expired or moved on.
fn read_indexed(look: &dyn Look, key: &[u8], now: Timestamp) -> Result<Option<Cart>> {
    let (half, _, owner, cart_id) = keys::read_activity(key)?;
    let cart = match half {
        Activity::Active => read_active(look, &owner, now)?,
        Activity::Abandoned => {
            let mut found = None;
            look.scan(
                Table::ClosedCarts,
                &Span::prefix(keys::closed_carts(&owner)),
                false,
                &mut |_, value| {
                    let cart = mw_codec::carts::decode(value)?;
                    Ok(if cart.cart_id == cart_id {
                        found = Some(cart);
                        std::ops::ControlFlow::Break(())
                    } else {
                        std::ops::ControlFlow::Continue(())
                    })
                },
            )?;
            found.filter(|cart| !cart.is_expired(now))
        }
    };
    Ok(cart.filter(|cart| cart.cart_id == cart_id))
}

/// Puts the active cart where it belongs among the closed ones of a page.
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
    if found.items.len() > request.limit {
        found.items.truncate(request.limit);
        found.next = found.items.last().map(|cart| Position(keys::cart_rank(cart)));
    }
}

/// The cart, provided that it has the version the caller expects.
pub(crate) fn expected(cart: Option<Cart>, version: Option<u64>) -> Result<Option<Cart>> {
    match version {
        Some(version) if cart.as_ref().map_or(0, |cart| cart.version) != version => {
            Err(Refusal::CartVersion { current: cart }.into())
        }
        _ => Ok(cart),
    }
}

fn set_line(tx: &mut Tx, command: SetLine) -> Result<Cart> {
    let SetLine { owner, product_id, quantity, new_cart_id, expected_version, lifetime, now } = command;
    let before = expected(read_active(tx, &owner, now)?, expected_version)?;
    let place = before.as_ref().map(active_place);
    let mut cart = before.unwrap_or_else(|| Cart::open(new_cart_id, owner, now));
    cart.set_line(product_id.clone(), quantity, now, &lifetime)?;
    save_active(tx, place, &cart);
    save_change(tx, &cart.owner, &cart.line_history(&product_id));
    Ok(cart)
}

fn remove_line(tx: &mut Tx, command: &RemoveLine) -> Result<Option<Cart>> {
    let RemoveLine { owner, product_id, expected_version, lifetime, now } = command;
    let Some(mut cart) = expected(read_active(tx, owner, *now)?, *expected_version)? else {
        return Ok(None);
    };
    let place = active_place(&cart);
    if cart.remove_line(product_id, *now, lifetime) {
        save_active(tx, Some(place), &cart);
        save_change(tx, owner, &cart.line_history(product_id));
    }
    Ok(Some(cart))
}

pub(crate) fn merge(tx: &mut Tx, command: &Merge) -> Result<Merged> {
    let user = Owner::User(command.user_id.clone());
    let before = expected(read_active(tx, &user, command.now)?, command.expected_version)?;
    let guest = read_active(tx, &Owner::Session(command.session_id.clone()), command.now)?;
    let Some(mut guest) = guest.filter(|guest| !guest.lines.is_empty()) else {
        return Ok(Merged { cart: before, changes: Vec::new() });
    };
    let guest_place = active_place(&guest);
    let place = before.as_ref().map(active_place);
    let mut cart = before.unwrap_or_else(|| Cart::open(command.new_cart_id, user, command.now));
    let changes = cart.take_in(&mut guest, command.mode, command.now, &command.lifetime);
    close(tx, guest_place, &guest);
    if !changes.is_empty() {
        save_active(tx, place, &cart);
        for change in cart.merge_history(&changes) {
            save_change(tx, &cart.owner, &change);
        }
    }
    Ok(Merged { cart: Some(cart), changes })
}

/// Where an active cart stands in the activity index.
pub(crate) fn active_place(cart: &Cart) -> Key {
    keys::activity(Activity::Active, cart)
}

/// Writes the active cart; its place in the activity index moves only when the hour does.
pub(crate) fn save_active(tx: &mut Tx, old_place: Option<Key>, cart: &Cart) {
    let place = active_place(cart);
    if old_place.as_ref() != Some(&place) {
        if let Some(old_place) = old_place {
            tx.remove(Table::CartActivity, old_place);
        }
        tx.put(Table::CartActivity, place, Vec::new());
    }
    tx.put(Table::Carts, keys::active_cart(&cart.owner), mw_codec::carts::encode(cart));
}

/// Moves a cart that is no longer active to the closed ones; `old_place` is where it stood while it was.
pub(crate) fn close(tx: &mut Tx, old_place: Key, cart: &Cart) {
    tx.remove(Table::Carts, keys::active_cart(&cart.owner));
    tx.remove(Table::CartActivity, old_place);
    save_closed(tx, cart);
}

pub(crate) fn save_closed(tx: &mut Tx, cart: &Cart) {
    if cart.status == CartStatus::Abandoned && cart.merged_into.is_none() {
        tx.put(Table::CartActivity, keys::activity(Activity::Abandoned, cart), Vec::new());
    }
    tx.put(Table::ClosedCarts, keys::closed_cart(cart), mw_codec::carts::encode(cart));
}

pub(crate) fn save_change(tx: &mut Tx, owner: &Owner, change: &CartChange) {
    let expires_at = change.at.plus_seconds(CART_HISTORY_DAYS * 86_400);
    tx.put(
        Table::CartChanges,
        keys::cart_change(owner, change),
        mw_codec::carts::encode_change(change, expires_at),
    );
}

/// Removes what the activity index still says of carts that have expired, looking at rows from `from` on. Answers how
/// many were removed and where to go on; `None` at the end.
pub(crate) fn clean(
    tx: &mut Tx,
    from: Vec<u8>,
    now: Timestamp,
    limit: usize,
) -> Result<(usize, Option<Vec<u8>>)> {
    /// Rows looked at for each that may be removed.
    const LOOKS_PER_REMOVAL: usize = 4;
    let mut rows: Vec<Vec<u8>> = Vec::new();
    tx.scan(Table::CartActivity, &Span { from, to: None }, false, &mut |key, _| {
        rows.push(key.to_vec());
        Ok(if rows.len() >= limit * LOOKS_PER_REMOVAL {
            std::ops::ControlFlow::Break(())
        } else {
            std::ops::ControlFlow::Continue(())
        })
    })?;
    let next = if rows.len() >= limit * LOOKS_PER_REMOVAL {
        rows.last().cloned().map(keys::just_after)
    } else {
        None
    };
    let mut removed = 0;
    for key in rows {
        if removed == limit {
            return Ok((removed, Some(key)));
        }
        if read_indexed(tx, &key, now)?.is_none() {
            let (half, _, owner, cart_id) = keys::read_activity(&key)?;
            let expired = tx.get(Table::Carts, &keys::active_cart(&owner))?;
            let expired = expired.map(|row| mw_codec::carts::decode(&row)).transpose()?;
            if half == Activity::Active && expired.is_some_and(|cart| cart.cart_id == cart_id) {
                tx.remove(Table::Carts, keys::active_cart(&owner));
            }
            tx.remove(Table::CartActivity, key);
            removed += 1;
        }
    }
    Ok((removed, next))
}
