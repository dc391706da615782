//! Exact money: a count of hundredths, never a float.

use std::fmt;

/// An amount in hundredths of the shop's currency. The shop has one currency, so an amount carries none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Money(i64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMoney {
    #[error("an amount is a decimal string such as \"1999.90\", without sign or exponent")]
    Malformed,
    #[error("an amount has at most 2 fraction digits")]
    TooPrecise,
    #[error("an amount is at most 999999999999.99")]
    TooLarge,
}

impl Money {
    pub const ZERO: Self = Self(0);
    /// 999999999999.99, the largest amount a client may send.
    pub const MAX: Self = Self(99_999_999_999_999);

    pub const fn from_minor(minor: i64) -> Self {
        Self(minor)
    }

    pub const fn as_minor(self) -> i64 {
        self.0
    }

    /// Reads a plain decimal such as `10`, `10.5` or `0010.50`.
    pub fn parse(text: &str) -> Result<Self, InvalidMoney> {
        let (whole, fraction) = match text.split_once('.') {
            Some((_, "")) => return Err(InvalidMoney::Malformed),
            Some((whole, fraction)) => (whole, fraction),
            None => (text, ""),
        };
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) {
            return Err(InvalidMoney::Malformed);
        }
        if fraction.len() > 2 {
            return Err(InvalidMoney::TooPrecise);
        }
        let whole: i64 = match whole.trim_start_matches('0') {
            "" => 0,
            digits if digits.len() > 12 => return Err(InvalidMoney::TooLarge),
            digits => digits.parse().map_err(|_| InvalidMoney::Malformed)?,
        };
        let hundredths: i64 = match fraction.len() {
            0 => 0,
            1 => fraction.parse::<i64>().map_err(|_| InvalidMoney::Malformed)? * 10,
            _ => fraction.parse().map_err(|_| InvalidMoney::Malformed)?,
        };
        Ok(Self(whole * 100 + hundredths))
    }

    /// `None` above [`Money::MAX`].
    #[must_use]
    pub fn times(self, quantity: u32) -> Option<Self> {
        self.0.checked_mul(i64::from(quantity)).map(Self).filter(|sum| *sum <= Self::MAX)
    }

    /// `None` above [`Money::MAX`].
    #[must_use]
    pub fn plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self).filter(|sum| *sum <= Self::MAX)
    }

    /// For the running totals of a report, which may exceed [`Money::MAX`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// A currency code of three capital letters, such as `RUB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Currency([u8; 3]);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a currency is three capital letters, such as RUB")]
pub struct InvalidCurrency;

impl Currency {
    pub fn parse(text: &str) -> Result<Self, InvalidCurrency> {
        let code: [u8; 3] = text.as_bytes().try_into().map_err(|_| InvalidCurrency)?;
        if code.iter().all(u8::is_ascii_uppercase) { Ok(Self(code)) } else { Err(InvalidCurrency) }
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XXX")
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_compared_by_value() {
        for text in ["10", "10.0", "10.00", "0010.00"] {
            assert_eq!(Money::parse(text), Ok(Money::from_minor(1_000)), "{text}");
        }
        assert_eq!(Money::parse("1999.9").unwrap().to_string(), "1999.90");
        assert_eq!(Money::parse("0.05").unwrap().to_string(), "0.05");
    }

    #[test]
    fn the_bounds_are_the_promised_ones() {
        assert_eq!(Money::parse("999999999999.99"), Ok(Money::MAX));
        assert_eq!(Money::parse("1000000000000"), Err(InvalidMoney::TooLarge));
        assert_eq!(Money::parse("1.999"), Err(InvalidMoney::TooPrecise));
    }

    #[test]
    fn what_is_no_plain_decimal_is_refused() {
        for text in ["", ".", "1.", ".5", "-1", "+1", "1e3", " 1", "1 ", "1,5", "0x10", "NaN", "١"] {
            assert_eq!(Money::parse(text), Err(InvalidMoney::Malformed), "{text}");
        }
    }

    #[test]
    fn sums_stop_at_the_limit() {
        assert_eq!(Money::MAX.times(2), None);
        assert_eq!(Money::MAX.plus(Money::from_minor(1)), None);
        assert_eq!(Money::from_minor(250).times(4), Some(Money::from_minor(1_000)));
    }
}
