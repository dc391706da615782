//! Verification: both sides, document by document, while other programs write.
//!
//! Every document of the source is compared with all views of what it became, and everything in the target with the source.
//! What differs is compared again after the changes up to its reading were taken. It counts when the document is the same
//! before and after the target was read, so that it is no change under way that differs.

mod compare;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::Document;
use mw_domain::Timestamp;
use mw_store::export::Record;
use mw_store::migration::CartKey;
use mw_store::{PageRequest, Position};
use mw_store_mongodb::foreign;

use crate::clock;
use crate::error::{MigrateError, Result};
use crate::follow::{read, take_again};
use crate::key::{Id, Key, Kind};
use crate::retry::retry;
use crate::shared::{Shared, Work, lock};
use crate::source::Bounds;
use compare::{Compared, differences};

/// Documents that are compared at once.
const PAGE: usize = 500;
/// Differences that are listed; a verification ends when it has so many.
const DIFFERENCES_MAX: usize = 10_000;
/// How often a difference is looked at again before it counts, and how often while its document goes on changing.
const LOOKS: u32 = 3;
const LOOKS_MAX: u32 = 30;
/// How long taking the changes up to a reading may need.
const TAKE_WAIT: Duration = Duration::from_mins(1);

/// A document that differs, and in what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub collection: &'static str,
    pub id: String,
    pub what: String,
}

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Everything written at the source until then was compared.
    pub up_to: Timestamp,
    /// Documents of each collection that were compared.
    pub compared: [u64; Kind::ALL.len()],
    pub differences: Vec<Difference>,
    pub repaired: u64,
}

impl Verified {
    pub fn is_equal(&self) -> bool {
        self.differences.is_empty()
    }
}

/// What is known of verifications in this run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Verification {
    pub(crate) is_running: bool,
    pub(crate) last: Option<Verified>,
}

/// Compares everything. Differences that count are repaired and compared once more where that is wanted.
pub(crate) async fn verify(shared: &Arc<Shared>, repair: bool) -> Result<Verified> {
    let _exclusive = shared.exclusive.lock().await;
    lock(&shared.verification).is_running = true;
    let verified = verify_all(shared, repair).await;
    let mut verification = lock(&shared.verification);
    verification.is_running = false;
    if let Ok(verified) = &verified {
        verification.last = Some(verified.clone());
    }
    verified
}

async fn verify_all(shared: &Arc<Shared>, repair: bool) -> Result<Verified> {
    // From here on the changed documents are remembered: a cutover compares them once more.
    shared.remember_changed();
    let time = retry("ask the source for its time", || shared.source.now()).await?;
    let up_to = clock::now();
    if !shared.wait_taken(time, TAKE_WAIT).await {
        return Err(MigrateError::refused(
            "verify: the target is more than a minute behind the source; wait until `mw migrate status` shows a small lag",
        ));
    }
    let mut compared = [0; Kind::ALL.len()];
    let mut suspects = Suspects::default();
    compare_source(shared, &mut compared, &mut suspects).await?;
    compare_target(shared, &mut suspects).await?;
    let mut found = settle(shared, suspects.keys, &suspects.carts).await?;
    let mut repaired = 0;
    if repair && !found.is_empty() {
        let keys: Vec<Key> = found.keys().cloned().collect();
        for keys in keys.chunks(PAGE) {
            take_again(shared, keys.to_vec()).await?;
        }
        let again = settle(shared, keys.clone(), &suspects.carts).await?;
        repaired = (found.len() - again.len()) as u64;
        found = again;
    }
    let mut mismatched = [0; Kind::ALL.len()];
    for key in found.keys() {
        if let Some(count) = mismatched.get_mut(key.kind as usize) {
            *count += 1;
        }
    }
    shared.send(Work::Mismatched(mismatched)).await?;
    let mut differences: Vec<Difference> =
        found.into_iter().map(|(key, what)| describe(&key, what)).collect();
    differences.extend(of_the_target_alone(shared).await?);
    if differences.is_empty() {
        shared.update_meta(|meta| meta.verified_up_to = Some(up_to)).await?;
    }
    Ok(Verified { up_to, compared, differences, repaired })
}

fn describe(key: &Key, what: String) -> Difference {
    Difference { collection: key.kind.collection(), id: key.id.text(), what }
}

/// Rows of lists that name nothing, and stock levels that their ledgers do not explain.
async fn of_the_target_alone(shared: &Shared) -> Result<Vec<Difference>> {
    let stray = shared.target.stray_rows(DIFFERENCES_MAX).await?;
    let stray = stray.into_iter().map(|what| Difference { collection: "orders", id: "-".to_owned(), what });
    let drifts = shared.target.audit_stock().await?.drifts.into_iter().map(|drift| Difference {
        collection: "products",
        id: drift.product_id.to_string(),
        what: format!("stock in zone {}: the ledger or the holds do not explain the level", drift.geo_zone),
    });
    Ok(stray.chain(drifts).collect())
}

/// Documents that differed once, and where a cart of the target stands that the source does not have there.
#[derive(Debug, Default)]
struct Suspects {
    keys: Vec<Key>,
    carts: HashMap<Key, CartKey>,
}

impl Suspects {
    fn is_full(&self) -> bool {
        self.keys.len() >= DIFFERENCES_MAX
    }
}

async fn compare_source(shared: &Shared, compared: &mut [u64; 3], suspects: &mut Suspects) -> Result<()> {
    let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
    for (kind, compared) in Kind::ALL.into_iter().zip(compared) {
        let mut bounds = Bounds { from: None, to: None };
        loop {
            let page = retry("read the source", || shared.source.page(kind, &bounds, limit)).await?;
            let is_last = page.len() < PAGE;
            let last = page.last().and_then(|document| document.get("_id").cloned());
            let mut documents = BTreeMap::new();
            // A page begins with the document that ended the one before.
            let seen = bounds.from.take();
            for document in
                page.into_iter().filter(|document| seen.is_none() || document.get("_id") != seen.as_ref())
            {
                documents.insert(Key { kind, id: Id::of(&document)? }, Some(document));
            }
            *compared += documents.len() as u64;
            let Compared { differences } = differences(shared, &documents, &HashMap::new()).await?;
            suspects.keys.extend(differences.into_keys());
            if is_last || suspects.is_full() {
                break;
            }
            bounds.from = last;
        }
    }
    Ok(())
}

/// Finds what the target has and the source does not.
async fn compare_target(shared: &Shared, suspects: &mut Suspects) -> Result<()> {
    let export = shared.target.export().await?;
    let mut after: Option<Position> = None;
    loop {
        let page = export.page(PageRequest { after: after.take(), limit: PAGE }).await?;
        let mut keys: BTreeMap<Key, Option<CartKey>> = BTreeMap::new();
        for record in &page.items {
            if let Some((key, cart)) = key_of(record)? {
                keys.insert(key, cart);
            }
        }
        for kind in Kind::ALL {
            let of_kind = || keys.keys().filter(|key| key.kind == kind);
            let ids: Vec<Id> = of_kind().map(|key| key.id.clone()).collect();
            let found = retry("read the source", || shared.source.read(kind, &ids, None)).await?;
            for key in of_kind() {
                let place = keys.get(key).cloned().flatten();
                let is_there =
                    found.get(&key.id).is_some_and(|document| is_in_place(shared, document, place.as_ref()));
                if !is_there {
                    suspects.keys.push(key.clone());
                    suspects.carts.extend(place.map(|place| (key.clone(), place)));
                }
            }
        }
        after = page.next;
        if after.is_none() || suspects.is_full() {
            return Ok(());
        }
    }
}

/// Whether a cart of the target stands where its document puts it. Other documents are found by their ids alone.
fn is_in_place(shared: &Shared, document: &Document, place: Option<&CartKey>) -> bool {
    let Some(place) = place else { return true };
    match crate::mapping::map(Kind::Carts, Some(document), &shared.settings) {
        crate::mapping::Outcome::Cart(cart) => CartKey::of(&cart) == *place,
        _ => false,
    }
}

/// The document that a record of the target stands for.
fn key_of(record: &Record) -> Result<Option<(Key, Option<CartKey>)>> {
    let (kind, id, cart) = match record {
        Record::Product(product) => (Kind::Products, foreign::id_of_product(&product.product_id), None),
        Record::Stock { stock, .. } => (Kind::Products, foreign::id_of_product(&stock.product_id), None),
        Record::Order { order, .. } => (Kind::Orders, foreign::id_of_order(order.order_id), None),
        Record::Cart(cart) => (Kind::Carts, foreign::id_of_cart(cart.cart_id), Some(CartKey::of(cart))),
        _ => return Ok(None),
    };
    Ok(Some((Key { kind, id: Id::new(&id)? }, cart)))
}

/// The suspects whose difference outlives the changes of their documents.
async fn settle(
    shared: &Arc<Shared>,
    suspects: Vec<Key>,
    carts: &HashMap<Key, CartKey>,
) -> Result<BTreeMap<Key, String>> {
    let mut open: BTreeMap<Key, u32> = suspects.into_iter().map(|key| (key, 0)).collect();
    let mut settled = BTreeMap::new();
    for _ in 0..LOOKS_MAX {
        if open.is_empty() {
            return Ok(settled);
        }
        let keys: Vec<Key> = open.keys().cloned().collect();
        for keys in keys.chunks(PAGE) {
            look(shared, keys, carts, &mut open, &mut settled).await?;
        }
    }
    let changing = "differs, and changes faster than it can be compared".to_owned();
    settled.extend(open.into_keys().map(|key| (key, changing.clone())));
    Ok(settled)
}

async fn look(
    shared: &Arc<Shared>,
    keys: &[Key],
    carts: &HashMap<Key, CartKey>,
    open: &mut BTreeMap<Key, u32>,
    settled: &mut BTreeMap<Key, String>,
) -> Result<()> {
    let before = read(shared, keys, None).await?;
    let time = retry("ask the source for its time", || shared.source.now()).await?;
    if !shared.wait_taken(time, TAKE_WAIT).await {
        return Err(MigrateError::refused(
            "verify: the changes of the last minute are not taken: is the source reachable?",
        ));
    }
    let Compared { mut differences } = differences(shared, &before, carts).await?;
    let after = read(shared, keys, None).await?;
    for key in keys {
        let Some(what) = differences.remove(key) else {
            open.remove(key);
            continue;
        };
        if before.get(key) != after.get(key) {
            continue;
        }
        let looks = open.entry(key.clone()).or_default();
        *looks += 1;
        if *looks >= LOOKS {
            open.remove(key);
            settled.insert(key.clone(), what);
        }
    }
    Ok(())
}

/// Compares documents that changed, when nothing is written any more.
pub(crate) async fn verify_changed(shared: &Arc<Shared>, keys: Vec<Key>) -> Result<Vec<Difference>> {
    let mut suspects = Vec::new();
    for keys in keys.chunks(PAGE) {
        let documents = read(shared, keys, None).await?;
        suspects.extend(differences(shared, &documents, &HashMap::new()).await?.differences.into_keys());
    }
    let found = settle(shared, suspects, &HashMap::new()).await?;
    Ok(found.into_iter().map(|(key, what)| describe(&key, what)).collect())
}
