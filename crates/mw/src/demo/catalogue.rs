//! Turns the families into products with prices and stock. The same on every machine and at every start.

use std::collections::BTreeMap;

use mw_domain::stock::{Cause, Delta};
use mw_domain::{
    Attributes, Category, GeoZone, Level, Money, Movement, Product, ProductId, Timestamp, ZoneStock,
};
use mw_store::export::Record;
use uuid::Uuid;

use super::families::{FAMILIES, Family, Variant};

const ZONES: [&str; 5] = ["moscow", "spb", "kazan", "novosibirsk", "ekaterinburg"];
/// In percent: zones that stock a product, and of those the ones that are out of stock.
const KEPT_PERCENT: u64 = 92;
const SOLD_OUT_PERCENT: u64 = 6;
const UNITS_MAX: u64 = 250;

/// A product with its stock.
pub(super) struct Item {
    product_id: ProductId,
    name: String,
    category: Category,
    price: Money,
    attributes: Attributes,
    stock: Vec<(GeoZone, u64)>,
}

pub(super) fn items() -> Vec<Item> {
    FAMILIES.iter().flat_map(family_items).collect()
}

impl Item {
    /// The product, and the stock level of each zone with its ledger movement.
    pub(super) fn records(&self, now: Timestamp) -> Vec<Record> {
        let product = Record::Product(Product {
            product_id: self.product_id.clone(),
            name: self.name.clone(),
            category: self.category.clone(),
            price: self.price,
            description: format!("{}. A sample of the demonstration shop.", self.name),
            attributes: self.attributes.clone(),
            created_at: now,
            updated_at: now,
        });
        let levels = self.stock.iter().map(|(geo_zone, units)| Record::Stock {
            stock: ZoneStock {
                product_id: self.product_id.clone(),
                geo_zone: geo_zone.clone(),
                level: Level { on_hand: *units, reserved: 0 },
                updated_at: now,
            },
            ledger: vec![Movement {
                at: now,
                op: self.movement_id(geo_zone),
                cause: Cause::Set,
                delta: Delta { on_hand: i64::try_from(*units).unwrap_or_default(), reserved: 0 },
                note: Some("sample stock".to_owned()),
            }],
        });
        std::iter::once(product).chain(levels).collect()
    }

    fn movement_id(&self, geo_zone: &GeoZone) -> Uuid {
        let mut dice = Dice::of(&format!("{}/{geo_zone}", self.product_id));
        let bits = u128::from(dice.roll()) << 64 | u128::from(dice.roll());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }
}

fn family_items(family: &Family) -> Vec<Item> {
    let mut items = Vec::new();
    for (brand_at, brand) in family.brands.iter().enumerate() {
        for (model_at, model) in family.models.iter().enumerate() {
            for choice in combinations(family.variants) {
                let rank = Rank { brand: brand_at, model: model_at };
                items.extend(item(family, brand, model, &rank, &choice));
            }
        }
    }
    items
}

/// The position of a product in its family.
struct Rank {
    brand: usize,
    model: usize,
}

/// One value of each variant, with its index.
type Choice = Vec<(&'static Variant, usize, &'static str)>;

fn combinations(variants: &'static [Variant]) -> Vec<Choice> {
    variants.iter().fold(vec![Choice::new()], |choices, variant| {
        let extended = choices.iter().flat_map(|choice| {
            variant.values.iter().enumerate().map(move |(at, value)| {
                let mut choice = choice.clone();
                choice.push((variant, at, *value));
                choice
            })
        });
        extended.collect()
    })
}

/// `None` for a name that is no valid id, which no family has.
fn item(family: &Family, brand: &str, model: &str, rank: &Rank, choice: &Choice) -> Option<Item> {
    let values: Vec<&str> = choice.iter().map(|(_, _, value)| *value).collect();
    let name = format!("{} {brand} {model} {}", family.noun, values.join(" "));
    let places: Vec<String> = choice.iter().map(|(_, at, _)| at.to_string()).collect();
    let id =
        format!("{}-{}{:02}-{}", family.prefix, brand_code(rank.brand), rank.model + 1, places.join("-"));
    let mut attributes: BTreeMap<String, String> =
        family.attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    attributes.insert("brand".to_owned(), brand.to_owned());
    attributes.insert("model".to_owned(), model.to_owned());
    for (variant, _, value) in choice {
        attributes.insert(variant.name.to_owned(), (*value).to_owned());
    }
    let mut dice = Dice::of(&id);
    Some(Item {
        product_id: ProductId::parse(&id).ok()?,
        name,
        category: Category::parse(family.category).ok()?,
        price: price(family, rank, choice, &mut dice),
        attributes: attributes.into(),
        stock: ZONES.iter().filter_map(|zone| stock(zone, &mut dice)).collect(),
    })
}

/// Short, ASCII, and the same for a brand throughout its family.
fn brand_code(at: usize) -> char {
    char::from(b'a' + u8::try_from(at % 26).unwrap_or_default())
}

fn price(family: &Family, rank: &Rank, choice: &Choice, dice: &mut Dice) -> Money {
    let [brand, model] = [rank.brand, rank.model].map(|at| i64::try_from(at).unwrap_or_default());
    let steps: usize = choice.iter().filter(|(variant, ..)| variant.is_priced).map(|(_, at, _)| *at).sum();
    let steps = i64::try_from(steps).unwrap_or_default();
    let list = family.price.from + model * family.price.per_model + steps * family.price.per_variant;
    let of_brand = list * (94 + brand * 3) / 100;
    let noise = i64::try_from(dice.below(5)).unwrap_or_default() * 10;
    Money::from_minor((of_brand + noise) * 100 + if dice.below(4) == 0 { 90 } else { 0 })
}

fn stock(zone: &str, dice: &mut Dice) -> Option<(GeoZone, u64)> {
    let is_kept = dice.below(100) < KEPT_PERCENT;
    let is_sold_out = dice.below(100) < SOLD_OUT_PERCENT;
    let units = 1 + dice.below(UNITS_MAX);
    let zone = GeoZone::parse(zone).ok()?;
    is_kept.then_some((zone, if is_sold_out { 0 } else { units }))
}

/// Pseudo-random numbers, the same for the same text (`SplitMix64` over FNV-1a).
struct Dice(u64);

impl Dice {
    fn of(text: &str) -> Self {
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(hash)
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_item_is_valid_and_its_own() {
        let expected: usize = FAMILIES
            .iter()
            .map(|it| {
                it.brands.len()
                    * it.models.len()
                    * it.variants.iter().map(|it| it.values.len()).product::<usize>()
            })
            .sum();
        let items = items();
        assert_eq!(items.len(), expected);
        let ids: BTreeSet<&ProductId> = items.iter().map(|item| &item.product_id).collect();
        let names: BTreeSet<&str> = items.iter().map(|item| item.name.as_str()).collect();
        assert_eq!((ids.len(), names.len()), (items.len(), items.len()));
        for record in items.iter().flat_map(|item| item.records(Timestamp::EPOCH)) {
            if let Record::Product(product) = record {
                product.check().unwrap();
                assert!(product.price > Money::from_minor(10_000), "{product:?}");
            }
        }
    }

    #[test]
    fn the_catalogue_is_the_same_every_time() {
        let first = &items()[0];
        assert_eq!(first.product_id.as_str(), "phone-a01-0-0");
        assert_eq!(first.name, "Smartphone Aurora Mini 128GB black");
        assert_eq!(first.price.to_string(), "12240.00");
        let units: Vec<u64> = first.stock.iter().map(|(_, units)| *units).collect();
        assert_eq!(units, [180, 46, 92, 40, 128]);
    }
}
