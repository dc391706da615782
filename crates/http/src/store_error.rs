//! The mapping of store errors: the one place where a [`StoreError`] becomes a [`Problem`].

use mw_domain::Currency;
use mw_store::{Refusal, StoreError};

use crate::app::App;
use crate::error::{Code, Problem};
use crate::wire::carts::CartView;
use crate::wire::orders::OrderView;
use crate::wire::scalars::MoneyView;
use crate::wire::stock::{ShortageView, ZoneStockView};

pub(crate) trait OrProblem<T> {
    fn or_problem(self, app: &App) -> Result<T, Problem>;
}

impl<T> OrProblem<T> for Result<T, StoreError> {
    fn or_problem(self, app: &App) -> Result<T, Problem> {
        self.map_err(|error| problem(&error, app.shop.currency()))
    }
}

pub(crate) fn problem(error: &StoreError, currency: Currency) -> Problem {
    match error {
        StoreError::Refused(refusal) => refused(refusal, currency),
        StoreError::Unavailable(_) => Problem::new(
            Code::StoreUnavailable,
            "storage is unavailable; nothing was done, send the request again later",
        )
        .caused_by(error),
        // Not for this client to cure: it learns why, and tries another process or waits for the operator.
        StoreError::NotServing(reason) => {
            Problem::new(Code::StoreUnavailable, format!("{reason}; nothing was done"))
        }
        StoreError::Overloaded => Problem::new(
            Code::Overloaded,
            "too many writes are waiting; nothing was done, send the request again later",
        ),
        StoreError::Ambiguous(_) => Problem::new(
            Code::OutcomeUnknown,
            "the change may have been made; repeat it with the same Idempotency-Key, or read what is stored",
        )
        .caused_by(error),
        StoreError::Corrupt(_) => Problem::internal(error),
    }
}

fn refused(refusal: &Refusal, currency: Currency) -> Problem {
    let plain = |code| Problem::new(code, refusal.to_string());
    match refusal {
        Refusal::InvalidCursor => plain(Code::InvalidCursor),
        Refusal::CursorExpired => Problem::new(
            Code::CursorExpired,
            "changes after the cursor are no longer kept; read everything anew, then start with after=now",
        ),
        Refusal::InvalidField { field, detail } => Problem::field(field, detail),
        Refusal::ProductNotFound(product_id) => {
            plain(Code::ProductNotFound).with("product_id", product_id.as_str())
        }
        Refusal::OrderNotFound(_) => plain(Code::OrderNotFound),
        Refusal::ReservationNotFound => plain(Code::ReservationNotFound),
        Refusal::SessionNotFound => plain(Code::SessionNotFound),
        Refusal::OutOfStock(shortages) => {
            let shortages: Vec<_> = shortages.iter().map(ShortageView::from).collect();
            plain(Code::OutOfStock).with("shortages", shortages)
        }
        Refusal::PriceChanged { current } => {
            plain(Code::PriceChanged).with("current", MoneyView::new(*current, &currency))
        }
        Refusal::CartEmpty => plain(Code::CartEmpty),
        Refusal::CartTooLarge => plain(Code::CartTooLarge),
        Refusal::StockChanged { current } => {
            plain(Code::StockChanged).with("current", ZoneStockView::from(current))
        }
        Refusal::StockBelowReserved { current } => {
            plain(Code::StockBelowReserved).with("current", ZoneStockView::from(current))
        }
        Refusal::IllegalTransition(illegal) => {
            plain(Code::IllegalTransition).with("from", illegal.from.as_str()).with("to", illegal.to.as_str())
        }
        Refusal::ReservationClosed { status } => {
            plain(Code::ReservationClosed).with("reservation_status", status.as_str())
        }
        Refusal::SessionBound => plain(Code::SessionBound),
        Refusal::CartVersion { current } => {
            let current = current.as_ref().map_or_else(|| CartView::none(None), CartView::from);
            plain(Code::VersionMismatch).with("current", current)
        }
        Refusal::OrderVersion { current } => {
            plain(Code::VersionMismatch).with("current", OrderView::new(current, &currency))
        }
        Refusal::KeyReused => plain(Code::IdempotencyKeyReused),
        Refusal::PartitionNotFound(_) => plain(Code::PartitionNotFound),
        Refusal::RepairNotFound(_) => plain(Code::RepairNotFound),
    }
}
