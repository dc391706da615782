//! Values of a shard key as operators write them: `category: Electronics, _id: MinKey`.

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, Document};

/// Values of one or more fields of a shard key.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyValues(pub(super) Document);

impl KeyValues {
    /// `MinKey`, `MaxKey`, whole numbers and 24 hex digits (an ObjectId) are what they are, anything else and anything in
    /// quotes is text. `None`: no `field: value`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut values = Document::new();
        for part in text.split(", ") {
            let (field, value) = part.split_once(':')?;
            let (field, value) = (field.trim(), value.trim());
            if field.is_empty() || value.is_empty() {
                return None;
            }
            values.insert(field, parse_value(value));
        }
        Some(Self(values))
    }
}

fn parse_value(text: &str) -> Bson {
    if let Some(quoted) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        return Bson::String(quoted.to_owned());
    }
    match text {
        "MinKey" => Bson::MinKey,
        "MaxKey" => Bson::MaxKey,
        _ => {
            let is_hex = text.len() == 24 && !text.contains(|c: char| c.is_ascii_uppercase());
            let id = is_hex.then(|| ObjectId::parse_str(text).ok()).flatten();
            let number = text.parse::<i64>().ok();
            id.map(Bson::ObjectId)
                .or(number.map(Bson::Int64))
                .unwrap_or_else(|| Bson::String(text.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::doc;

    #[test]
    fn values_are_what_they_look_like() {
        let parsed = |text: &str| KeyValues::parse(text).map(|values| values.0);
        assert_eq!(
            parsed("category: Electronics, _id: MinKey"),
            Some(doc! { "category": "Electronics", "_id": Bson::MinKey })
        );
        assert_eq!(parsed("owner: u:anna"), Some(doc! { "owner": "u:anna" }));
        assert_eq!(parsed("_id: 17"), Some(doc! { "_id": 17_i64 }));
        assert_eq!(parsed("_id: \"17\""), Some(doc! { "_id": "17" }));
        let id = ObjectId::parse_str("65f000000000000000000001").unwrap();
        assert_eq!(parsed("_id: 65f000000000000000000001"), Some(doc! { "_id": id }));
        for bad in ["", "category", ": x", "category:"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
