//! One operation, and an answer to it that can be compared.

use std::fmt::Debug;

use mw_domain::product::ProductPatch;
use mw_domain::{Product, ProductId, ReservationId, SessionId, Timestamp, UserId, ZoneStock};

use crate::carts::{Abandon, Merge, RemoveLine, SetLine};
use crate::orders::{PlaceOrder, SetStatus};
use crate::products::ImportProduct;
use crate::sessions::{CreateSession, Login, TouchSession};
use crate::stock::{Adjust, Reserve, SetOnHand};
use crate::{Done, Once, Refusal, Result, Store, StoreError};

/// Enough for all that can be due in a run, so that it does not matter which come first.
const DUE_MAX: usize = 100_000;
const CLEANED_MAX: usize = 7;
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
    DeleteProduct(ProductId),
    ImportProduct(ImportProduct),
    SetOnHand(SetOnHand),
    Adjust(Adjust),
    Reserve(Reserve),
    Confirm(ReservationId, Timestamp, Option<Once>),
    Release(ReservationId, Timestamp),
    PlaceOrder(PlaceOrder),
    SetStatus(SetStatus),
    CancelUnpaid(Timestamp),
    SettleExpired(Timestamp),
    Clean(Timestamp),
}

impl Step {
    pub(super) async fn apply(&self, store: &dyn Store) -> String {
        match self.clone() {
            Self::SetLine(command) => shown(store.set_line(command).await),
            Self::RemoveLine(command) => shown(store.remove_line(command).await),
            Self::Abandon(command) => shown(store.abandon(command).await),
            Self::Merge(command) => shown(store.merge(command).await),
            Self::CreateSession(command) => shown(store.create_session(command).await),
            Self::TouchSession(command) => shown(store.touch_session(command).await),
            Self::Login(command) => shown(store.login(command).await),
            Self::DeleteSession(id, now) => shown(store.delete_session(&id, now).await),
            Self::RevokeSessions(id, now) => shown(store.revoke_sessions(&id, now).await),
            Self::PutProduct(product) => shown(store.put_product(product).await),
            Self::PatchProduct(id, patch, now) => shown(store.patch_product(&id, patch, now).await),
            Self::DeleteProduct(id) => shown(store.delete_product(&id).await),
            Self::ImportProduct(command) => shown(store.import_product(command).await),
            Self::SetOnHand(command) => shown(store.set_on_hand(command).await.map(timeless)),
            Self::Adjust(command) => {
                let done = store.adjust(command).await;
                shown(done.map(|done| Done { value: timeless(done.value), replayed: done.replayed }))
            }
            Self::Reserve(command) => shown(store.reserve(command).await),
            Self::Confirm(id, now, once) => shown(store.confirm(id, now, once).await),
            Self::Release(id, now) => shown(store.release(id, now).await),
            Self::PlaceOrder(command) => shown(store.place_order(command).await),
            Self::SetStatus(command) => shown(store.set_status(command).await),
            Self::CancelUnpaid(now) => shown(store.cancel_unpaid(now, "not paid", DUE_MAX).await),
            // How many there were to settle or to clean depends on when the engine did it before.
            Self::SettleExpired(now) => shown(store.settle_expired(now, DUE_MAX).await.map(drop)),
            Self::Clean(now) => shown(store.clean(now, CLEANED_MAX).await.map(drop)),
        }
    }
}

/// The answer as text, without what is the engine's own.
pub(super) fn shown<T: Debug>(answer: Result<T>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("{REFUSED}{:?}", comparable(error)),
    }
}

/// Whether an answer tells of something done just now.
pub(super) fn is_done(answer: &str) -> bool {
    !answer.starts_with(REFUSED) && !answer.ends_with("replayed: true }")
}

/// A figure without its time, which also moves when an expired hold is settled, whenever that is.
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
