//! What names a document of the source: its collection and its `_id`, of whatever type.

use std::fmt;

use mongodb::bson::{Bson, Document, doc};

use crate::error::{MigrateError, Result};

/// A collection that is migrated, in the order in which they are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Products,
    Orders,
    Carts,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Products, Self::Orders, Self::Carts];

    pub const fn collection(self) -> &'static str {
        match self {
            Self::Products => "products",
            Self::Orders => "orders",
            Self::Carts => "carts",
        }
    }

    pub(crate) fn of_collection(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.collection() == name)
    }
}

/// The `_id` of a document: its encoding as BSON, so that ids of all types can be compared and stored.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(Vec<u8>);

impl Id {
    pub(crate) fn new(value: &Bson) -> Result<Self> {
        encode(&doc! { "_id": value.clone() }).map(Self)
    }

    pub(crate) fn of(document: &Document) -> Result<Self> {
        Self::new(document.get("_id").ok_or(MigrateError::State("the _id of a document"))?)
    }

    pub(crate) fn value(&self) -> Result<Bson> {
        let mut document = decode(&self.0).ok_or(MigrateError::State("an _id"))?;
        document.remove("_id").ok_or(MigrateError::State("an _id"))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// As an operator reads it: the digits of an `ObjectId` or of a UUID, or the text.
    pub(crate) fn text(&self) -> String {
        match self.value() {
            Ok(Bson::ObjectId(id)) => id.to_hex(),
            Ok(Bson::String(text)) => text,
            Ok(Bson::Binary(binary)) => binary
                .to_uuid()
                .map_or_else(|_| format!("{}", Bson::Binary(binary.clone())), |uuid| uuid.to_string()),
            Ok(other) => other.to_string(),
            Err(_) => "?".to_owned(),
        }
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// A document of the source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) id: Id,
}

pub(crate) fn encode(document: &Document) -> Result<Vec<u8>> {
    document.to_vec().map_err(|_| MigrateError::State("a document to store"))
}

pub(crate) fn decode(bytes: &[u8]) -> Option<Document> {
    Document::from_reader(bytes).ok()
}

#[cfg(test)]
mod tests {
    use mongodb::bson::oid::ObjectId;

    use super::*;

    #[test]
    fn ids_of_all_types_read_back_and_are_shown_as_operators_know_them() {
        let object_id = ObjectId::parse_str("507f1f77bcf86cd799439011").unwrap();
        for (value, text) in [
            (Bson::ObjectId(object_id), "507f1f77bcf86cd799439011"),
            (Bson::from("a b"), "a b"),
            (Bson::Int32(7), "7"),
            (Bson::from(mongodb::bson::Uuid::from_bytes([1; 16])), "01010101-0101-0101-0101-010101010101"),
        ] {
            let id = Id::new(&value).unwrap();
            assert_eq!((id.value().unwrap(), id.text().as_str()), (value, text));
            assert_eq!(Id::from_bytes(id.bytes()), id);
        }
    }
}
