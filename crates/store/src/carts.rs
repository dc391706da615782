//! The contract of carts.
//!
//! Concurrent changes of different lines are all kept; of the same line the last wins; a removed line does not reappear.
//! No read returns an expired cart, and a change after the expiry opens a new one.

use mw_domain::carts::{CartLifetime, MergeChange};
use mw_domain::{Cart, CartChange, CartId, MergeMode, Owner, ProductId, SessionId, Timestamp, UserId};

use crate::{Done, Page, PageRequest, Refusal, RequestIdentity, Result};

/// Adds a line or replaces its quantity; opens a cart under `new_cart_id` if there is none.
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
    pub identity: Option<RequestIdentity>,
}

/// Moves the guest's lines into the user's cart; opens a cart under `new_cart_id` if the user has none.
#[derive(Debug, Clone)]
pub struct Merge {
    pub user_id: UserId,
    pub session_id: SessionId,
    pub mode: MergeMode,
    pub new_cart_id: CartId,
    /// The version of the user's cart.
    pub expected_version: Option<u64>,
    pub lifetime: CartLifetime,
    pub now: Timestamp,
    pub identity: Option<RequestIdentity>,
}

/// The user's cart after a merge (`None` if neither had one) and the changes of the merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    pub cart: Option<Cart>,
    pub changes: Vec<MergeChange>,
}

/// The rule of `If-Match`: refuses with `CartVersion` unless the active cart has the expected version. A missing cart has
/// version 0.
pub fn check_version(active: Option<&Cart>, expected: Option<u64>) -> Result<()> {
    let version = active.map_or(0, |cart| cart.version);
    match expected {
        Some(expected) if expected != version => {
            Err(Refusal::CartVersion { current: active.cloned() }.into())
        }
        _ => Ok(()),
    }
}

#[async_trait::async_trait]
pub trait Carts: Send + Sync {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>>;

    /// Refuses: `CartVersion`, `CartTooLarge`.
    async fn set_line(&self, command: SetLine) -> Result<Cart>;

    /// Returns the cart without the line: unchanged if it has no such line, `None` if there is no cart.
    /// Refuses: `CartVersion`.
    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>>;

    /// Refuses: `CartVersion`, then `CartEmpty` if there is no active cart.
    async fn abandon(&self, command: Abandon) -> Result<Done<Cart>>;

    /// One atomic change of both carts, once per guest cart: a repeated merge finds no guest cart and changes nothing.
    /// Refuses: `CartVersion`.
    async fn merge(&self, command: Merge) -> Result<Done<Merged>>;

    /// The owner's unexpired carts of every status, by creation time, then id, both descending.
    async fn carts(&self, owner: &Owner, now: Timestamp, page: PageRequest) -> Result<Page<Cart>>;

    /// The owner's line changes of the last 30 days, by time, then version, both descending; the lines of one change by
    /// product id, ascending.
    async fn cart_changes(
        &self,
        owner: &Owner,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<CartChange>>;

    /// The carts that are idle by [`Cart::is_idle`] and not expired. The engine chooses their order.
    async fn idle_carts(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Cart>>;
}
