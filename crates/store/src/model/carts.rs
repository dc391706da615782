//! Carts of the model: every cart ever opened, and every line change.

use mw_domain::carts::CartLifetime;
use mw_domain::{Cart, CartChange, CartId, CartStatus, MergeMode, Owner, SessionId, Timestamp, UserId};

use super::page::{Direction, SortKey, page};
use super::{Model, State, is_forgotten};
use crate::carts::{Abandon, Merge, Merged, RemoveLine, SetLine, check_version};
use crate::changes::Changed;
use crate::idempotency::StoredValue as _;
use crate::{Carts, Done, Page, PageRequest, Refusal, Result};

/// The carts of a merge and its mode.
pub(super) struct Parties {
    pub(super) user_id: UserId,
    pub(super) session_id: SessionId,
    pub(super) mode: MergeMode,
    pub(super) new_cart_id: CartId,
    pub(super) lifetime: CartLifetime,
    pub(super) now: Timestamp,
}

impl State {
    pub(super) fn active(&self, owner: &Owner, now: Timestamp) -> Option<Cart> {
        self.carts
            .values()
            .filter(|cart| cart.owner == *owner && cart.status == CartStatus::Active)
            .filter(|cart| !cart.is_expired(now))
            .max_by_key(|cart| (cart.created_at, cart.cart_id))
            .cloned()
    }

    /// A new cart, whose versions are above those of the owner's earlier carts.
    fn open(&self, cart_id: CartId, owner: Owner, now: Timestamp) -> Cart {
        let versions = self.carts.values().filter(|cart| cart.owner == owner).map(|cart| cart.version);
        let last_version = versions.max().unwrap_or(0);
        Cart::open(cart_id, owner, now, last_version)
    }

    pub(super) fn keep_cart(&mut self, cart: &Cart) {
        self.carts.insert(cart.cart_id, cart.clone());
    }

    /// Keeps an active cart that a command has changed.
    fn keep_changed(&mut self, cart: &Cart) {
        self.keep_cart(cart);
        self.record(cart.updated_at, Changed::Cart(cart.clone()));
    }

    /// Keeps a cart that a command has closed.
    pub(super) fn keep_closed(&mut self, cart: &Cart) {
        self.keep_cart(cart);
        self.record(cart.updated_at, Changed::CartClosed(cart.clone()));
    }

    pub(super) fn note(&mut self, owner: &Owner, changes: impl IntoIterator<Item = CartChange>) {
        for change in changes {
            let key = (owner.clone(), change.cart_id, change.version, change.product_id.clone());
            self.changes.insert(key, change);
        }
    }

    pub(super) fn merge(&mut self, parties: Parties) -> Merged {
        let Parties { user_id, session_id, mode, new_cart_id, lifetime, now } = parties;
        let owner = Owner::User(user_id);
        let user = self.active(&owner, now);
        let guest = self.active(&Owner::Session(session_id), now).filter(|guest| !guest.lines.is_empty());
        let Some(mut guest) = guest else {
            return Merged { cart: user, changes: Vec::new() };
        };
        let mut user = user.unwrap_or_else(|| self.open(new_cart_id, owner.clone(), now));
        let changes = user.merge_from(&mut guest, mode, now, &lifetime);
        self.keep_closed(&guest);
        if !changes.is_empty() {
            self.keep_changed(&user);
        }
        self.note(&owner, user.merge_history(&changes));
        Merged { cart: Some(user), changes }
    }
}

fn sort_key_of_cart(cart: &Cart) -> SortKey {
    (cart.created_at.as_millis(), cart.cart_id.to_string())
}

/// Newest first; the products of one change by id.
fn sort_key_of_change(change: &CartChange) -> SortKey {
    // A space sorts below every character of an id, so a shorter id comes first.
    let text = format!("{:020} {} {}", u64::MAX - change.version, change.product_id, change.cart_id);
    (-change.at.as_millis(), text)
}

#[async_trait::async_trait]
impl Carts for Model {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        Ok(self.state().active(owner, now))
    }

    async fn set_line(&self, command: SetLine) -> Result<Cart> {
        let mut state = self.state();
        let active = state.active(&command.owner, command.now);
        check_version(active.as_ref(), command.expected_version)?;
        let mut cart =
            active.unwrap_or_else(|| state.open(command.new_cart_id, command.owner.clone(), command.now));
        cart.set_line(command.product_id.clone(), command.quantity, command.now, &command.lifetime)?;
        state.keep_changed(&cart);
        state.note(&command.owner, [cart.line_history(&command.product_id)]);
        Ok(cart)
    }

    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>> {
        let mut state = self.state();
        let active = state.active(&command.owner, command.now);
        check_version(active.as_ref(), command.expected_version)?;
        let Some(mut cart) = active else {
            return Ok(None);
        };
        if cart.remove_line(&command.product_id, command.now, &command.lifetime) {
            state.keep_changed(&cart);
            state.note(&command.owner, [cart.line_history(&command.product_id)]);
        }
        Ok(Some(cart))
    }

    async fn abandon(&self, command: Abandon) -> Result<Done<Cart>> {
        let mut state = self.state();
        if let Some(first) = state.replay(command.identity.as_ref(), command.now)? {
            return Ok(first);
        }
        let active = state.active(&command.owner, command.now);
        check_version(active.as_ref(), command.expected_version)?;
        let mut cart = active.ok_or(Refusal::CartEmpty)?;
        cart.abandon(command.now, &command.lifetime);
        state.keep_closed(&cart);
        state.store_outcome(command.identity, || cart.to_outcome());
        Ok(Done::first(cart))
    }

    async fn merge(&self, command: Merge) -> Result<Done<Merged>> {
        let mut state = self.state();
        if let Some(first) = state.replay(command.identity.as_ref(), command.now)? {
            return Ok(first);
        }
        let user = state.active(&Owner::User(command.user_id.clone()), command.now);
        check_version(user.as_ref(), command.expected_version)?;
        let merged = state.merge(Parties {
            user_id: command.user_id,
            session_id: command.session_id,
            mode: command.mode,
            new_cart_id: command.new_cart_id,
            lifetime: command.lifetime,
            now: command.now,
        });
        state.store_outcome(command.identity, || merged.to_outcome());
        Ok(Done::first(merged))
    }

    async fn carts(&self, owner: &Owner, now: Timestamp, request: PageRequest) -> Result<Page<Cart>> {
        let state = self.state();
        let carts = state
            .carts
            .values()
            .filter(|cart| cart.owner == *owner && !cart.is_expired(now))
            .map(|cart| (sort_key_of_cart(cart), cart.clone()))
            .collect();
        page(carts, Direction::Falling, &request)
    }

    async fn cart_changes(
        &self,
        owner: &Owner,
        now: Timestamp,
        request: PageRequest,
    ) -> Result<Page<CartChange>> {
        let state = self.state();
        let changes = state
            .changes
            .iter()
            .filter(|((of, ..), change)| of == owner && !is_forgotten(change, now))
            .map(|(_, change)| (sort_key_of_change(change), change.clone()))
            .collect();
        page(changes, Direction::Rising, &request)
    }

    async fn idle_carts(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        request: PageRequest,
    ) -> Result<Page<Cart>> {
        let state = self.state();
        let idle = state
            .carts
            .values()
            .filter(|cart| !cart.is_expired(now) && cart.is_idle(idle_since))
            .map(|cart| (sort_key_of_cart(cart), cart.clone()))
            .collect();
        page(idle, Direction::Rising, &request)
    }
}
