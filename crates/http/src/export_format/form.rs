//! How one value is written in JSON and read back. Scalars are text in their canonical form; structs derive their form in
//! the file of their noun. The three modules of functions are for serde's `with`.

use std::fmt::Display;

use mw_domain::{
    CartId, Category, GeoZone, IdempotencyKey, Money, OrderId, ProductId, ReservationId, SessionId,
    Timestamp, UserId,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

pub(super) trait Form: Sized {
    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

/// Gives a domain type the form that serde derived on its remote definition.
macro_rules! form {
    ($type:ty as $stand_in:ident) => {
        impl crate::export_format::form::Form for $type {
            fn write<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $stand_in::serialize(self, serializer)
            }

            fn read<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $stand_in::deserialize(deserializer)
            }
        }
    };
}
pub(super) use form;

macro_rules! text_form {
    ($($type:ty, $read:path;)*) => {
        $(impl Form for $type {
            fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }

            fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                text(deserializer, $read)
            }
        })*
    };
}

text_form! {
    UserId, UserId::parse;
    ProductId, ProductId::parse;
    SessionId, SessionId::parse;
    GeoZone, GeoZone::parse;
    Category, Category::parse;
    IdempotencyKey, IdempotencyKey::restore;
    CartId, CartId::parse;
    OrderId, OrderId::parse;
    ReservationId, ReservationId::parse;
    Timestamp, Timestamp::parse;
    Money, Money::parse;
    Uuid, Uuid::try_parse;
}

fn text<'de, T, E: Display, D: Deserializer<'de>>(
    deserializer: D,
    read: fn(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
    read(&text).map_err(D::Error::custom)
}

/// A wrapper for use in serde's own containers.
pub(super) struct Formed<T>(pub(super) T);

impl<T: Form> Serialize for Formed<&T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.write(serializer)
    }
}

impl<'de, T: Form> Deserialize<'de> for Formed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::read(deserializer).map(Self)
    }
}

/// One value: `with = "one"`.
pub(super) mod one {
    use super::Form;
    use serde::{Deserializer, Serializer};

    pub(in crate::export_format) fn serialize<T: Form, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.write(serializer)
    }

    pub(in crate::export_format) fn deserialize<'de, T: Form, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        T::read(deserializer)
    }
}

/// A value that may be absent: `with = "optional"`.
pub(super) mod optional {
    use super::{Form, Formed};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde hands over the field as it is")]
    pub(in crate::export_format) fn serialize<T: Form, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Formed).serialize(serializer)
    }

    pub(in crate::export_format) fn deserialize<'de, T: Form, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let value = Option::<Formed<T>>::deserialize(deserializer)?;
        Ok(value.map(|formed| formed.0))
    }
}

/// A list: `with = "list"`.
pub(super) mod list {
    use super::{Form, Formed};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::export_format) fn serialize<T: Form, S: Serializer>(
        items: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(items.iter().map(Formed))
    }

    pub(in crate::export_format) fn deserialize<'de, T: Form, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let items = Vec::<Formed<T>>::deserialize(deserializer)?;
        Ok(items.into_iter().map(|formed| formed.0).collect())
    }
}
