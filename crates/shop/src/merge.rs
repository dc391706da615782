//! Bringing a guest's cart to the user, by itself or with a login.

use mw_domain::{MergeMode, SessionId, UserId};
use mw_store::carts::{Merge, Merged};
use mw_store::sessions::{LoggedIn, Login};
use mw_store::{Done, Once, Result};

use crate::Shop;

impl Shop {
    pub async fn merge(
        &self,
        user_id: UserId,
        session_id: SessionId,
        mode: MergeMode,
        expected_version: Option<u64>,
        once: Option<Once>,
    ) -> Result<Done<Merged>> {
        let command = Merge {
            user_id,
            session_id,
            mode,
            new_cart_id: self.ids.cart(),
            expected_version,
            lifetime: self.settings.carts,
            now: self.now(),
            once,
        };
        self.store.merge(command).await
    }

    pub async fn login(
        &self,
        session_id: SessionId,
        user_id: UserId,
        mode: MergeMode,
        once: Option<Once>,
    ) -> Result<Done<LoggedIn>> {
        let command = Login {
            session_id,
            user_id,
            mode,
            new_cart_id: self.ids.cart(),
            session_lifetime: self.settings.sessions,
            cart_lifetime: self.settings.carts,
            now: self.now(),
            once,
        };
        self.store.login(command).await
    }
}
