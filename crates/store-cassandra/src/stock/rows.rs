//! The stock partition as CQL rows: the header and the ledger rows, converted to and from the ledger's types.
//!
//! The header is the row with the lowest clustering key. A read or a condition names its whole key, so neither ever
//! passes the tombstones of compacted ledger rows, of which a hit product has many.

use mw_domain::{GeoZone, Level, ProductId, Timestamp};
use mw_store::{Result, StoreError};
use scylla::value::CqlTimestamp;
use scylla::{DeserializeValue, SerializeValue};
use uuid::Uuid;

use crate::driver::time::{from_cql, to_cql};
use crate::revision::Revision;
use crate::stock::decision::StockKey;
use crate::stock::ledger::{LedgerRow, LedgerState, LevelAfter, StockHeader};

/// The key of the header in its partition: the first instant of the year 1, before every ledger row.
macro_rules! header_key {
    () => {
        "product_id = ? AND geo_zone = ? AND until = -62135596800000 AND op_id = 00000000-0000-0000-0000-000000000000"
    };
}

/// Reads a [`HeaderRow`].
pub(crate) const SELECT_HEADER: &str = concat!(
    "SELECT rev, on_hand, reserved, compacted, compacted_to, earliest_hold_end, updated_at, recent_op_tokens FROM {} WHERE ",
    header_key!()
);

/// Writes the header on the condition of its revision.
pub(crate) const UPDATE_HEADER: &str = concat!(
    "UPDATE {} SET rev = ?, on_hand = ?, reserved = ?, compacted = ?, compacted_to = ?, earliest_hold_end = ?, \
     updated_at = ?, recent_op_tokens = ? WHERE ",
    header_key!(),
    " IF rev = ?"
);

/// Writes the header of a migrated partition, without a condition.
pub(crate) const PUT_HEADER: &str = concat!(
    "UPDATE {} USING TIMESTAMP ? SET rev = ?, on_hand = ?, reserved = ?, compacted = ?, updated_at = ? WHERE ",
    header_key!()
);

/// Deletes the header of a migrated partition, without a condition.
pub(crate) const DELETE_HEADER: &str = concat!("DELETE FROM {} USING TIMESTAMP ? WHERE ", header_key!());

pub(crate) type HeaderRow = (
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<CqlTimestamp>,
    Option<CqlTimestamp>,
    Option<CqlTimestamp>,
    Option<Vec<Uuid>>,
);

pub(crate) fn read_header(row: HeaderRow) -> Result<StockHeader> {
    let (rev, on_hand, reserved, compacted, compacted_to, earliest_hold_end, updated_at, recent_op_tokens) =
        row;
    Ok(StockHeader {
        rev,
        level: read_level(on_hand, reserved)
            .ok_or_else(|| StoreError::Corrupt("read stock header: negative stock level".to_owned()))?,
        compacted: compacted.unwrap_or_default(),
        compacted_to: compacted_to.map(from_cql),
        earliest_hold_end: earliest_hold_end.map(from_cql),
        updated_at: updated_at.map_or(Timestamp::EPOCH, from_cql),
        recent_op_tokens: recent_op_tokens.unwrap_or_default(),
    })
}

pub(crate) fn revision(header: &StockHeader) -> Revision {
    Revision::new(header.rev, Some(header.recent_op_tokens.clone()))
}

/// The stock level of a header; `None` where a column is negative.
pub(crate) fn read_level(on_hand: Option<i64>, reserved: Option<i64>) -> Option<Level> {
    let units = |column: Option<i64>| u64::try_from(column.unwrap_or_default()).ok();
    Some(Level { on_hand: units(on_hand)?, reserved: units(reserved)? })
}

/// The partition key of a stock row.
pub(crate) fn read_stock_key(product: &str, zone: &str) -> Result<StockKey> {
    Ok(StockKey {
        product_id: ProductId::parse(product).map_err(|_| corrupt_partition(product, zone))?,
        geo_zone: GeoZone::parse(zone).map_err(|_| corrupt_partition(product, zone))?,
    })
}

pub(crate) fn corrupt_partition(product: &str, zone: &str) -> StoreError {
    StoreError::Corrupt(format!("read stock of {product:?} in {zone:?}: invalid key or level"))
}

/// The type `stock_level`.
#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
struct LevelValue {
    on_hand: i64,
    reserved: i64,
    updated_at: CqlTimestamp,
}

/// The value of a ledger row, without its key: the type `stock_operation`.
#[derive(Debug, Clone, SerializeValue, DeserializeValue)]
pub(crate) struct Operation {
    state: String,
    quantity: i64,
    at: CqlTimestamp,
    note: Option<String>,
    result: Option<LevelValue>,
}

impl Operation {
    pub(crate) fn of(row: &LedgerRow) -> Self {
        Self {
            state: row.state.as_str().to_owned(),
            quantity: row.quantity,
            at: to_cql(row.at),
            note: row.note.clone(),
            result: row.result.map(|LevelAfter { level, updated_at }| LevelValue {
                on_hand: level.on_hand.cast_signed(),
                reserved: level.reserved.cast_signed(),
                updated_at: to_cql(updated_at),
            }),
        }
    }

    pub(crate) fn row(self, until: CqlTimestamp, op_id: Uuid) -> Result<LedgerRow> {
        let read_result = |LevelValue { on_hand, reserved, updated_at }| {
            let level = read_level(Some(on_hand), Some(reserved));
            let corrupt = || StoreError::Corrupt(format!("read stock ledger: result of operation {op_id}"));
            level.map(|level| LevelAfter { level, updated_at: from_cql(updated_at) }).ok_or_else(corrupt)
        };
        Ok(LedgerRow {
            until: from_cql(until),
            op_id,
            state: LedgerState::parse(&self.state)?,
            quantity: self.quantity,
            at: from_cql(self.at),
            note: self.note,
            result: self.result.map(read_result).transpose()?,
        })
    }
}

pub(crate) type StoredRow = (CqlTimestamp, Uuid, Option<Operation>);

pub(crate) fn read_row((until, op_id, operation): StoredRow) -> Result<LedgerRow> {
    let missing = || StoreError::Corrupt(format!("read stock ledger: operation {op_id} has no value"));
    operation.ok_or_else(missing)?.row(until, op_id)
}

pub(crate) fn read_rows(rows: Vec<StoredRow>) -> Result<Vec<LedgerRow>> {
    rows.into_iter().map(read_row).collect()
}
