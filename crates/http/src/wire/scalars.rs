//! Times, amounts and ids as JSON strings, written without allocation: they are most of what a hot answer consists of.

use mw_domain::{Currency, Date, Money, Timestamp};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;
use uuid::Uuid;
use uuid::fmt::Hyphenated;

/// RFC 3339 in UTC with milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At(pub(crate) Timestamp);

/// The years that four digits can write.
const DAYS_WITH_FOUR_DIGITS: std::ops::Range<i32> = -719_528..2_932_897;

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let date = self.0.date();
        if !DAYS_WITH_FOUR_DIGITS.contains(&date.as_days()) {
            return serializer.collect_str(&self.0);
        }
        let (year, month, day) = date.civil();
        let clock_ms = self.0.as_millis().rem_euclid(86_400_000);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let [y @ .., b'-', m1, m2, _, d1, d2, _, h1, h2, _, n1, n2, _, s1, s2, _, f1, f2, f3, _] = &mut text
        else {
            return serializer.collect_str(&self.0);
        };
        write_digits(y, year.unsigned_abs());
        write_digits([m1, m2], u64::from(month));
        write_digits([d1, d2], u64::from(day));
        write_digits([h1, h2], (clock_ms / 3_600_000).unsigned_abs());
        write_digits([n1, n2], (clock_ms / 60_000 % 60).unsigned_abs());
        write_digits([s1, s2], (clock_ms / 1_000 % 60).unsigned_abs());
        write_digits([f1, f2, f3], (clock_ms % 1_000).unsigned_abs());
        serialize_ascii(&text, serializer)
    }
}

/// `YYYY-MM-DD`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Day(pub(crate) Date);

impl Serialize for Day {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A UUID in its usual form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Id(pub(crate) Uuid);

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut buffer = [0; Hyphenated::LENGTH];
        serializer.serialize_str(self.0.hyphenated().encode_lower(&mut buffer))
    }
}

/// A decimal with two fraction digits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount(pub(crate) Money);

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let minor = self.0.as_minor();
        let Ok(mut rest) = u64::try_from(minor) else { return serializer.collect_str(&self.0) };
        // A 64-bit number has at most 20 digits; the point makes 21.
        let mut text = [b'0'; 21];
        let mut start = text.len() - 4;
        for (place, byte) in text.iter_mut().rev().enumerate() {
            if place == 2 {
                *byte = b'.';
                continue;
            }
            if rest == 0 && place > 3 {
                break;
            }
            *byte = b'0' + digit(rest);
            rest /= 10;
            start = start.min(20 - place);
        }
        serialize_ascii(text.get(start..).unwrap_or_default(), serializer)
    }
}

/// An amount with the shop's currency.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = Money)]
pub(crate) struct MoneyView<'a> {
    #[schema(value_type = super::schema::Amount)]
    amount: Amount,
    #[schema(value_type = String, example = "RUB")]
    currency: &'a str,
}

impl<'a> MoneyView<'a> {
    pub(crate) fn new(amount: Money, currency: &'a Currency) -> Self {
        Self { amount: Amount(amount), currency: currency.as_str() }
    }
}

fn digit(number: u64) -> u8 {
    u8::try_from(number % 10).unwrap_or_default()
}

fn write_digits<'a>(
    places: impl IntoIterator<Item = &'a mut u8, IntoIter: DoubleEndedIterator>,
    mut number: u64,
) {
    for place in places.into_iter().rev() {
        *place = b'0' + digit(number);
        number /= 10;
    }
}

fn serialize_ascii<S: Serializer>(text: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(std::str::from_utf8(text).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_domain_writes_them() {
        let times = [0, 1, -1, 1_790_000_000_123, 951_782_399_999, -62_167_219_200_000, 253_402_300_799_999];
        for millis in
            times.into_iter().chain((0..5_000).map(|step| step * 86_399_999_777 - 60_000_000_000_000))
        {
            let at = Timestamp::from_millis(millis);
            assert_eq!(serde_json::to_string(&At(at)).unwrap(), format!("\"{at}\""), "{millis}");
        }
        let beyond = Timestamp::from_millis(i64::MAX / 2);
        assert_eq!(serde_json::to_string(&At(beyond)).unwrap(), format!("\"{beyond}\""));
    }

    #[test]
    fn amounts_are_written_as_the_domain_writes_them() {
        for minor in [0, 1, 9, 10, 99, 100, 101, 1_000, 199_990, 99_999_999_999_999, i64::MAX] {
            let money = Money::from_minor(minor);
            assert_eq!(serde_json::to_string(&Amount(money)).unwrap(), format!("\"{money}\""));
        }
    }
}
