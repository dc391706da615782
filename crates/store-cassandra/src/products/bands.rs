//! The partitions of a category's listing.
//!
//! A band of prices is one partition, or several slices where the bucketing of the category says so. A product is
//! listed in the partition that the bucketing of its last change gave. The table `category_bands` names every partition
//! of a category, so a reader does not need the bucketing.

use mw_domain::Money;
use mw_domain::buckets::Band;

/// The most slices that one band of prices may have.
const SLICES_MAX: u8 = 64;

/// The partition (column `band`) of a price in a category that has `slices` partitions a band of prices.
pub(crate) fn band(price: Money, slices: u32) -> i32 {
    let slices = u8::try_from(slices).unwrap_or(SLICES_MAX).clamp(1, SLICES_MAX);
    i32::from(Band::of(price).number()) * i32::from(SLICES_MAX) + i32::from(Band::slice(price, slices))
}

/// The band of prices of a partition. Partitions of one band overlap in price, those of different bands do not.
pub(crate) fn price_band(band: i32) -> i32 {
    band.div_euclid(i32::from(SLICES_MAX))
}

/// The bands of the prices from `min` to `max`.
pub(crate) fn price_bands(min: Money, max: Money) -> std::ops::RangeInclusive<i32> {
    i32::from(Band::of(min).number())..=i32::from(Band::of(max).number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_band_are_numbered_within_it() {
        let price = Money::from_minor(49_999);
        assert_eq!((band(price, 1), band(price, 4), band(price, 64)), (128, 131, 191));
        assert_eq!(band(price, 200), band(price, 64), "no finer than the numbers allow");
        assert!([1, 4, 64].iter().all(|slices| price_band(band(price, *slices)) == 2));
        assert_eq!(price_bands(Money::ZERO, price), 0..=2);
    }
}
