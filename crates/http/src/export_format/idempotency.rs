//! Idempotency keys and their stored outcomes.

use std::fmt::Write as _;

use mw_domain::carts::MergeChange;
use mw_domain::{
    Cart, IdempotencyKey, Order, OrderId, ProductId, Reservation, Session, Timestamp, ZoneStock,
};
use mw_store::carts::Merged;
use mw_store::idempotency::{Outcome, StoredOutcome};
use mw_store::sessions::LoggedIn;
use mw_store::{Fingerprint, RequestIdentity};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::form::{Form, form, list, one, optional};

impl Form for Fingerprint {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut digits = String::with_capacity(self.0.len() * 2);
        for byte in self.0 {
            write!(digits, "{byte:02x}").map_err(serde::ser::Error::custom)?;
        }
        serializer.serialize_str(&digits)
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        fingerprint(&digits).ok_or_else(|| D::Error::custom("a fingerprint is 64 hexadecimal digits"))
    }
}

fn fingerprint(digits: &str) -> Option<Fingerprint> {
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(Fingerprint(bytes))
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "RequestIdentity", deny_unknown_fields)]
struct OnceForm {
    #[serde(with = "one")]
    key: IdempotencyKey,
    #[serde(with = "one")]
    fingerprint: Fingerprint,
    #[serde(with = "one")]
    keep_until: Timestamp,
}
form!(RequestIdentity as OnceForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Merged", deny_unknown_fields)]
struct MergedForm {
    #[serde(with = "optional", default, skip_serializing_if = "Option::is_none")]
    cart: Option<Cart>,
    #[serde(with = "list")]
    changes: Vec<MergeChange>,
}
form!(Merged as MergedForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "LoggedIn", deny_unknown_fields)]
struct LoggedInForm {
    #[serde(with = "one")]
    session: Session,
    #[serde(with = "optional", default, skip_serializing_if = "Option::is_none")]
    cart: Option<Cart>,
}
form!(LoggedIn as LoggedInForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Outcome", rename_all = "snake_case", deny_unknown_fields)]
enum OutcomeForm {
    Cart(#[serde(with = "one")] Cart),
    Merged(#[serde(with = "one")] Merged),
    Session(#[serde(with = "one")] Session),
    LoggedIn(#[serde(with = "one")] LoggedIn),
    Stock(#[serde(with = "one")] ZoneStock),
    Reservation(#[serde(with = "one")] Reservation),
    Placed(#[serde(with = "one")] OrderId),
    Order(#[serde(with = "one")] Order),
    Imported {
        #[serde(with = "one")]
        product_id: ProductId,
        created: bool,
    },
}
form!(Outcome as OutcomeForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "StoredOutcome", deny_unknown_fields)]
struct StoredOutcomeForm {
    #[serde(with = "one")]
    identity: RequestIdentity,
    #[serde(with = "one")]
    outcome: Outcome,
}
form!(StoredOutcome as StoredOutcomeForm);
