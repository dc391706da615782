//! One operation, and its result in comparable form.

use std::fmt::Debug;

use mw_domain::products::ProductPatch;
use mw_domain::{Owner, Product, ProductId, ReservationId, SessionId, Timestamp, UserId, ZoneStock};

use crate::carts::{Abandon, Merge, RemoveLine, SetLine};
use crate::orders::{Basket, PlaceOrder, SetStatus};
use crate::products::ImportProduct;
use crate::sessions::{CreateSession, Login, TouchSession};
use crate::stock::{Adjust, Reserve, SetOnHand};
use crate::{Done, Refusal, RequestIdentity, Result, Store, StoreError};

/// Enough for every timer of a run, so that the order of timers does not matter.
const DUE_MAX: usize = 100_000;
const PURGED_MAX: usize = 7;
/// Stands for a version that the cart has not; higher ones stand for the one that it has. 0 is "no cart".
const STALE_VERSION: u64 = 1;
const ORDER_VERSION_DIGITS: usize = 6;
const REFUSED: &str = "refused: ";

#[derive(Debug, Clone)]
pub(super) enum Step {
    SetLine(SetLine),
    RemoveLine(RemoveLine),
    Abandon(Abandon),
    Merge(Merge),
    CreateSession(CreateSession),
    TouchSession(TouchSession),
    Login(Login),
    DeleteSession(SessionId, Timestamp),
    RevokeSessions(UserId, Timestamp),
    PutProduct(Product),
    PatchProduct(ProductId, ProductPatch, Timestamp),
    DeleteProduct(ProductId, Timestamp),
    ImportProduct(ImportProduct),
    SetOnHand(SetOnHand),
    Adjust(Adjust),
    Reserve(Reserve),
    Confirm(ReservationId, Timestamp, Option<RequestIdentity>),
    Release(ReservationId, Timestamp),
    PlaceOrder(PlaceOrder),
    SetStatus(SetStatus),
    CancelUnpaid(Timestamp),
    ExpireReservations(Timestamp),
    PurgeExpired(Timestamp),
}

impl Step {
    /// The step with the versions of this store: the engine chooses the versions of carts.
    async fn resolved(&self, store: &dyn Store) -> Self {
        let mut step = self.clone();
        let (owner, expected_version, now) = match &mut step {
            Self::SetLine(SetLine { owner, expected_version, now, .. })
            | Self::RemoveLine(RemoveLine { owner, expected_version, now, .. })
            | Self::Abandon(Abandon { owner, expected_version, now, .. }) => {
                (owner.clone(), expected_version, *now)
            }
            Self::Merge(Merge { user_id, expected_version, now, .. }) => {
                (Owner::User(user_id.clone()), expected_version, *now)
            }
            Self::PlaceOrder(PlaceOrder {
                user_id,
                basket: Basket::Cart { expected_version, .. },
                now,
                ..
            }) => (Owner::User(user_id.clone()), expected_version, *now),
            _ => return step,
        };
        if let Some(STALE_VERSION..) = expected_version {
            let cart = store.active_cart(&owner, now).await.unwrap();
            let current = cart.map(|cart| cart.version);
            let wanted = if *expected_version == Some(STALE_VERSION) { None } else { current };
            *expected_version = Some(wanted.unwrap_or(STALE_VERSION));
        }
        step
    }

    pub(super) async fn apply(&self, store: &dyn Store) -> String {
        match self.resolved(store).await {
            Self::SetLine(command) => describe(store.set_line(command).await),
            Self::RemoveLine(command) => describe(store.remove_line(command).await),
            Self::Abandon(command) => describe(store.abandon(command).await),
            Self::Merge(command) => describe(store.merge(command).await),
            Self::CreateSession(command) => describe(store.create_session(command).await),
            Self::TouchSession(command) => describe(store.touch_session(command).await),
            Self::Login(command) => describe(store.login(command).await),
            Self::DeleteSession(id, now) => describe(store.delete_session(&id, now).await),
            Self::RevokeSessions(id, now) => describe(store.revoke_sessions(&id, now).await),
            Self::PutProduct(product) => describe(store.put_product(product).await),
            Self::PatchProduct(id, patch, now) => describe(store.patch_product(&id, patch, now).await),
            Self::DeleteProduct(id, now) => describe(store.delete_product(&id, now).await),
            Self::ImportProduct(command) => describe(store.import_product(command).await),
            Self::SetOnHand(command) => describe(store.set_on_hand(command).await.map(timeless)),
            Self::Adjust(command) => {
                let done = store.adjust(command).await;
                describe(done.map(|done| Done { value: timeless(done.value), replayed: done.replayed }))
            }
            Self::Reserve(command) => describe(store.reserve(command).await),
            Self::Confirm(id, now, identity) => describe(store.confirm(id, now, identity).await),
            Self::Release(id, now) => describe(store.release(id, now).await),
            Self::PlaceOrder(command) => describe(store.place_order(command).await),
            Self::SetStatus(command) => describe(store.set_status(command).await),
            Self::CancelUnpaid(now) => describe(store.cancel_unpaid(now, "not paid", DUE_MAX).await),
            // The counts are not compared: they depend on when the engine expired or purged rows by itself.
            Self::ExpireReservations(now) => {
                describe(store.expire_reservations(now, DUE_MAX).await.map(drop))
            }
            Self::PurgeExpired(now) => describe(store.purge_expired(now, PURGED_MAX).await.map(drop)),
        }
    }
}

/// The result as text, without the parts that an engine may choose.
pub(super) fn describe<T: Debug>(result: Result<T>) -> String {
    match result {
        Ok(value) => without_cart_versions(&format!("{value:?}")),
        Err(error) => format!("{REFUSED}{}", without_cart_versions(&format!("{:?}", comparable(error)))),
    }
}

/// The text without the versions of carts, which the engine chooses. Those of orders are small and stay.
pub(super) fn without_cart_versions(text: &str) -> String {
    const VERSION: &str = "version: ";
    let mut parts = text.split(VERSION);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(part.len());
        let (version, rest) = part.split_at(digits);
        let is_carts = version.len() > ORDER_VERSION_DIGITS;
        for part in [VERSION, if is_carts { "_" } else { version }, rest] {
            result.push_str(part);
        }
    }
    result
}

/// Whether a result is of a command that was applied now, not refused and not replayed.
pub(super) fn is_done(result: &str) -> bool {
    !result.starts_with(REFUSED) && !result.ends_with("replayed: true }")
}

/// A stock level without `updated_at`, which also moves when the engine closes an expired hold.
pub(super) fn timeless(stock: ZoneStock) -> ZoneStock {
    ZoneStock { updated_at: Timestamp::EPOCH, ..stock }
}

fn comparable(error: StoreError) -> StoreError {
    let StoreError::Refused(refusal) = error else {
        return error;
    };
    match *refusal {
        Refusal::StockChanged { current } => Refusal::StockChanged { current: timeless(current) },
        Refusal::StockBelowReserved { current } => Refusal::StockBelowReserved { current: timeless(current) },
        Refusal::InvalidField { field, .. } => Refusal::InvalidField { field, detail: String::new() },
        other => other,
    }
    .into()
}
