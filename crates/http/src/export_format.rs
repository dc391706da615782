//! The lines of an export: a header, one record a line, and a last line with the number of records.
//!
//! Each record is written straight from the domain's types, which the derived forms mirror field by field: a field that
//! is added there does not compile here until the format has it.

mod carts;
mod check;
mod form;
mod idempotency;
mod orders;
mod products;
mod sessions;
mod stock;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use mw_domain::{
    Cart, CartChange, GeoZone, Order, OrderEvent, Owner, Product, ProductId, Reservation, Session, Timestamp,
    ZoneStock,
};
use mw_domain::{Currency, Movement};
use mw_store::export::Record;
use mw_store::idempotency::StoredOutcome;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use form::{Formed, form, list, one};

pub const FORMAT: &str = "mobile-world";
/// The version that is written, and the newest that is read.
pub const VERSION: u32 = 1;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub format: String,
    pub version: u32,
    /// Unique for each export.
    pub export_id: String,
    pub exported_at: String,
    pub currency: String,
}

impl Header {
    pub fn new(currency: Currency, now: Timestamp) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            export_id: Uuid::new_v4().to_string(),
            exported_at: now.to_string(),
            currency: currency.to_string(),
        }
    }
}

/// The last line: without it the file is truncated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    pub records: u64,
}

/// Any line after the header.
#[derive(Debug)]
pub enum Line {
    Record(Box<Record>),
    End(End),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Record", rename_all = "snake_case", deny_unknown_fields)]
enum RecordForm {
    Product(#[serde(with = "one")] Product),
    Stock {
        #[serde(with = "one")]
        stock: ZoneStock,
        #[serde(with = "list")]
        ledger: Vec<Movement>,
    },
    Ledger {
        #[serde(with = "one")]
        product_id: ProductId,
        #[serde(with = "one")]
        geo_zone: GeoZone,
        #[serde(with = "list")]
        ledger: Vec<Movement>,
    },
    Cart(#[serde(with = "one")] Cart),
    CartChange {
        #[serde(with = "one")]
        owner: Owner,
        #[serde(with = "one")]
        change: CartChange,
    },
    Session(#[serde(with = "one")] Session),
    Reservation(#[serde(with = "one")] Reservation),
    Order {
        #[serde(with = "one")]
        order: Order,
        #[serde(with = "list")]
        events: Vec<OrderEvent>,
    },
    StoredOutcome(#[serde(with = "one")] StoredOutcome),
}
form!(Record as RecordForm);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    end: End,
}

/// How many records there were of each kind.
pub type Counts = BTreeMap<&'static str, u64>;

/// The name of a record in a summary.
pub const fn kind(record: &Record) -> &'static str {
    match record {
        Record::Product(_) => "products",
        Record::Stock { .. } => "stock levels",
        Record::Ledger { .. } => "continued ledgers",
        Record::Cart(_) => "carts",
        Record::CartChange { .. } => "cart changes",
        Record::Session(_) => "sessions",
        Record::Reservation(_) => "reservations",
        Record::Order { .. } => "orders",
        Record::StoredOutcome(_) => "idempotency keys",
    }
}

/// Appends the lines of a page of an export; returns how many there are.
pub fn write_page(records: Vec<Record>, into: &mut Vec<u8>) -> serde_json::Result<u64> {
    let mut lines = 0;
    for part in records.into_iter().flat_map(Record::into_parts) {
        write_record(&part, into)?;
        lines += 1;
    }
    Ok(lines)
}

/// Appends a record as one line.
pub fn write_record(record: &Record, into: &mut Vec<u8>) -> serde_json::Result<()> {
    write_line(&Formed(record), into)
}

pub fn write_header(header: &Header, into: &mut Vec<u8>) -> serde_json::Result<()> {
    write_line(header, into)
}

pub fn write_end(records: u64, into: &mut Vec<u8>) -> serde_json::Result<()> {
    write_line(&EndLine { end: End { records } }, into)
}

fn write_line(value: &impl Serialize, into: &mut Vec<u8>) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *into, value)?;
    into.push(b'\n');
    Ok(())
}

/// Reads the first line; the error says what is wrong with it.
pub fn read_header(line: &[u8]) -> Result<Header, String> {
    let header: Header = serde_json::from_slice(line)
        .map_err(|_| "the file does not begin with the header of an export of mw".to_owned())?;
    if header.format != FORMAT {
        return Err(format!("the format is \"{}\", not \"{FORMAT}\"", header.format));
    }
    if header.version > VERSION {
        return Err(format!(
            "the file has version {} and this mw reads up to {VERSION}: import it with a newer mw",
            header.version
        ));
    }
    Ok(header)
}

/// Reads a line after the header and checks that the shop's rules hold for it; the error says what is wrong with it.
pub fn read_line(line: &[u8]) -> Result<Line, String> {
    if line.starts_with(b"{\"end\"") {
        let line: EndLine = read_json(line)?;
        return Ok(Line::End(line.end));
    }
    let Formed(record) = read_json::<Formed<Record>>(line)?;
    check::record(&record).map_err(|invalid| invalid.to_string())?;
    Ok(Line::Record(Box::new(record)))
}

fn read_json<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    let mut reader = serde_json::Deserializer::from_slice(line);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let cause = plain(error.inner());
        if path == "." { cause } else { format!("{path}: {cause}") }
    })?;
    reader.end().map_err(|error| plain(&error))?;
    Ok(value)
}

/// The cause without serde's own line number, which is always 1 here.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line 1 column ") {
        Some((cause, column)) => format!("{cause} (column {column})"),
        None => text,
    }
}
