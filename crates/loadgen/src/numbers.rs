//! Conversions between counts and fractions; the lost precision does not show in a report.

/// Counts stay far below 2⁵³, where a float is still exact.
#[expect(clippy::cast_precision_loss, reason = "counts of a run stay far below 2⁵³")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// The nearest whole number; 0 for a negative value or NaN.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is what is wanted"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// An index below `len`, chosen by a number in `0.0..1.0`.
pub(crate) fn index_at(share: f64, len: u64) -> u64 {
    whole((share * float(len)).floor()).min(len.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_saturate() {
        assert_eq!(whole(-3.0), 0);
        assert_eq!(whole(f64::NAN), 0);
        assert_eq!(whole(2.5), 3);
        assert_eq!(whole(f64::INFINITY), u64::MAX);
    }

    #[test]
    fn an_index_is_never_past_the_end() {
        assert_eq!(index_at(0.0, 10), 0);
        assert_eq!(index_at(0.999_999, 10), 9);
        assert_eq!(index_at(1.0, 10), 9);
        assert_eq!(index_at(0.5, 0), 0);
    }
}
