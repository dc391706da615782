//! Deserialisation of the values of a body. Each value is validated while it is parsed, so that an error has the path of
//! its field.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use mw_domain::limits::{
    LINES_MAX, ON_HAND_MAX, QUANTITY_MAX, RESERVATION_TTL_SECONDS_MAX, TEXT_CHARS_MAX, check_text,
};
use mw_domain::{Currency, Demand, GeoZone, Money, ProductId};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use utoipa::ToSchema;

use crate::error::{Code, Problem};

/// A string that is parsed by a function.
struct Parsed<T, F>(F, PhantomData<T>);

impl<T, E: fmt::Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for Parsed<T, F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<D: Error>(self, text: &str) -> Result<T, D> {
        (self.0)(text).map_err(D::custom)
    }
}

pub(super) fn parsed<'de, D, T, E>(
    deserializer: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: fmt::Display,
{
    deserializer.deserialize_str(Parsed(parse, PhantomData))
}

/// An id of the shop.
pub(crate) fn id<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<T, D::Error> {
    parsed(deserializer, T::from_str)
}

/// A string that may be absent or null.
struct Nullable<T, F>(F, PhantomData<T>);

impl<'de, T, F> Visitor<'de> for Nullable<T, F>
where
    F: FnOnce(&str) -> Result<T, String>,
{
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_none<E: Error>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
        parsed(deserializer, self.0).map(Some)
    }
}

pub(crate) fn optional_id<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let parse = |text: &str| T::from_str(text).map_err(|error| error.to_string());
    deserializer.deserialize_option(Nullable(parse, PhantomData))
}

fn short_text(text: &str) -> Result<String, String> {
    check_text("", text, TEXT_CHARS_MAX).map_err(|invalid| invalid.detail)?;
    Ok(text.to_owned())
}

/// Free text such as a reason.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    parsed(deserializer, short_text)
}

/// Free text such as a note, an address or a payment method.
pub(crate) fn optional_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    deserializer.deserialize_option(Nullable(short_text, PhantomData))
}

fn integer<'de, D: Deserializer<'de>>(
    deserializer: D,
    what: &str,
    min: i64,
    max: i64,
) -> Result<i64, D::Error> {
    struct Integer<'a>(&'a str, i64, i64);

    impl Visitor<'_> for Integer<'_> {
        type Value = i64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}: a whole number from {} to {}", self.0, self.1, self.2)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<i64, E> {
            if (self.1..=self.2).contains(&number) {
                Ok(number)
            } else {
                Err(E::invalid_value(de::Unexpected::Signed(number), &self))
            }
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<i64, E> {
            match i64::try_from(number) {
                Ok(number) => self.visit_i64(number),
                Err(_) => Err(E::invalid_value(de::Unexpected::Unsigned(number), &self)),
            }
        }
    }

    deserializer.deserialize_i64(Integer(what, min, max))
}

pub(crate) fn quantity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = integer(deserializer, "a quantity", 1, i64::from(QUANTITY_MAX))?;
    Ok(u32::try_from(number).unwrap_or(QUANTITY_MAX))
}

const ON_HAND_MAX_SIGNED: i64 = ON_HAND_MAX.cast_signed();

pub(crate) fn on_hand<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    integer(deserializer, "units on hand", 0, ON_HAND_MAX_SIGNED).map(i64::unsigned_abs)
}

pub(crate) fn delta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    integer(deserializer, "units to add or remove", -ON_HAND_MAX_SIGNED, ON_HAND_MAX_SIGNED)
}

/// Defines the deserialiser of an optional value from that of the value.
macro_rules! optional {
    ($name:ident, $type:ty, $deserialize:expr) => {
        pub(crate) fn $name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<$type>, D::Error> {
            struct OptionVisitor;

            impl<'de> Visitor<'de> for OptionVisitor {
                type Value = Option<$type>;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a value or null")
                }

                fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
                    Ok(None)
                }

                fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
                    $deserialize(deserializer).map(Some)
                }
            }

            deserializer.deserialize_option(OptionVisitor)
        }
    };
}

fn ttl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number =
        integer(deserializer, "a time to live in seconds", 1, i64::from(RESERVATION_TTL_SECONDS_MAX))?;
    Ok(u32::try_from(number).unwrap_or(RESERVATION_TTL_SECONDS_MAX))
}

optional!(optional_ttl, u32, ttl);
optional!(optional_on_hand, u64, on_hand);
optional!(optional_stock, Vec<(GeoZone, u64)>, stock);

/// An object, and not an array of the values of its fields, which derived code would accept as well.
struct Object<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

impl<'de, T: Deserialize<'de>> de::DeserializeSeed<'de> for Object<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// Money as a client sends it; [`MoneyBody::amount`] checks its currency.
#[derive(Debug)]
pub(crate) struct MoneyBody {
    amount: Money,
    currency: String,
}

impl<'de> Deserialize<'de> for MoneyBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            #[serde(deserialize_with = "amount")]
            amount: Money,
            currency: String,
        }

        let Fields { amount, currency } = deserializer.deserialize_map(Object(PhantomData))?;
        Ok(Self { amount, currency })
    }
}

fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Money, D::Error> {
    parsed(deserializer, Money::parse)
}

impl MoneyBody {
    /// The amount, if it is in the shop's currency; `field` is the path of the money.
    pub(crate) fn amount(&self, field: &str, currency: Currency) -> Result<Money, Problem> {
        if self.currency == currency.as_str() {
            return Ok(self.amount);
        }
        let detail = format!("{field}: send the amount in {currency}, the shop's currency");
        Err(Problem::new(Code::CurrencyMismatch, detail).with("field", format!("{field}.currency")))
    }
}

/// One line of an order or reservation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DemandLine)]
pub(crate) struct DemandBody {
    #[serde(deserialize_with = "id")]
    #[schema(value_type = super::schema::Name)]
    product_id: ProductId,
    #[serde(deserialize_with = "quantity")]
    #[schema(minimum = 1, maximum = 10_000)]
    quantity: u32,
}

/// Up to 100 lines; parsing stops at the first one too many.
pub(crate) fn lines<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Demand>, D::Error> {
    struct Lines;

    impl<'de> Visitor<'de> for Lines {
        type Value = Vec<Demand>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of lines")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Demand>, A::Error> {
            let mut lines = Vec::new();
            while let Some(line) = seq.next_element_seed(Object::<DemandBody>(PhantomData))? {
                if lines.len() == LINES_MAX {
                    return Err(A::Error::custom(format_args!("must be at most {LINES_MAX} lines")));
                }
                lines.push(Demand { product_id: line.product_id, quantity: line.quantity });
            }
            if lines.is_empty() { Err(A::Error::custom("must be at least 1 line")) } else { Ok(lines) }
        }
    }

    deserializer.deserialize_seq(Lines)
}

/// Units on hand by zone.
fn stock<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(GeoZone, u64)>, D::Error> {
    #[derive(Deserialize)]
    struct OnHand(#[serde(deserialize_with = "on_hand")] u64);

    let zones = BTreeMap::<String, OnHand>::deserialize(deserializer)?;
    let zones = zones.into_iter().map(|(zone, on_hand)| {
        let zone = GeoZone::parse(&zone)
            .map_err(|error| D::Error::custom(format_args!("zone {zone:?}: {error}")))?;
        Ok((zone, on_hand.0))
    });
    zones.collect()
}
