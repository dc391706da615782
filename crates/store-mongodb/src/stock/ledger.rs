//! The ledger as documents: one per operation on a product in a zone, written in the transaction of its figures.
//!
//! `_id` is `{product, zone, op}`, so the rows of one product and zone are neighbours in the index of `_id`, and the same
//! operation cannot be written twice.

use mongodb::bson::{Bson, Document, doc};
use mw_domain::{GeoZone, Level, ProductId, Timestamp};
use mw_store::stock::decision::StockKey;
use mw_store::stock::ledger::{END_OF_TIME, LedgerRow, LedgerState, LevelAfter};
use mw_store::{Result, StoreError};
use uuid::Uuid;

use crate::documents::ids::{plain_uuid, read_id, read_plain_uuid, to_bson_id};
use crate::documents::times::{read_time, to_bson_time};
use crate::stock::entries::whole_units;

/// The state of a row that notes what other programs did to `quantity`. The decisions know it as an adjustment.
pub(crate) const EXTERNAL: &str = "external";
/// The state of the row with the sum of settled rows that are deleted.
pub(crate) const COMPACTED: &str = "compacted";

pub(crate) fn row_id(key: &StockKey, op_id: Uuid) -> Document {
    doc! {
        "product": to_bson_id(key.product_id.as_str()),
        "zone": key.geo_zone.as_str(),
        "op": plain_uuid(op_id),
    }
}

/// The bounds of the rows of one product and zone in the index of `_id`.
pub(crate) fn rows_of(key: &StockKey) -> Document {
    let bound = |op: Bson| {
        doc! { "product": to_bson_id(key.product_id.as_str()), "zone": key.geo_zone.as_str(), "op": op }
    };
    doc! { "$gte": bound(Bson::MinKey), "$lte": bound(Bson::MaxKey) }
}

/// The ledger rows of products: ranges of the index of `_id`.
pub(crate) fn of_products(ids: &[Bson]) -> Document {
    let range = |id: &Bson| {
        let from = doc! { "product": id.clone() };
        let to = doc! { "product": id.clone(), "zone": Bson::MaxKey };
        doc! { "_id": { "$gte": from, "$lte": to } }
    };
    doc! { "$or": ids.iter().map(range).collect::<Vec<_>>() }
}

/// The product and zone of an `_id`.
pub(crate) fn read_key(id: &Document) -> Option<StockKey> {
    Some(StockKey {
        product_id: read_id(id.get("product")?, ProductId::parse)?,
        geo_zone: GeoZone::parse(id.get_str("zone").ok()?).ok()?,
    })
}

pub(crate) fn row_document(key: &StockKey, row: &LedgerRow) -> Document {
    let mut document = doc! {
        "_id": row_id(key, row.op_id),
        "state": row.state.as_str(),
        "quantity": row.quantity,
        "at": to_bson_time(row.at),
    };
    if row.until != END_OF_TIME {
        document.insert("until", to_bson_time(row.until));
    }
    if let Some(note) = &row.note {
        document.insert("note", note.as_str());
    }
    if let Some(LevelAfter { level, updated_at }) = row.result {
        let result = doc! {
            "on_hand": level.on_hand.cast_signed(),
            "reserved": level.reserved.cast_signed(),
            "updated_at": to_bson_time(updated_at),
        };
        document.insert("result", result);
    }
    document
}

/// The row of a change of `quantity` that other programs made since the service last wrote it.
pub(crate) fn external_document(key: &StockKey, quantity: i64, at: Timestamp) -> Document {
    doc! {
        "_id": row_id(key, Uuid::new_v4()),
        "state": EXTERNAL,
        "quantity": quantity,
        "at": to_bson_time(at),
    }
}

pub(crate) fn read_row(document: &Document) -> Result<LedgerRow> {
    let corrupt = || StoreError::Corrupt(format!("read stock ledger: row {:?}", document.get("_id")));
    let op_id = document.get_document("_id").ok().and_then(|id| id.get("op")).and_then(read_plain_uuid);
    let time = |from: &Document, field| from.get(field).and_then(read_time);
    let result = match document.get_document("result") {
        Err(_) => None,
        Ok(result) => {
            let units =
                |field| result.get(field).and_then(whole_units).and_then(|units| u64::try_from(units).ok());
            let level = units("on_hand").zip(units("reserved"));
            let (on_hand, reserved) = level.ok_or_else(corrupt)?;
            let updated_at = time(result, "updated_at").ok_or_else(corrupt)?;
            Some(LevelAfter { level: Level { on_hand, reserved }, updated_at })
        }
    };
    let state = match document.get_str("state").map_err(|_| corrupt())? {
        EXTERNAL | COMPACTED => LedgerState::Adjusted,
        name => LedgerState::parse(name)?,
    };
    Ok(LedgerRow {
        until: time(document, "until").unwrap_or(END_OF_TIME),
        op_id: op_id.ok_or_else(corrupt)?,
        state,
        quantity: document.get("quantity").and_then(whole_units).ok_or_else(corrupt)?,
        at: time(document, "at").ok_or_else(corrupt)?,
        note: document.get_str("note").ok().map(str::to_owned),
        result,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back() {
        let key =
            StockKey { product_id: ProductId::parse("p").unwrap(), geo_zone: GeoZone::parse("z").unwrap() };
        let hold = LedgerRow {
            until: Timestamp::from_millis(9),
            op_id: Uuid::from_u128(7),
            state: LedgerState::Held,
            quantity: 3,
            at: Timestamp::from_millis(1),
            note: None,
            result: None,
        };
        let level = Level { on_hand: 5, reserved: 1 };
        let set = LedgerRow {
            until: END_OF_TIME,
            state: LedgerState::Set,
            note: Some("count".to_owned()),
            result: Some(LevelAfter { level, updated_at: Timestamp::from_millis(2) }),
            ..hold.clone()
        };
        for row in [hold, set] {
            assert_eq!(read_row(&row_document(&key, &row)), Ok(row));
        }
        let external = read_row(&external_document(&key, -2, Timestamp::EPOCH)).unwrap();
        assert_eq!((external.state, external.quantity), (LedgerState::Adjusted, -2));
        assert!(read_row(&doc! { "state": "held" }).is_err());
    }
}
