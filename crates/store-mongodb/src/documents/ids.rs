//! Ids in documents. Of the shop's ids, 24 lower-case hexadecimal digits are an `ObjectId` and anything else is text, so
//! both forms stand for one id each. A session id is always text.

use mongodb::bson::oid::ObjectId;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson};
use mw_domain::{CartId, OrderId};
use uuid::Uuid;

const OBJECT_ID_DIGITS: usize = 24;

/// A user's or product's id.
pub(crate) fn to_bson_id(id: &str) -> Bson {
    let is_object_id =
        id.len() == OBJECT_ID_DIGITS && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match ObjectId::parse_str(id) {
        Ok(object_id) if is_object_id => Bson::ObjectId(object_id),
        _ => Bson::String(id.to_owned()),
    }
}

/// The text of an id. Text that looks like an `ObjectId` stands for none: it would be read as another document.
pub(crate) fn read_id<T, E>(value: &Bson, parse: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
    match value {
        Bson::ObjectId(id) => parse(&id.to_hex()).ok(),
        Bson::String(text) if matches!(to_bson_id(text), Bson::String(_)) => parse(text).ok(),
        _ => None,
    }
}

/// An id that the service made is a UUID; an older one is an `ObjectId`, which stands for one UUID.
fn to_bson_uuid(uuid: Uuid) -> Bson {
    let object_id = OrderId::new(uuid).object_id().and_then(|text| ObjectId::parse_str(text).ok());
    match object_id {
        Some(object_id) => Bson::ObjectId(object_id),
        None => plain_uuid(uuid),
    }
}

/// A UUID that never was an `ObjectId`.
pub(crate) fn plain_uuid(uuid: Uuid) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: uuid.as_bytes().to_vec() })
}

fn read_uuid(value: &Bson) -> Option<Uuid> {
    match value {
        Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes }) => Uuid::from_slice(bytes).ok(),
        Bson::ObjectId(id) => OrderId::parse(&id.to_hex()).ok().map(OrderId::uuid),
        _ => None,
    }
}

pub(crate) fn to_bson_order_id(id: OrderId) -> Bson {
    to_bson_uuid(id.uuid())
}

/// A UUID whose bits are those of an `ObjectId` stands for the `ObjectId` alone.
pub(crate) fn read_order_id(value: &Bson) -> Option<OrderId> {
    let uuid = read_uuid(value)?;
    (to_bson_uuid(uuid) == *value).then_some(OrderId::new(uuid))
}

pub(crate) fn to_bson_cart_id(id: CartId) -> Bson {
    to_bson_uuid(id.uuid())
}

pub(crate) fn read_cart_id(value: &Bson) -> Option<CartId> {
    let uuid = read_uuid(value)?;
    (to_bson_uuid(uuid) == *value).then_some(CartId::new(uuid))
}

/// The UUID of a binary value, for ids that never were an `ObjectId`.
pub(crate) fn read_plain_uuid(value: &Bson) -> Option<Uuid> {
    match value {
        Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes }) => Uuid::from_slice(bytes).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mw_domain::ProductId;

    use super::*;

    #[test]
    fn lower_case_hexadecimal_of_24_digits_is_an_object_id() {
        assert!(matches!(to_bson_id("507f1f77bcf86cd799439011"), Bson::ObjectId(_)));
        for text in
            ["507F1F77BCF86CD799439011", "507f1f77bcf86cd79943901", "anna", "507f1f77bcf86cd79943901g"]
        {
            assert_eq!(to_bson_id(text), Bson::String(text.to_owned()));
        }
    }

    #[test]
    fn an_id_reads_back_and_its_double_as_text_does_not() {
        for text in ["507f1f77bcf86cd799439011", "507F1F77BCF86CD799439011", "p-1"] {
            let read = read_id(&to_bson_id(text), ProductId::parse);
            assert_eq!(read, Some(ProductId::parse(text).unwrap()));
        }
        let double = Bson::String("507f1f77bcf86cd799439011".to_owned());
        assert_eq!(read_id(&double, ProductId::parse), None);
        assert_eq!(read_id(&Bson::String("a b".to_owned()), ProductId::parse), None);
        assert_eq!(read_id(&Bson::Int32(5), ProductId::parse), None);
    }

    #[test]
    fn an_order_id_is_a_uuid_or_the_object_id_it_was() {
        let made = OrderId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap();
        let older = OrderId::parse("507f1f77bcf86cd799439011").unwrap();
        assert!(matches!(to_bson_order_id(made), Bson::Binary(_)));
        assert!(matches!(to_bson_order_id(older), Bson::ObjectId(_)));
        for id in [made, older] {
            assert_eq!(read_order_id(&to_bson_order_id(id)), Some(id));
        }
        assert_eq!(read_order_id(&plain_uuid(older.uuid())), None);
        assert_eq!(read_order_id(&Bson::String("x".to_owned())), None);
    }
}
