//! Shard keys by configuration: the papers' choices and their alternatives.

use std::fmt;

use mongodb::bson::{Bson, Document};

use crate::Shape;

/// The key of each sharded collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardKeys {
    pub orders: ShardKey,
    pub products: ShardKey,
    pub carts: ShardKey,
}

/// Fields with their kind, such as `category: 1, _id: 1` or `owner: hashed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardKey(Vec<(String, KeyKind)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    Range,
    Hashed,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{collection}: {key:?} is not one of {accepted}")]
pub struct InvalidShardKey {
    pub collection: &'static str,
    pub key: String,
    pub accepted: String,
}

const PRODUCTS: &[&str] = &["_id: hashed", "category: 1, _id: 1", "category: hashed"];
const CARTS: &[&str] = &["owner: hashed", "session_id: hashed", "_id: hashed", "user_id: hashed"];

/// The keys that orders may have; the first is the default.
const fn orders_keys(shape: Shape) -> &'static [&'static str] {
    match shape {
        Shape::Customer => &["customer_id: hashed", "customer_id: 1"],
        Shape::User => &["user_id: hashed", "user_id: 1"],
    }
}

impl ShardKeys {
    /// The defaults of a shape.
    pub fn of_shape(shape: Shape) -> Self {
        let user = match shape {
            Shape::Customer => "customer_id",
            Shape::User => "user_id",
        };
        Self {
            orders: ShardKey(vec![(user.to_owned(), KeyKind::Hashed)]),
            products: ShardKey(vec![("_id".to_owned(), KeyKind::Hashed)]),
            carts: ShardKey(vec![("owner".to_owned(), KeyKind::Hashed)]),
        }
    }

    /// The keys that a collection may have, the default first.
    pub fn accepted(collection: &str, shape: Shape) -> &'static [&'static str] {
        match collection {
            "orders" => orders_keys(shape),
            "products" => PRODUCTS,
            "carts" => CARTS,
            _ => &[],
        }
    }

    /// Refuses a key that the engine's statements do not know.
    pub fn check(&self, shape: Shape) -> Result<(), InvalidShardKey> {
        let keys = [
            ("orders", &self.orders, orders_keys(shape)),
            ("products", &self.products, PRODUCTS),
            ("carts", &self.carts, CARTS),
        ];
        for (collection, key, accepted) in keys {
            let key = key.to_string();
            if !accepted.contains(&key.as_str()) {
                let quoted: Vec<String> = accepted.iter().map(|key| format!("{key:?}")).collect();
                return Err(InvalidShardKey { collection, key, accepted: quoted.join(", ") });
            }
        }
        Ok(())
    }
}

impl ShardKey {
    /// Reads `field: hashed` or `field: 1, field: 1`; `None` if the text is neither.
    pub fn parse(text: &str) -> Option<Self> {
        let fields = text.split(',').map(|part| {
            let (field, kind) = part.split_once(':')?;
            let kind = match kind.trim().trim_matches('"') {
                "1" => KeyKind::Range,
                "hashed" => KeyKind::Hashed,
                _ => return None,
            };
            let field = field.trim().trim_matches('"');
            (!field.is_empty()).then(|| (field.to_owned(), kind))
        });
        fields.collect::<Option<Vec<_>>>().map(Self)
    }

    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(field, _)| field.as_str())
    }

    /// The fields with their kinds.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, KeyKind)> {
        self.0.iter().map(|(field, kind)| (field.as_str(), *kind))
    }

    /// Whether the first field of the key is this one.
    pub fn begins_with(&self, field: &str) -> bool {
        self.fields().next() == Some(field)
    }

    /// The key as `shardCollection` takes it.
    pub fn to_document(&self) -> Document {
        let value = |kind: &KeyKind| match kind {
            KeyKind::Range => Bson::Int32(1),
            KeyKind::Hashed => Bson::String("hashed".to_owned()),
        };
        self.0.iter().map(|(field, kind)| (field.clone(), value(kind))).collect()
    }
}

impl fmt::Display for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (field, kind)) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            let kind = match kind {
                KeyKind::Range => "1",
                KeyKind::Hashed => "hashed",
            };
            write!(f, "{separator}{field}: {kind}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_as_they_are_written() {
        for text in PRODUCTS.iter().chain(CARTS).chain(orders_keys(Shape::User)) {
            assert_eq!(ShardKey::parse(text).unwrap().to_string(), *text);
        }
        for bad in ["", "category", "category: 2", ": 1", "category: 1, "] {
            assert_eq!(ShardKey::parse(bad), None, "{bad}");
        }
        let loose = ShardKey::parse("\"category\" :1,_id:1").unwrap();
        assert_eq!(loose.to_string(), "category: 1, _id: 1");
        assert_eq!(loose.to_document(), mongodb::bson::doc! { "category": 1, "_id": 1 });
    }

    #[test]
    fn a_key_of_the_other_shape_is_refused_with_the_accepted_ones() {
        for shape in [Shape::Customer, Shape::User] {
            assert_eq!(ShardKeys::of_shape(shape).check(shape), Ok(()));
        }
        let refused = ShardKeys::of_shape(Shape::User).check(Shape::Customer).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "orders: \"user_id: hashed\" is not one of \"customer_id: hashed\", \"customer_id: 1\""
        );
    }
}
