//! Reads fields of a document under the names that either shape gives them.

use mongodb::bson::{Bson, Document};
use mw_domain::{Money, Timestamp};

use super::Unreadable;
use super::money::read_money;
use super::times::read_time;

/// The value of the first of these names that is there and not null.
pub(crate) fn first<'d>(document: &'d Document, names: &[&str]) -> Option<&'d Bson> {
    names.iter().find_map(|name| document.get(*name).filter(|value| !matches!(value, Bson::Null)))
}

/// A required value. The first name is that of the error.
pub(crate) fn required<T>(
    document: &Document,
    names: &'static [&'static str],
    read: impl FnOnce(&Bson) -> Option<T>,
) -> Result<T, Unreadable> {
    optional(document, names, read)?.ok_or_else(|| Unreadable::missing(name(names)))
}

/// An optional value: absent, or one that can be read.
pub(crate) fn optional<T>(
    document: &Document,
    names: &'static [&'static str],
    read: impl FnOnce(&Bson) -> Option<T>,
) -> Result<Option<T>, Unreadable> {
    match first(document, names) {
        None => Ok(None),
        Some(value) => read(value).map(Some).ok_or_else(|| Unreadable::invalid(name(names))),
    }
}

fn name(names: &'static [&'static str]) -> &'static str {
    names.first().copied().unwrap_or_default()
}

pub(crate) fn money(document: &Document, names: &'static [&'static str]) -> Result<Money, Unreadable> {
    required(document, names, read_money)
}

pub(crate) fn time(document: &Document, names: &'static [&'static str]) -> Result<Timestamp, Unreadable> {
    required(document, names, read_time)
}

pub(crate) fn text(
    document: &Document,
    names: &'static [&'static str],
) -> Result<Option<String>, Unreadable> {
    optional(document, names, |value| value.as_str().map(str::to_owned))
}

/// A whole number of any numeric type that is not negative.
pub(crate) fn whole(value: &Bson) -> Option<u64> {
    match value {
        Bson::Int32(number) => u64::try_from(*number).ok(),
        Bson::Int64(number) => u64::try_from(*number).ok(),
        Bson::Double(number) => whole_double(*number),
        Bson::Decimal128(_) => {
            let minor = read_money(value)?.as_minor();
            (minor % 100 == 0).then(|| u64::try_from(minor / 100).ok()).flatten()
        }
        _ => None,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::float_cmp,
    reason = "the range is checked before the cast, and only exact whole numbers count"
)]
fn whole_double(number: f64) -> Option<u64> {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    ((0.0..=EXACT_MAX).contains(&number) && number.trunc() == number).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn whole_numbers_are_read_from_every_numeric_type() {
        let decimal = Bson::Decimal128("7".parse().unwrap());
        for value in [Bson::Int32(7), Bson::Int64(7), Bson::Double(7.0), decimal] {
            assert_eq!(whole(&value), Some(7), "{value:?}");
        }
        for value in
            [Bson::Int32(-1), Bson::Double(1.5), Bson::Double(f64::INFINITY), Bson::String("7".into())]
        {
            assert_eq!(whole(&value), None, "{value:?}");
        }
    }

    #[test]
    fn the_first_name_that_is_there_counts_and_null_is_absent() {
        let document = doc! { "a": Bson::Null, "b": 1 };
        assert_eq!(optional(&document, &["a", "b"], whole), Ok(Some(1)));
        assert_eq!(required(&document, &["c"], whole), Err(Unreadable::missing("c")));
        assert_eq!(optional(&doc! { "a": "x" }, &["a"], whole), Err(Unreadable::invalid("a")));
    }
}
