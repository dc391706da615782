//! Takes documents: turns what was read of them into changes of the target, with everything that follows from them, and
//! writes the changes with the new state.
//!
//! One task takes all documents, of the copy and of the change stream alike, one batch after another. Invariant: a document is
//! never replaced by an older reading of itself. A copied page began to be read at some number of the counter of readings; a
//! document of it that was read again for a change at a higher number is left out.

pub(crate) mod carts;
mod stock;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mongodb::bson::{Bson, Document, Timestamp as ClusterTime};
use mw_domain::stock::Cause;
use mw_domain::{Movement, OrderStatus, Timestamp};
use mw_store::migration::{Change, MigrationTarget};
use mw_store_mongodb::foreign::{self, ReadOrder};

use crate::clock;
use crate::error::Result;
use crate::key::{Key, Kind};
use crate::mapping::{self, Outcome, Rejection, Settings};
use crate::source::Source;
use crate::source::stream::Position;
use crate::state::{self, AllCounts, Range, Taken};
use carts::ActiveCartsOf;
use stock::StockEdits;

/// Documents that were read, and what is known after they are taken.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) documents: BTreeMap<Key, Option<Document>>,
    /// The counter of readings before this one began.
    pub(crate) number: u64,
    pub(crate) of: Of,
}

#[derive(Debug)]
pub(crate) enum Of {
    /// A page of a range, which is copied that far with it.
    Copy(Box<Range>),
    Changes {
        events: [u64; Kind::ALL.len()],
        position: Option<Position>,
        time: Option<ClusterTime>,
    },
    /// Documents that are taken again without a change.
    Again,
}

/// Numbers the readings of documents.
#[derive(Debug, Default)]
pub(crate) struct Readings(AtomicU64);

impl Readings {
    /// The number of a copied page, before it is read.
    pub(crate) fn of_copy(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// The number of a reading for changes, before it begins.
    pub(crate) fn of_changes(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// The one who takes.
pub(crate) struct Taker {
    source: Arc<Source>,
    target: Arc<dyn MigrationTarget>,
    settings: Arc<Settings>,
    counts: AllCounts,
    /// While documents are copied: the last reading of each document that changed meanwhile.
    read_again: HashMap<Key, u64>,
    pub(crate) is_copying: bool,
}

/// What is known of a document before it is taken.
#[derive(Default)]
struct Before {
    taken: Option<Taken>,
    rejection: Option<Rejection>,
}

/// A batch while its changes are found.
pub(crate) struct Batch {
    now: Timestamp,
    changes: Vec<Change>,
    /// Written after all other changes of carts.
    active_carts: Vec<Change>,
    stock: StockEdits,
}

impl Batch {
    fn new() -> Self {
        Self {
            now: clock::now(),
            changes: Vec::new(),
            active_carts: Vec::new(),
            stock: StockEdits::default(),
        }
    }
}

impl Taker {
    pub(crate) fn new(
        source: Arc<Source>,
        target: Arc<dyn MigrationTarget>,
        settings: Arc<Settings>,
        counts: AllCounts,
    ) -> Self {
        Self { source, target, settings, counts, read_again: HashMap::new(), is_copying: false }
    }

    pub(crate) const fn counts(&self) -> &AllCounts {
        &self.counts
    }

    pub(crate) const fn counts_mut(&mut self) -> &mut AllCounts {
        &mut self.counts
    }

    /// The copy is done: no page can bring an older reading any more.
    pub(crate) fn end_copy(&mut self) {
        self.is_copying = false;
        self.read_again = HashMap::new();
    }

    /// Takes the documents of a reading. After an error nothing is known to be written; the reading may be taken again.
    pub(crate) async fn take(&mut self, reading: &Reading) -> Result<()> {
        let mut documents = reading.documents.clone();
        let mut counts = self.counts;
        Self::count(reading, &mut counts);
        if let Of::Copy(_) = reading.of {
            documents
                .retain(|key, _| self.read_again.get(key).is_none_or(|number| *number <= reading.number));
        }
        let mut batch = Batch::new();
        let carts = self.complete_owners(&mut documents, batch.now).await?;
        let before = self.before(documents.keys()).await?;
        let outcomes = self.outcomes(&documents).await?;
        for ((key, outcome), before) in outcomes.iter().zip(&before) {
            Self::take_one(&mut batch, key, outcome, before, &carts, &mut counts)?;
        }
        batch.changes.append(&mut batch.active_carts);
        carts.write(&mut batch.changes)?;
        let stock = std::mem::take(&mut batch.stock);
        stock.write(&*self.target, batch.now, &mut batch.changes).await?;
        progress(reading, &mut batch.changes)?;
        batch.changes.push(counts.change()?);
        // A crash before this write leaves the state as it was, and the next run reads the same documents again; on a target
        // that writes the changes one by one, each is written again by that run, the state last.
        self.target.apply(batch.changes).await?;
        self.counts = counts;
        if self.is_copying && !matches!(reading.of, Of::Copy(_)) {
            self.read_again.extend(documents.into_keys().map(|key| (key, reading.number)));
        }
        Ok(())
    }

    fn count(reading: &Reading, counts: &mut AllCounts) {
        match &reading.of {
            Of::Copy(range) => counts.of_mut(range.kind).copied += reading.documents.len() as u64,
            Of::Changes { events, .. } => {
                for (kind, events) in Kind::ALL.into_iter().zip(events) {
                    counts.of_mut(kind).changes += events;
                }
            }
            Of::Again => {}
        }
    }

    async fn before(&self, keys: impl Iterator<Item = &Key>) -> Result<Vec<Before>> {
        let rows = keys.flat_map(|key| [state::doc_key(key), state::rejected_key(key)]).collect();
        let rows = self.target.state(rows).await?;
        let mut before = Vec::with_capacity(rows.len() / 2);
        let mut rows = rows.into_iter();
        while let (Some(taken), Some(rejection)) = (rows.next(), rows.next()) {
            before.push(Before {
                taken: taken.map(|row| Taken::decode(&row)).transpose()?,
                rejection: rejection.map(|row| state::decode_rejection(&row)).transpose()?,
            });
        }
        Ok(before)
    }

    async fn outcomes(&self, documents: &BTreeMap<Key, Option<Document>>) -> Result<Vec<(Key, Outcome)>> {
        outcomes(&self.source, &self.settings, documents).await
    }

    fn take_one(
        batch: &mut Batch,
        key: &Key,
        outcome: &Outcome,
        before: &Before,
        carts: &ActiveCartsOf,
        counts: &mut AllCounts,
    ) -> Result<()> {
        let id = key.id.value()?;
        let mut rejection = match outcome {
            Outcome::Rejected(rejection) => Some(rejection.clone()),
            _ => None,
        };
        let taken = match key.kind {
            Kind::Products => take_product(batch, &id, outcome, before),
            Kind::Orders => take_order(batch, &id, outcome, before),
            Kind::Carts => {
                let (taken, set_aside) = carts.take(batch, key, outcome, before.taken.as_ref());
                rejection = rejection.or(set_aside);
                taken
            }
        };
        if taken != before.taken {
            let value = taken.as_ref().map(Taken::encode).transpose()?;
            batch.changes.push(Change::State { key: state::doc_key(key), value });
        }
        if rejection != before.rejection {
            let blocks = |rejection: &Option<Rejection>| rejection.as_ref().is_some_and(|it| it.blocking);
            let rejected = &mut counts.of_mut(key.kind).rejected;
            *rejected =
                rejected.saturating_sub(u64::from(blocks(&before.rejection))) + u64::from(blocks(&rejection));
            let value = rejection.as_ref().map(state::encode_rejection).transpose()?;
            batch.changes.push(Change::State { key: state::rejected_key(key), value });
        }
        Ok(())
    }
}

/// How far copy or stream are after the batch.
fn progress(reading: &Reading, changes: &mut Vec<Change>) -> Result<()> {
    match &reading.of {
        Of::Copy(range) => changes.push(range.change()?),
        Of::Changes { position: Some(position), time, .. } => {
            changes.push(state::position_change(position, *time)?);
        }
        Of::Changes { position: None, .. } | Of::Again => {}
    }
    Ok(())
}

/// Reads documents, and names the lines of orders after the products of the source.
pub(crate) async fn outcomes(
    source: &Source,
    settings: &Settings,
    documents: &BTreeMap<Key, Option<Document>>,
) -> Result<Vec<(Key, Outcome)>> {
    let map = |(key, document): (&Key, &Option<Document>)| {
        (key.clone(), mapping::map(key.kind, document.as_ref(), settings))
    };
    let mut outcomes: Vec<(Key, Outcome)> = documents.iter().map(map).collect();
    let unnamed = |outcome: &Outcome| match outcome {
        Outcome::Order(read) if read.lacks_names => {
            read.order.lines.iter().map(|line| line.product_id.clone()).collect()
        }
        _ => Vec::new(),
    };
    let ids: std::collections::BTreeSet<_> =
        outcomes.iter().flat_map(|(_, outcome)| unnamed(outcome)).collect();
    let ids: Vec<Bson> = ids.iter().map(foreign::id_of_product).collect();
    let names = source.product_names(ids).await?;
    for (_, outcome) in &mut outcomes {
        if let Outcome::Order(read) = outcome {
            mapping::name_lines(read, &names);
        }
    }
    Ok(outcomes)
}

/// A product with its stock entries. One that cannot be taken is removed; the levels that orders hold stay.
fn take_product(batch: &mut Batch, id: &Bson, outcome: &Outcome, before: &Before) -> Option<Taken> {
    let product_id = foreign::product_id(id)?;
    let zones_before = match &before.taken {
        Some(Taken::Product(zones)) => zones.clone(),
        _ => BTreeMap::new(),
    };
    let zones = if let Outcome::Product(read) = outcome {
        batch.changes.push(Change::Product(read.product.clone()));
        read.sellable.clone()
    } else {
        batch.changes.push(Change::RemoveProduct(product_id.clone()));
        BTreeMap::new()
    };
    for zone in zones_before.keys().filter(|zone| !zones.contains_key(*zone)) {
        batch.stock.set_sellable(&product_id, zone, None);
    }
    for (zone, units) in &zones {
        batch.stock.set_sellable(&product_id, zone, Some(*units));
    }
    (!zones.is_empty()).then_some(Taken::Product(zones))
}

/// An order with the units that it holds while it is created.
fn take_order(batch: &mut Batch, id: &Bson, outcome: &Outcome, before: &Before) -> Option<Taken> {
    let order_id = foreign::order_id(id)?;
    let taken = if let Outcome::Order(read) = outcome {
        batch.changes.push(Change::Order { order: read.order.clone(), events: read.events.clone() });
        held_by(read)
    } else {
        batch.changes.push(Change::RemoveOrder(order_id));
        None
    };
    if taken == before.taken {
        return taken;
    }
    for (taken, is_held) in [(&before.taken, false), (&taken, true)] {
        let Some(Taken::Order { at, zone, held }) = taken else { continue };
        for (product_id, units) in held {
            let units = u32::try_from(*units).unwrap_or(u32::MAX);
            let delta = Cause::Hold.delta(units);
            let movement = Movement { at: *at, op: order_id.uuid(), cause: Cause::Hold, delta, note: None };
            batch.stock.hold(product_id, zone, movement, is_held);
        }
    }
    taken
}

/// The units that an order holds.
pub(crate) fn held_by(read: &ReadOrder) -> Option<Taken> {
    let order = &read.order;
    if order.status != OrderStatus::Created {
        return None;
    }
    let mut held = BTreeMap::new();
    for line in &order.lines {
        *held.entry(line.product_id.clone()).or_default() += u64::from(line.quantity);
    }
    Some(Taken::Order { at: order.created_at, zone: order.geo_zone.clone(), held })
}
