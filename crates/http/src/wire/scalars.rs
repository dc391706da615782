//! Times, amounts and ids as JSON strings, written without allocation: they are most of a hot response.

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
        let year = u32::try_from(year).unwrap_or_default();
        let clock_ms = u32::try_from(self.0.as_millis().rem_euclid(86_400_000)).unwrap_or_default();
        let (seconds, millis) = (clock_ms / 1_000, clock_ms % 1_000);
        let ([y1, y2], [y3, y4]) = (pair(year / 100), pair(year % 100));
        let ([m1, m2], [d1, d2]) = (pair(month), pair(day));
        let ([h1, h2], [n1, n2], [s1, s2]) =
            (pair(seconds / 3_600), pair(seconds / 60 % 60), pair(seconds % 60));
        let ([_, f1], [f2, f3]) = (pair(millis / 100), pair(millis % 100));
        let text = [
            y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', n1, n2, b':', s1, s2, b'.', f1,
            f2, f3, b'Z',
        ];
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
        let Ok(minor) = u64::try_from(minor) else { return serializer.collect_str(&self.0) };
        let mut digits = itoa::Buffer::new();
        let whole = digits.format(minor / 100).as_bytes();
        let [tenths, hundredths] = pair(u32::try_from(minor % 100).unwrap_or_default());
        // A 64-bit number has at most 20 digits; the point makes 21.
        let mut text = [0; 21];
        let len = whole.len() + 3;
        if let Some((places, fraction)) = text.get_mut(..len).and_then(<[u8]>::split_last_chunk_mut) {
            places.copy_from_slice(whole);
            *fraction = [b'.', tenths, hundredths];
        }
        serialize_ascii(text.get(..len).unwrap_or_default(), serializer)
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

/// The two digits of a number below a hundred.
const fn pair(number: u32) -> [u8; 2] {
    let ([tens, ..], [ones, ..]) = ((number / 10).to_le_bytes(), (number % 10).to_le_bytes());
    [b'0' + tens, b'0' + ones]
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
