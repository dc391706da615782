//! The state of a migration, as rows in the target: where it is, how far each range and the change stream are, what each
//! document became, and what was rejected. Each row is a BSON document.

use std::collections::BTreeMap;

use mongodb::bson::{Array, Bson, Document, Timestamp as ClusterTime, doc};
use mw_domain::{GeoZone, Owner, ProductId, SessionId, Timestamp, UserId};
use mw_store::migration::{CartKey, Change, MigrationTarget};
use mw_store_mongodb::foreign;

use crate::error::{MigrateError, Result};
use crate::key::{Id, Key, Kind, decode, encode};
use crate::mapping::Rejection;
use crate::source::Bounds;
use crate::source::stream::Position;

pub(crate) const META: &[u8] = b"meta";
pub(crate) const COUNTS: &[u8] = b"counts";
pub(crate) const POSITION: &[u8] = b"position";
pub(crate) const RANGES: &[u8] = b"range/";
pub(crate) const REJECTED: &[u8] = b"rejected/";
/// Rows that are only needed while documents are taken.
pub(crate) const WORKING: [&[u8]; 4] = [b"doc/", b"owner/", b"stock/", RANGES];
/// Rows of a scan.
pub(crate) const ROWS_AT_ONCE: usize = 1_000;

/// What the migration does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Copy,
    Follow,
    Cutover,
    Done,
    Aborted,
}

impl Phase {
    const ALL: [Self; 5] = [Self::Copy, Self::Follow, Self::Cutover, Self::Done, Self::Aborted];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Follow => "follow",
            Self::Cutover => "cutover",
            Self::Done => "done",
            Self::Aborted => "aborted",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == text)
    }
}

/// The migration as a whole.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Meta {
    pub(crate) phase: Phase,
    /// The source without credentials, to recognise it.
    pub(crate) source: String,
    /// Whether the writes of the source's programs may be blocked by this migration.
    pub(crate) blocked: bool,
    pub(crate) verified_up_to: Option<Timestamp>,
}

impl Meta {
    pub(crate) fn change(&self) -> Result<Change> {
        let mut document =
            doc! { "phase": self.phase.as_str(), "source": &self.source, "blocked": self.blocked };
        if let Some(at) = self.verified_up_to {
            document.insert("verified_up_to", at.as_millis());
        }
        row(META.to_vec(), &document)
    }

    pub(crate) async fn load(target: &dyn MigrationTarget) -> Result<Option<Self>> {
        let Some(document) = load_one(target, META).await? else { return Ok(None) };
        let phase = document.get_str("phase").ok().and_then(Phase::parse);
        Ok(Some(Self {
            phase: phase.ok_or(MigrateError::State("the phase"))?,
            source: document.get_str("source").unwrap_or_default().to_owned(),
            blocked: document.get_bool("blocked").unwrap_or(false),
            verified_up_to: document.get_i64("verified_up_to").ok().map(Timestamp::from_millis),
        }))
    }
}

/// What was counted of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub total: u64,
    pub copied: u64,
    pub changes: u64,
    pub rejected: u64,
    pub mismatched: u64,
}

/// The counts of all collections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllCounts(pub [Counts; Kind::ALL.len()]);

impl AllCounts {
    #[expect(clippy::indexing_slicing, reason = "one entry for each kind")]
    pub fn of(&self, kind: Kind) -> &Counts {
        &self.0[kind as usize]
    }

    #[expect(clippy::indexing_slicing, reason = "one entry for each kind")]
    pub(crate) fn of_mut(&mut self, kind: Kind) -> &mut Counts {
        &mut self.0[kind as usize]
    }

    pub(crate) fn change(&self) -> Result<Change> {
        let mut document = Document::new();
        for kind in Kind::ALL {
            let Counts { total, copied, changes, rejected, mismatched } = self.of(kind);
            let numbers = [total, copied, changes, rejected, mismatched];
            let numbers: Array = numbers.into_iter().map(|number| Bson::from(number.cast_signed())).collect();
            document.insert(kind.collection(), numbers);
        }
        row(COUNTS.to_vec(), &document)
    }

    pub(crate) async fn load(target: &dyn MigrationTarget) -> Result<Self> {
        let mut counts = Self::default();
        let Some(document) = load_one(target, COUNTS).await? else { return Ok(counts) };
        for kind in Kind::ALL {
            let numbers = document.get_array(kind.collection()).cloned().unwrap_or_default();
            let number = |at: usize| numbers.get(at).and_then(Bson::as_i64).unwrap_or(0).cast_unsigned();
            *counts.of_mut(kind) = Counts {
                total: number(0),
                copied: number(1),
                changes: number(2),
                rejected: number(3),
                mismatched: number(4),
            };
        }
        Ok(counts)
    }
}

pub(crate) fn position_change(position: &Position, time: Option<ClusterTime>) -> Result<Change> {
    let mut document = match position {
        Position::At(at) => doc! { "at": *at },
        Position::After(token) => doc! { "after": token.clone() },
    };
    if let Some(time) = time {
        document.insert("time", time);
    }
    row(POSITION.to_vec(), &document)
}

/// Where the stream continues, and the time up to which it was taken.
pub(crate) async fn load_position(
    target: &dyn MigrationTarget,
) -> Result<Option<(Position, Option<ClusterTime>)>> {
    let Some(document) = load_one(target, POSITION).await? else { return Ok(None) };
    let time = document.get_timestamp("time").ok();
    let position = match (document.get("after"), document.get_timestamp("at")) {
        (Some(token), _) => Position::After(token.clone()),
        (None, Ok(at)) => Position::At(at),
        (None, Err(_)) => return Err(MigrateError::State("the position of the change stream")),
    };
    Ok(Some((position, time)))
}

/// A range of a collection and how far it is copied.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Range {
    pub(crate) kind: Kind,
    pub(crate) number: usize,
    pub(crate) bounds: Bounds,
    /// The last document that was copied.
    pub(crate) after: Option<Bson>,
    pub(crate) done: bool,
}

impl Range {
    pub(crate) fn change(&self) -> Result<Change> {
        let number = i64::try_from(self.number).map_err(|_| MigrateError::State("the number of a range"))?;
        let mut document = doc! { "kind": self.kind.collection(), "number": number, "done": self.done };
        for (field, value) in [("from", &self.bounds.from), ("to", &self.bounds.to), ("after", &self.after)] {
            if let Some(value) = value {
                document.insert(field, value.clone());
            }
        }
        let key = format!("{}/{:06}", self.kind.collection(), self.number);
        row([RANGES, key.as_bytes()].concat(), &document)
    }

    fn read(document: &Document) -> Option<Self> {
        let bound = |field: &str| document.get(field).cloned();
        Some(Self {
            kind: Kind::of_collection(document.get_str("kind").ok()?)?,
            number: usize::try_from(document.get_i64("number").ok()?).ok()?,
            bounds: Bounds { from: bound("from"), to: bound("to") },
            after: bound("after"),
            done: document.get_bool("done").ok()?,
        })
    }

    pub(crate) async fn load_all(target: &dyn MigrationTarget) -> Result<Vec<Self>> {
        let rows = scan(target, RANGES).await?;
        let read = |(_, document): &(Vec<u8>, Document)| Self::read(document);
        let mut ranges: Option<Vec<Self>> = rows.iter().map(read).collect();
        if let Some(ranges) = &mut ranges {
            ranges.sort_by_key(|range| (range.kind, range.number));
        }
        ranges.ok_or(MigrateError::State("a range"))
    }
}

/// What a document became, as far as its later changes need it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Taken {
    /// What can be sold, by zone.
    Product(BTreeMap<GeoZone, u64>),
    /// The units that a created order holds.
    Order {
        at: Timestamp,
        zone: GeoZone,
        held: BTreeMap<ProductId, u64>,
    },
    Cart(CartKey),
}

pub(crate) fn doc_key(key: &Key) -> Vec<u8> {
    of_document(b"doc/", key)
}

pub(crate) fn rejected_key(key: &Key) -> Vec<u8> {
    of_document(REJECTED, key)
}

fn of_document(prefix: &[u8], key: &Key) -> Vec<u8> {
    [prefix, key.kind.collection().as_bytes(), b"/", key.id.bytes()].concat()
}

impl Taken {
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let document = match self {
            Self::Product(zones) => {
                let zones =
                    zones.iter().map(|(zone, units)| doc! { "z": zone.as_str(), "u": units.cast_signed() });
                doc! { "zones": zones.collect::<Vec<_>>() }
            }
            Self::Order { at, zone, held } => {
                let held = held.iter().map(|(id, units)| doc! { "p": id.as_str(), "u": units.cast_signed() });
                doc! { "at": at.as_millis(), "zone": zone.as_str(), "held": held.collect::<Vec<_>>() }
            }
            Self::Cart(key) => doc! {
                "owner": owner_text(&key.owner), "created_at": key.created_at.as_millis(),
                "id": foreign::id_of_cart(key.cart_id),
            },
        };
        encode(&document)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let read = decode(bytes).and_then(|document| Self::read(&document));
        read.ok_or(MigrateError::State("a document that was taken"))
    }

    fn read(document: &Document) -> Option<Self> {
        let units = |entry: &Bson| Some(entry.as_document()?.get_i64("u").ok()?.cast_unsigned());
        if let Ok(zones) = document.get_array("zones") {
            let zone = |entry: &Bson| GeoZone::parse(entry.as_document()?.get_str("z").ok()?).ok();
            return zones
                .iter()
                .map(|it| Some((zone(it)?, units(it)?)))
                .collect::<Option<_>>()
                .map(Self::Product);
        }
        if let Ok(held) = document.get_array("held") {
            let product = |entry: &Bson| ProductId::parse(entry.as_document()?.get_str("p").ok()?).ok();
            return Some(Self::Order {
                at: Timestamp::from_millis(document.get_i64("at").ok()?),
                zone: GeoZone::parse(document.get_str("zone").ok()?).ok()?,
                held: held.iter().map(|it| Some((product(it)?, units(it)?))).collect::<Option<_>>()?,
            });
        }
        let key = CartKey {
            owner: read_owner(document.get_str("owner").ok()?)?,
            created_at: Timestamp::from_millis(document.get_i64("created_at").ok()?),
            cart_id: foreign::cart_id(document.get("id")?)?,
        };
        Some(Self::Cart(key))
    }
}

/// The figures behind a stock level: what can be sold, if the product has an entry, and what created orders hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StockFigures {
    pub(crate) sellable: Option<u64>,
    pub(crate) held: u64,
}

pub(crate) fn stock_key(product_id: &ProductId, zone: &GeoZone) -> Vec<u8> {
    [b"stock/", product_id.as_str().as_bytes(), b"\0", zone.as_str().as_bytes()].concat()
}

impl StockFigures {
    pub(crate) fn encode(self) -> Result<Vec<u8>> {
        let mut document = doc! { "held": self.held.cast_signed() };
        if let Some(units) = self.sellable {
            document.insert("sellable", units.cast_signed());
        }
        encode(&document)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let document = decode(bytes).ok_or(MigrateError::State("a stock level"))?;
        Ok(Self {
            sellable: document.get_i64("sellable").ok().map(i64::cast_unsigned),
            held: document.get_i64("held").map_err(|_| MigrateError::State("a stock level"))?.cast_unsigned(),
        })
    }
}

pub(crate) fn owner_text(owner: &Owner) -> String {
    match owner {
        Owner::User(id) => format!("u:{id}"),
        Owner::Session(id) => format!("s:{id}"),
    }
}

fn read_owner(text: &str) -> Option<Owner> {
    match text.split_once(':')? {
        ("u", id) => UserId::parse(id).ok().map(Owner::User),
        ("s", id) => SessionId::parse(id).ok().map(Owner::Session),
        _ => None,
    }
}

/// The active carts of an owner: their documents, and when they were updated.
pub(crate) type ActiveCarts = BTreeMap<Id, Timestamp>;

pub(crate) fn owner_key(owner: &Owner) -> Vec<u8> {
    [b"owner/", owner_text(owner).as_bytes()].concat()
}

pub(crate) fn encode_carts(carts: &ActiveCarts) -> Result<Vec<u8>> {
    let entry = |(id, at): (&Id, &Timestamp)| Ok(doc! { "id": id.value()?, "at": at.as_millis() });
    encode(&doc! { "carts": carts.iter().map(entry).collect::<Result<Vec<_>>>()? })
}

pub(crate) fn decode_carts(bytes: &[u8]) -> Result<ActiveCarts> {
    let read = |document: &Document| {
        let entry = |entry: &Bson| {
            let entry = entry.as_document()?;
            Some((Id::new(entry.get("id")?).ok()?, Timestamp::from_millis(entry.get_i64("at").ok()?)))
        };
        document.get_array("carts").ok()?.iter().map(entry).collect::<Option<ActiveCarts>>()
    };
    decode(bytes).as_ref().and_then(read).ok_or(MigrateError::State("the carts of an owner"))
}

pub(crate) fn encode_rejection(rejection: &Rejection) -> Result<Vec<u8>> {
    encode(&doc! {
        "reason": &rejection.reason, "advice": &rejection.advice, "blocking": rejection.blocking,
    })
}

pub(crate) fn decode_rejection(bytes: &[u8]) -> Result<Rejection> {
    let read = |document: &Document| {
        Some(Rejection {
            reason: document.get_str("reason").ok()?.to_owned(),
            advice: document.get_str("advice").ok()?.to_owned(),
            blocking: document.get_bool("blocking").ok()?,
        })
    };
    decode(bytes).as_ref().and_then(read).ok_or(MigrateError::State("a rejected document"))
}

/// The document that a row under [`REJECTED`] names.
pub(crate) fn read_rejected_key(row: &[u8]) -> Option<Key> {
    let rest = row.strip_prefix(REJECTED)?;
    let at = rest.iter().position(|byte| *byte == b'/')?;
    let (kind, id) = rest.split_at_checked(at)?;
    let kind = Kind::of_collection(std::str::from_utf8(kind).ok()?)?;
    Some(Key { kind, id: Id::from_bytes(id.get(1..)?) })
}

fn row(key: Vec<u8>, document: &Document) -> Result<Change> {
    Ok(Change::State { key, value: Some(encode(document)?) })
}

async fn load_one(target: &dyn MigrationTarget, key: &[u8]) -> Result<Option<Document>> {
    let value = target.state(vec![key.to_vec()]).await?.into_iter().next().flatten();
    value.map(|bytes| decode(&bytes).ok_or(MigrateError::State("a row"))).transpose()
}

/// All rows with a prefix.
async fn scan(target: &dyn MigrationTarget, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Document)>> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let rows = target.states(prefix.to_vec(), after.take(), ROWS_AT_ONCE).await?;
        let is_last = rows.len() < ROWS_AT_ONCE;
        after = rows.last().map(|(key, _)| key.clone());
        for (key, value) in rows {
            found.push((key, decode(&value).ok_or(MigrateError::State("a row"))?));
        }
        if is_last {
            return Ok(found);
        }
    }
}
