//! Holds that expire. They count as available from that second on where stock is read or sold; releasing them in the
//! ledger follows. Every process may release them: a hold is released once, by the transaction that finds it open.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use mw_domain::{GeoZone, ProductId, Timestamp};
use mw_store::stock::decision::StockKey;
use mw_store::stock::ledger::LedgerState;
use mw_store::{Freshness, Result, StoreError};
use uuid::Uuid;

use crate::MongoStore;
use crate::documents::ids::{read_plain_uuid, to_bson_id};
use crate::documents::times::{read_time, to_bson_time};
use crate::driver::transaction::Stop;
use crate::stock::command::StockRequest;
use crate::stock::entries::{StockArray, StockEntry, read_entries, whole_units};
use crate::stock::ledger::{COMPACTED, EXTERNAL, read_key, rows_of};

/// Expired holds of one call.
const CALL_MAX: usize = 1_000;
/// Products and zones whose holds are released at the same time.
const CONCURRENT: usize = 16;

/// Units of expired holds by zone.
pub(super) type ExpiredUnits = Vec<(GeoZone, u64)>;

/// The sums of the ledger of a product in a zone.
#[derive(Debug, Default)]
pub(super) struct LedgerSum {
    pub(super) on_hand: i64,
    pub(super) held: u64,
    pub(super) earliest_hold_end: Option<Timestamp>,
}

impl MongoStore {
    /// Releases up to `limit` expired holds; returns how many reservations expired.
    pub(super) async fn expire_holds(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let (mut expired, mut left) = (0, limit);
        while left > 0 {
            let wanted = CALL_MAX.min(left);
            let filter = doc! { "state": LedgerState::Held.as_str(), "until": { "$lte": to_bson_time(now) } };
            let query = self
                .sales
                .ledger
                .find(filter)
                .sort(doc! { "until": 1 })
                .limit(i64::try_from(wanted).unwrap_or(i64::MAX))
                .projection(doc! { "_id": 1 })
                .selection_criteria(self.reads.criteria(Freshness::Latest));
            let due = self.collect(query).await?;
            left -= due.len();
            let mut by_key: BTreeMap<StockKey, Vec<Uuid>> = BTreeMap::new();
            for row in &due {
                let (key, op_id) = read_row_id(row)?;
                by_key.entry(key).or_default().push(op_id);
            }
            let releases = by_key.into_iter().map(|(key, op_ids)| async move {
                let request = StockRequest::ExpireHolds { key: key.clone(), op_ids, now };
                self.submit(request, vec![key], 0).await?.expired()
            });
            let releases: Vec<_> = releases.collect();
            let results: Vec<Result<usize>> =
                stream::iter(releases).buffer_unordered(CONCURRENT).collect().await;
            for result in results {
                expired += result?;
            }
            if due.len() < wanted {
                break;
            }
        }
        Ok(expired)
    }

    /// The entries of a product and the units of its expired holds, of one instant.
    pub(super) async fn entries_with_expired(
        &self,
        product_id: &ProductId,
        now: Timestamp,
    ) -> Result<(Vec<StockEntry>, ExpiredUnits)> {
        let read = async {
            let mut session = self.snapshot_session().await?;
            let filter = doc! { "_id": to_bson_id(product_id.as_str()) };
            let mut entries = Vec::new();
            for collection in [&self.collections.products, &self.sales.unlisted_stock] {
                let collection = self.snapshot_of(collection);
                if let Some(document) = collection.find_one(filter.clone()).session(&mut session).await? {
                    entries = read_entries(&document, StockArray::of_document(&document, self.options.shape));
                    break;
                }
            }
            let expired = self.expired_units(&mut session, product_id, now).await?;
            Ok::<_, mongodb::error::Error>((entries, expired))
        };
        self.read(read).await
    }

    async fn expired_units(
        &self,
        session: &mut ClientSession,
        product_id: &ProductId,
        now: Timestamp,
    ) -> Result<ExpiredUnits, mongodb::error::Error> {
        let pipeline = vec![
            doc! { "$match": {
                "_id.product": to_bson_id(product_id.as_str()),
                "state": LedgerState::Held.as_str(),
                "until": { "$lte": to_bson_time(now) },
            } },
            doc! { "$group": { "_id": "$_id.zone", "units": { "$sum": "$quantity" } } },
        ];
        let ledger = self.snapshot_of(&self.sales.ledger);
        let mut cursor = ledger.aggregate(pipeline).session(&mut *session).await?;
        let mut expired = Vec::new();
        while let Some(zone) = cursor.next(session).await {
            let zone = zone?;
            let units = zone.get("units").and_then(whole_units).and_then(|units| u64::try_from(units).ok());
            if let (Ok(name), Some(units)) = (zone.get_str("_id"), units)
                && let Ok(geo_zone) = GeoZone::parse(name)
            {
                expired.push((geo_zone, units));
            }
        }
        Ok(expired)
    }

    /// Adds up the ledger of a product in a zone, for an entry that another program wrote as a whole.
    pub(super) async fn ledger_sum(
        &self,
        session: &mut ClientSession,
        key: &StockKey,
    ) -> Result<LedgerSum, Stop> {
        let pipeline = vec![doc! { "$match": { "_id": rows_of(key) } }, group(Bson::Null)];
        let mut cursor = self.sales.ledger.aggregate(pipeline).session(&mut *session).await?;
        let Some(sum) = cursor.next(session).await else { return Ok(LedgerSum::default()) };
        Ok(read_sum(&sum?)?)
    }
}

/// The stage that adds up ledger rows by `id`.
pub(super) fn group(id: Bson) -> Document {
    let is = |state: &str| doc! { "$eq": ["$state", state] };
    let moved = |state: LedgerState| is(state.as_str());
    let units = doc! { "$switch": {
        "branches": [
            { "case": moved(LedgerState::Taken), "then": { "$multiply": ["$quantity", -1] } },
            {
                "case": { "$or": [moved(LedgerState::Set), moved(LedgerState::Adjusted), is(EXTERNAL), is(COMPACTED)] },
                "then": "$quantity",
            },
        ],
        "default": 0,
    } };
    let held = doc! { "$cond": [moved(LedgerState::Held), "$quantity", 0] };
    let end = doc! { "$cond": [moved(LedgerState::Held), "$until", Bson::Null] };
    doc! { "$group": {
        "_id": id,
        "on_hand": { "$sum": units },
        "held": { "$sum": held },
        "earliest_hold_end": { "$min": end },
        "movements": { "$sum": { "$ifNull": ["$movements", 1] } },
        "external": { "$sum": { "$cond": [is(EXTERNAL), 1, { "$ifNull": ["$external", 0] }] } },
    } }
}

pub(super) fn read_sum(sum: &Document) -> Result<LedgerSum> {
    let units = |field| sum.get(field).and_then(whole_units);
    let read = || {
        Some(LedgerSum {
            on_hand: units("on_hand")?,
            held: u64::try_from(units("held")?).ok()?,
            earliest_hold_end: sum.get("earliest_hold_end").and_then(read_time),
        })
    };
    read().ok_or_else(|| StoreError::Corrupt(format!("add up stock ledger: {sum}")))
}

/// The product, zone and operation of a ledger row.
pub(super) fn read_row_id(row: &Document) -> Result<(StockKey, Uuid)> {
    let read = || {
        let id = row.get_document("_id").ok()?;
        let key = read_key(id)?;
        Some((key, read_plain_uuid(id.get("op")?)?))
    };
    read().ok_or_else(|| StoreError::Corrupt(format!("read stock ledger: row {:?}", row.get("_id"))))
}
