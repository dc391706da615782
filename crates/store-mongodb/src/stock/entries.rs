//! The stock entries of a product document, in both shapes, with what the service adds to an entry.
//!
//! `quantity` is what can be sold; every program of the shop may change it. Beside it stand `reserved` (units of open
//! holds, so `on_hand = quantity + reserved`), `recorded` (`quantity` as the service last wrote it: the difference is
//! what other programs did since), `hold_end` (no open hold ends earlier) and `updated_at`. An entry without `recorded`
//! was written by another program as a whole, and the ledger says what is reserved.

use mongodb::bson::{Bson, Document, doc};
use mw_domain::{GeoZone, Level, Timestamp};

use crate::documents::Shape;
use crate::documents::times::{read_time, to_bson_time};

/// The array of a product document that holds its stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StockArray {
    /// `stocks[{geozone, quantity}]`
    Stocks,
    /// `stock[{zone, quantity}]`
    Stock,
}

impl StockArray {
    pub(crate) const ALL: [Self; 2] = [Self::Stocks, Self::Stock];

    pub(crate) const fn of_shape(shape: Shape) -> Self {
        match shape {
            Shape::Customer => Self::Stocks,
            Shape::User => Self::Stock,
        }
    }

    /// The array that a document has; where it has none, that of the configured shape.
    pub(crate) fn of_document(document: &Document, shape: Shape) -> Self {
        let is_array = |array: &Self| matches!(document.get(array.field()), Some(Bson::Array(_)));
        Self::ALL.into_iter().find(is_array).unwrap_or(Self::of_shape(shape))
    }

    pub(crate) const fn field(self) -> &'static str {
        match self {
            Self::Stocks => "stocks",
            Self::Stock => "stock",
        }
    }

    pub(crate) const fn zone_field(self) -> &'static str {
        match self {
            Self::Stocks => "geozone",
            Self::Stock => "zone",
        }
    }
}

/// One entry: the stock of a product in a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StockEntry {
    /// Its position in the array.
    pub(crate) index: usize,
    pub(crate) geo_zone: GeoZone,
    /// What can be sold. Negative where another program sold more than there was.
    pub(crate) quantity: i64,
    pub(crate) reserved: u64,
    /// `None` where another program wrote the entry as a whole.
    pub(crate) recorded: Option<i64>,
    pub(crate) hold_end: Option<Timestamp>,
    pub(crate) updated_at: Timestamp,
}

impl StockEntry {
    pub(crate) fn level(&self) -> Level {
        let available = u64::try_from(self.quantity).unwrap_or_default();
        Level { on_hand: available + self.reserved, reserved: self.reserved }
    }

    /// The entry in the array at `index`; `None` where zone or quantity cannot be read.
    fn read(array: StockArray, index: usize, entry: &Bson) -> Option<Self> {
        let entry = entry.as_document()?;
        let time = |field| entry.get(field).and_then(read_time);
        Some(Self {
            index,
            geo_zone: GeoZone::parse(entry.get_str(array.zone_field()).ok()?).ok()?,
            quantity: whole_units(entry.get("quantity")?)?,
            reserved: entry
                .get("reserved")
                .and_then(whole_units)
                .map_or(0, |units| u64::try_from(units).unwrap_or(0)),
            recorded: entry.get("recorded").and_then(whole_units),
            hold_end: time("hold_end"),
            updated_at: time("updated_at").unwrap_or(Timestamp::EPOCH),
        })
    }
}

/// The readable entries of a product document; of two for one zone the first.
pub(crate) fn read_entries(document: &Document, array: StockArray) -> Vec<StockEntry> {
    let Some(Bson::Array(values)) = document.get(array.field()) else { return Vec::new() };
    let mut entries: Vec<StockEntry> = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        match StockEntry::read(array, index, value) {
            Some(entry) if entries.iter().all(|known| known.geo_zone != entry.geo_zone) => {
                entries.push(entry);
            }
            _ => {}
        }
    }
    entries
}

/// An entry as the service writes it anew.
pub(crate) fn new_entry(array: StockArray, entry: &StockEntry) -> Document {
    let mut document = doc! {
        array.zone_field(): entry.geo_zone.as_str(),
        "quantity": entry.quantity,
        "reserved": entry.reserved.cast_signed(),
        "recorded": entry.recorded.unwrap_or_default(),
        "updated_at": to_bson_time(entry.updated_at),
    };
    if let Some(end) = entry.hold_end {
        document.insert("hold_end", to_bson_time(end));
    }
    document
}

/// A count of units in any number type; a fraction is no unit.
pub(crate) fn whole_units(value: &Bson) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "counts of units are far below 2^53")]
    let whole = |number: f64| number.is_finite().then(|| number.floor() as i64);
    match value {
        Bson::Int32(units) => Some(i64::from(*units)),
        Bson::Int64(units) => Some(*units),
        Bson::Double(number) => whole(*number),
        Bson::Decimal128(number) => number.to_string().parse().ok().and_then(whole),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(document: &Document) -> Vec<StockEntry> {
        read_entries(document, StockArray::of_document(document, Shape::Customer))
    }

    #[test]
    fn entries_of_both_shapes_and_all_number_types_are_read() {
        let customer = doc! { "stocks": [
            { "geozone": "north", "quantity": 5 },
            { "geozone": "south", "quantity": 2.0, "reserved": 3_i64, "recorded": 4_i64 },
            { "geozone": "south", "quantity": 9 },
            { "geozone": "west", "quantity": "many" },
        ] };
        let read = entries(&customer);
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].quantity, read[0].recorded), (5, None));
        assert_eq!((read[1].index, read[1].level()), (1, Level { on_hand: 5, reserved: 3 }));
        let user = doc! { "stock": [{ "zone": "north", "quantity": 7_i64 }] };
        assert_eq!(entries(&user)[0].level(), Level { on_hand: 7, reserved: 0 });
        assert_eq!(entries(&doc! {}), []);
    }

    #[test]
    fn an_entry_that_another_program_oversold_has_nothing_to_sell() {
        let document = doc! { "stocks": [{ "geozone": "north", "quantity": -2, "reserved": 3 }] };
        assert_eq!(entries(&document)[0].level(), Level { on_hand: 3, reserved: 3 });
    }

    #[test]
    fn a_written_entry_reads_back() {
        for array in StockArray::ALL {
            let entry = StockEntry {
                index: 0,
                geo_zone: GeoZone::parse("north").unwrap(),
                quantity: 4,
                reserved: 2,
                recorded: Some(4),
                hold_end: Some(Timestamp::from_millis(5)),
                updated_at: Timestamp::from_millis(3),
            };
            let document = doc! { array.field(): [new_entry(array, &entry)] };
            assert_eq!(entries(&document), [entry]);
        }
    }
}
