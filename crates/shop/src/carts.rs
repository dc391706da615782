//! Carts: lines, abandoning, merging a guest's cart into the user's, and the lists of an owner.

use mw_domain::{Cart, CartChange, MergeMode, Owner, ProductId, SessionId, UserId};
use mw_store::carts::{Abandon, Merge, Merged, RemoveLine, SetLine};
use mw_store::{Done, Page, PageRequest, Result};

use crate::{KeyedRequest, Shop};

impl Shop {
    pub async fn active_cart(&self, owner: &Owner) -> Result<Option<Cart>> {
        self.store.active_cart(owner, self.now()).await
    }

    /// Adds the line or replaces its quantity; opens a cart where there is none.
    pub async fn set_line(
        &self,
        owner: Owner,
        product_id: ProductId,
        quantity: u32,
        expected_version: Option<u64>,
    ) -> Result<Cart> {
        let command = SetLine {
            owner,
            product_id,
            quantity,
            new_cart_id: self.ids.cart(),
            expected_version,
            lifetime: self.settings.carts,
            now: self.now(),
        };
        self.store.set_line(command).await
    }

    /// The cart without the line; `None` where the owner has no cart.
    pub async fn remove_line(
        &self,
        owner: Owner,
        product_id: ProductId,
        expected_version: Option<u64>,
    ) -> Result<Option<Cart>> {
        let lifetime = self.settings.carts;
        let command = RemoveLine { owner, product_id, expected_version, lifetime, now: self.now() };
        self.store.remove_line(command).await
    }

    pub async fn abandon_cart(
        &self,
        owner: Owner,
        expected_version: Option<u64>,
        request: Option<KeyedRequest>,
    ) -> Result<Done<Cart>> {
        let now = self.now();
        let identity = request.map(|request| request.identity(now));
        let command = Abandon { owner, expected_version, lifetime: self.settings.carts, now, identity };
        self.store.abandon(command).await
    }

    /// Moves the guest's lines into the user's cart; `expected_version` is of the user's cart.
    pub async fn merge_carts(
        &self,
        user_id: UserId,
        session_id: SessionId,
        mode: MergeMode,
        expected_version: Option<u64>,
        request: Option<KeyedRequest>,
    ) -> Result<Done<Merged>> {
        let now = self.now();
        let command = Merge {
            user_id,
            session_id,
            mode,
            new_cart_id: self.ids.cart(),
            expected_version,
            lifetime: self.settings.carts,
            now,
            identity: request.map(|request| request.identity(now)),
        };
        self.store.merge(command).await
    }

    /// The owner's carts of every status, newest first, until they expire.
    pub async fn carts(&self, owner: &Owner, page: PageRequest) -> Result<Page<Cart>> {
        self.store.carts(owner, self.now(), page).await
    }

    /// The owner's line changes of 30 days, newest first.
    pub async fn cart_changes(&self, owner: &Owner, page: PageRequest) -> Result<Page<CartChange>> {
        self.store.cart_changes(owner, self.now(), page).await
    }
}
