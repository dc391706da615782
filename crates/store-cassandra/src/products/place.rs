//! Where a card stands in the listing of its category.
//!
//! A band of prices is a partition, or several where a plan cuts the category finer. A card stands where the plan of its
//! last change put it; which partitions there are is written down by category, so that readers need no plan.

use mw_codec::{Damaged, Reader, Writer};
use mw_domain::bucket::Band;
use mw_domain::{Category, Money, Product, ProductId};

/// Numbers of partitions that one band of prices may have.
const SLICES_MAX: u8 = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) category: Category,
    pub(crate) band: i32,
    pub(crate) price: Money,
}

impl Place {
    pub(crate) fn of(product: &Product, band: i32) -> Self {
        Self { category: product.category.clone(), band, price: product.price }
    }

    pub(crate) fn is_same_partition(&self, other: &Self) -> bool {
        self.category == other.category && self.band == other.band
    }
}

/// The partition of a price in a category that is cut into `slices` partitions a band.
pub(crate) fn band(price: Money, slices: u32) -> i32 {
    let slices = u8::try_from(slices).unwrap_or(SLICES_MAX).clamp(1, SLICES_MAX);
    i32::from(Band::of(price).number()) * i32::from(SLICES_MAX) + i32::from(Band::slice(price, slices))
}

/// The band of prices that a partition is of. Partitions of one band overlap, those of different ones do not.
pub(crate) fn prices_of(band: i32) -> i32 {
    band.div_euclid(i32::from(SLICES_MAX))
}

/// The bands of prices from `min` to `max`.
pub(crate) fn prices_between(min: Money, max: Money) -> std::ops::RangeInclusive<i32> {
    i32::from(Band::of(min).number())..=i32::from(Band::of(max).number())
}

/// What has to be known to list a card again after a change was left half done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) product_id: ProductId,
    /// Where the card was listed before.
    pub(crate) left: Option<Place>,
    /// The card's revision after the change.
    pub(crate) rev: i64,
}

impl Begun {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(160);
        writer.text(self.product_id.as_str());
        writer.optional(self.left.as_ref(), |writer, place| {
            writer.text(place.category.as_str());
            writer.signed(i64::from(place.band));
            writer.signed(place.price.as_minor());
        });
        writer.signed(self.rev);
        writer.done()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader::new(bytes, "intent of a product")?;
        let product_id = reader.id(ProductId::parse)?;
        let left = reader.optional(|reader| {
            Ok(Place {
                category: reader.id(Category::parse)?,
                band: i32::try_from(reader.signed()?).map_err(|_| reader.damaged())?,
                price: Money::from_minor(reader.signed()?),
            })
        })?;
        let rev = reader.signed()?;
        reader.end()?;
        Ok(Self { product_id, left, rev })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_of_a_band_are_numbered_within_it() {
        let price = Money::from_minor(49_999);
        assert_eq!((band(price, 1), band(price, 4), band(price, 64)), (128, 131, 191));
        assert_eq!(band(price, 200), band(price, 64), "no finer than the numbers allow");
        assert!([1, 4, 64].iter().all(|slices| prices_of(band(price, *slices)) == 2));
        assert_eq!(prices_between(Money::ZERO, price), 0..=2);
    }

    #[test]
    fn an_intent_reads_back() {
        let product_id = ProductId::parse("phone").unwrap();
        let place =
            Place {
                category: Category::parse("Телефоны").unwrap(), band: 131, price: Money::from_minor(5)
            };
        for left in [None, Some(place)] {
            let begun = Begun { product_id: product_id.clone(), left, rev: 7 };
            assert_eq!(Begun::decode(&begun.encode()), Ok(begun));
        }
        assert!(Begun::decode(&[1, 2, 3]).is_err());
    }
}
