//! Instants: a BSON date has milliseconds, as a [`Timestamp`] has.

use mongodb::bson::{Bson, DateTime};
use mw_domain::Timestamp;

pub(crate) fn to_bson_time(at: Timestamp) -> DateTime {
    DateTime::from_millis(at.as_millis())
}

/// A date; also text in RFC 3339, which some programs write.
pub(crate) fn read_time(value: &Bson) -> Option<Timestamp> {
    match value {
        Bson::DateTime(at) => Some(Timestamp::from_millis(at.timestamp_millis())),
        Bson::String(text) => Timestamp::parse(text).ok(),
        _ => None,
    }
}
