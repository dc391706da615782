//! The promise of carts.
//!
//! A line is its own cell of truth: changes of different lines never lose one another, of the same line the last wins,
//! a removed line does not come back. An expired cart is not there: a change after its expiry opens a new one.

use mw_domain::cart::{CartLifetime, MergeChange};
use mw_domain::{Cart, CartChange, CartId, MergeMode, Owner, ProductId, SessionId, Timestamp, UserId};

use crate::{Done, Once, Page, PageRequest, Result};

/// Adds a line or replaces its quantity; opens a cart under `new_cart_id` where there is none.
#[derive(Debug, Clone)]
pub struct SetLine {
    pub owner: Owner,
    pub product_id: ProductId,
    pub quantity: u32,
    pub new_cart_id: CartId,
    /// Refused with `CartVersion` unless the active cart has this version; 0 is "no cart".
    pub expected_version: Option<u64>,
    pub lifetime: CartLifetime,
    pub now: Timestamp,
}

#[derive(Debug, Clone)]
pub struct RemoveLine {
    pub owner: Owner,
    pub product_id: ProductId,
    pub expected_version: Option<u64>,
    pub lifetime: CartLifetime,
    pub now: Timestamp,
}

#[derive(Debug, Clone)]
pub struct Abandon {
    pub owner: Owner,
    pub expected_version: Option<u64>,
    pub lifetime: CartLifetime,
    pub now: Timestamp,
    pub once: Option<Once>,
}

/// Moves the guest's lines into the user's cart; opens that under `new_cart_id` where there is none.
#[derive(Debug, Clone)]
pub struct Merge {
    pub user_id: UserId,
    pub session_id: SessionId,
    pub mode: MergeMode,
    pub new_cart_id: CartId,
    /// Of the user's cart.
    pub expected_version: Option<u64>,
    pub lifetime: CartLifetime,
    pub now: Timestamp,
    pub once: Option<Once>,
}

/// The user's cart after a merge (`None` where neither had one) and what the merge changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    pub cart: Option<Cart>,
    pub changes: Vec<MergeChange>,
}

#[async_trait::async_trait]
pub trait Carts: Send + Sync {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>>;

    /// Refuses: `CartVersion`, `CartTooLarge`.
    async fn set_line(&self, command: SetLine) -> Result<Cart>;

    /// The cart without the line; unchanged where it has no such line, `None` where there is no cart.
    /// Refuses: `CartVersion`.
    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>>;

    /// Refuses: `CartVersion`, then `CartEmpty` where there is no active cart.
    async fn abandon(&self, command: Abandon) -> Result<Done<Cart>>;

    /// One atomic change of both carts, once per guest cart: whoever repeats it finds no guest cart and changes nothing.
    /// Refuses: `CartVersion`.
    async fn merge(&self, command: Merge) -> Result<Done<Merged>>;

    /// The owner's carts of every status, newest (by creation, then id: both falling) first, until they expire.
    async fn carts(&self, owner: &Owner, now: Timestamp, page: PageRequest) -> Result<Page<Cart>>;

    /// The owner's line changes of the last 30 days, newest first (by time, then version); those of one change by
    /// product id, rising.
    async fn cart_changes(
        &self,
        owner: &Owner,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<CartChange>>;

    /// Carts that are active and were last changed at or before `idle_since`, or abandoned and not merged. The order is the engine's.
    async fn idle_carts(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Cart>>;
}
