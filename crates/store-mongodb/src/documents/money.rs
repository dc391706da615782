//! Money in documents: written as Decimal128; doubles and integers of other programs are read too.

use mongodb::bson::{Bson, Decimal128};
use mw_domain::Money;

/// A double within this distance of two decimals is taken as them.
pub(crate) const DOUBLE_TOLERANCE: f64 = 0.000_001;

pub(crate) fn to_decimal(money: Money) -> Bson {
    // A plain decimal of at most 18 digits always fits.
    money.to_string().parse::<Decimal128>().map_or(Bson::Null, Bson::Decimal128)
}

/// An exact amount of the shop, or `None`.
pub(crate) fn read_money(value: &Bson) -> Option<Money> {
    let money = match value {
        Bson::Decimal128(decimal) => read_decimal(&decimal.to_string()),
        Bson::Double(double) => read_double(*double),
        Bson::Int32(whole) => i64::from(*whole).checked_mul(100).map(Money::from_minor),
        Bson::Int64(whole) => whole.checked_mul(100).map(Money::from_minor),
        _ => None,
    };
    money.filter(|money| (Money::ZERO..=Money::MAX).contains(money))
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked before the cast")]
fn read_double(double: f64) -> Option<Money> {
    let hundredths = (double * 100.0).round();
    let is_in_range = (0.0..=99_999_999_999_999.0).contains(&hundredths);
    let is_exact = (hundredths / 100.0 - double).abs() <= DOUBLE_TOLERANCE;
    (is_in_range && is_exact).then_some(Money::from_minor(hundredths as i64))
}

/// Reads digits with an optional point and exponent, without rounding.
fn read_decimal(text: &str) -> Option<Money> {
    let (mantissa, exponent) = match text.split_once('E') {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // In hundredths: the digits times ten to this power.
    let shift = exponent.checked_add(2)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    if digits == 0 {
        return Some(Money::ZERO);
    }
    let power = 10_i128.checked_pow(shift.unsigned_abs())?;
    let minor = if shift >= 0 {
        digits.checked_mul(power)?
    } else if digits % power == 0 {
        digits / power
    } else {
        return None;
    };
    i64::try_from(minor).ok().map(Money::from_minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Bson {
        Bson::Decimal128(text.parse().unwrap())
    }

    #[test]
    fn money_is_written_as_a_decimal_and_read_back() {
        for minor in [0, 1, 10, 199_990, Money::MAX.as_minor()] {
            let money = Money::from_minor(minor);
            let written = to_decimal(money);
            assert!(matches!(written, Bson::Decimal128(_)));
            assert_eq!(read_money(&written), Some(money));
        }
    }

    #[test]
    fn amounts_of_other_programs_are_read_exactly_or_not_at_all() {
        let read = |value: Bson| read_money(&value).map(Money::as_minor);
        assert_eq!(read(Bson::Double(19.99)), Some(1_999));
        assert_eq!(read(Bson::Double(0.1 + 0.2)), Some(30));
        assert_eq!(read(Bson::Double(19.995)), None);
        assert_eq!(read(Bson::Double(f64::NAN)), None);
        assert_eq!(read(Bson::Double(-1.0)), None);
        assert_eq!(read(Bson::Int32(7)), Some(700));
        assert_eq!(read(Bson::Int64(i64::MAX)), None);
        assert_eq!(read(decimal("1E+3")), Some(100_000));
        assert_eq!(read(decimal("12.500")), Some(1_250));
        assert_eq!(read(decimal("12.505")), None);
        assert_eq!(read(decimal("-1")), None);
        assert_eq!(read(decimal("NaN")), None);
        assert_eq!(read(decimal("1E+40")), None);
        assert_eq!(read(Bson::String("10".to_owned())), None);
    }
}
