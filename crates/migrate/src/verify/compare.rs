//! Compares documents with all views of what they became.

use std::collections::{BTreeMap, HashMap};

use mongodb::bson::Document;
use mw_domain::{CartStatus, GeoZone, Level, OrderId, ProductId};
use mw_store::migration::{CartKey, ProductViews};
use mw_store_mongodb::foreign::{self, ReadProduct};

use crate::apply::carts::newest;
use crate::apply::outcomes;
use crate::clock;
use crate::error::Result;
use crate::key::{Key, Kind};
use crate::mapping::{self, Outcome};
use crate::shared::Shared;
use crate::state::{self, StockFigures, Taken};

/// The documents that differ from the target, and in what.
pub(super) struct Compared {
    pub(super) differences: BTreeMap<Key, String>,
}

/// `places` says where carts were found that their documents do not put there.
pub(super) async fn differences(
    shared: &Shared,
    documents: &BTreeMap<Key, Option<Document>>,
    places: &HashMap<Key, CartKey>,
) -> Result<Compared> {
    let outcomes = outcomes(&shared.source, &shared.settings, documents).await?;
    let mut differences = BTreeMap::new();
    let of = |kind: Kind| outcomes.iter().filter(move |(key, _)| key.kind == kind);
    products(shared, of(Kind::Products), &mut differences).await?;
    orders(shared, of(Kind::Orders), &mut differences).await?;
    carts(shared, of(Kind::Carts), places, &mut differences).await?;
    Ok(Compared { differences })
}

type Outcomes<'a> = (&'a Key, &'a Outcome);

async fn products(
    shared: &Shared,
    outcomes: impl Iterator<Item = &(Key, Outcome)>,
    found: &mut BTreeMap<Key, String>,
) -> Result<()> {
    let mut wanted: Vec<(Outcomes<'_>, ProductId)> = Vec::new();
    for (key, outcome) in outcomes {
        if let Some(id) = foreign::product_id(&key.id.value()?) {
            wanted.push(((key, outcome), id));
        }
    }
    let ids = wanted.iter().map(|(_, id)| id.clone()).collect();
    let views = shared.target.products_in_views(ids).await?;
    for (((key, outcome), id), views) in wanted.into_iter().zip(views) {
        let expected = match outcome {
            Outcome::Product(read) => Some(read.as_ref()),
            _ => None,
        };
        if let Some(what) = compare_product(shared, &id, expected, &views).await? {
            found.insert(key.clone(), what);
        }
    }
    Ok(())
}

async fn compare_product(
    shared: &Shared,
    id: &ProductId,
    expected: Option<&ReadProduct>,
    views: &ProductViews,
) -> Result<Option<String>> {
    match (expected, &views.product) {
        (Some(_), None) => return Ok(Some("is missing in the target".to_owned())),
        (None, Some(_)) => {
            return Ok(Some("is in the target and not at the source, or not acceptable there".to_owned()));
        }
        (Some(read), Some(stored)) if !mapping::is_same_product(&read.product, stored) => {
            return Ok(Some("the target has other values of the product".to_owned()));
        }
        (Some(_), Some(_)) if views.is_unlisted => {
            return Ok(Some("is missing in the list of its category, or other there".to_owned()));
        }
        _ => {}
    }
    let mut levels: BTreeMap<&GeoZone, Level> =
        views.levels.iter().map(|(zone, level)| (zone, *level)).collect();
    let none = BTreeMap::new();
    let sellable = expected.map_or(&none, |read| &read.sellable);
    let mut zones: Vec<&GeoZone> = sellable.keys().chain(levels.keys().copied()).collect();
    zones.sort();
    zones.dedup();
    let rows = zones.iter().map(|zone| state::stock_key(id, zone)).collect();
    let rows = shared.target.state(rows).await?;
    for (zone, row) in zones.into_iter().zip(rows) {
        let held = row.map(|row| StockFigures::decode(&row)).transpose()?.unwrap_or_default().held;
        let units = sellable.get(zone).copied();
        let level = levels.remove(zone);
        let is_same = match level {
            None => units.is_none() && held == 0,
            Some(level) => {
                let is_expected = units.is_some() || held > 0;
                is_expected && level.reserved == held && level.on_hand == units.unwrap_or(0) + held
            }
        };
        if !is_same {
            let stored = level.map_or_else(
                || "none".to_owned(),
                |it| format!("{} on hand, {} reserved", it.on_hand, it.reserved),
            );
            let units = units.map_or_else(|| "no entry".to_owned(), |units| format!("{units} to sell"));
            return Ok(Some(format!(
                "stock in zone {zone}: source {units}, orders hold {held}; target {stored}"
            )));
        }
    }
    Ok(None)
}

async fn orders(
    shared: &Shared,
    outcomes: impl Iterator<Item = &(Key, Outcome)>,
    found: &mut BTreeMap<Key, String>,
) -> Result<()> {
    let mut wanted: Vec<(Outcomes<'_>, OrderId)> = Vec::new();
    for (key, outcome) in outcomes {
        if let Some(id) = foreign::order_id(&key.id.value()?) {
            wanted.push(((key, outcome), id));
        }
    }
    let ids = wanted.iter().map(|(_, id)| *id).collect();
    let views = shared.target.orders_in_views(ids).await?;
    for (((key, outcome), _), views) in wanted.into_iter().zip(views) {
        let what = match (outcome, views) {
            (Outcome::Order(_), None) => "is missing in the target".to_owned(),
            (Outcome::Order(read), Some(views)) => {
                if !mapping::is_same_order(read, &views.order, &views.events) {
                    "the target has other values of the order".to_owned()
                } else if views.missing_from.is_empty() {
                    continue;
                } else {
                    format!("is missing in the list by {}", views.missing_from.join(", "))
                }
            }
            (_, Some(_)) => "is in the target and not at the source, or not acceptable there".to_owned(),
            (_, None) => continue,
        };
        found.insert(key.clone(), what);
    }
    Ok(())
}

async fn carts(
    shared: &Shared,
    outcomes: impl Iterator<Item = &(Key, Outcome)>,
    places: &HashMap<Key, CartKey>,
    found: &mut BTreeMap<Key, String>,
) -> Result<()> {
    let outcomes: Vec<Outcomes<'_>> = outcomes.map(|(key, outcome)| (key, outcome)).collect();
    let rows = outcomes.iter().map(|(key, _)| state::doc_key(key)).collect();
    let taken = shared.target.state(rows).await?;
    let mut wanted: Vec<(Outcomes<'_>, CartKey)> = Vec::new();
    for ((key, outcome), row) in outcomes.into_iter().zip(taken) {
        if let Outcome::Cart(cart) = outcome {
            wanted.push(((key, outcome), CartKey::of(cart)));
        }
        if let Some(Taken::Cart(place)) = row.map(|row| Taken::decode(&row)).transpose()? {
            wanted.push(((key, outcome), place));
        }
        wanted.extend(places.get(key).map(|place| ((key, outcome), place.clone())));
    }
    let stored = shared.target.carts_by_key(wanted.iter().map(|(_, place)| place.clone()).collect()).await?;
    let now = clock::now();
    for (((key, outcome), place), stored) in wanted.into_iter().zip(stored) {
        let expected = match outcome {
            Outcome::Cart(cart) if CartKey::of(cart) == place => Some(cart.as_ref()),
            _ => None,
        };
        // What has ended is in the target or not: no request shows it.
        let expected = expected.filter(|cart| !mapping::is_left_out(cart, now));
        let stored = stored.filter(|cart| !mapping::is_left_out(cart, now));
        let what = match (expected, stored) {
            (None, None) => continue,
            (Some(_), None) => "is missing in the target",
            (None, Some(_)) => "is in the target and not at the source, or not acceptable there",
            (Some(expected), Some(stored)) => {
                let mut expected = expected.clone();
                if expected.status == CartStatus::Active && is_set_aside(shared, key, &expected.owner).await?
                {
                    expected.status = CartStatus::Abandoned;
                }
                if expected == stored {
                    continue;
                }
                "the target has other values of the cart"
            }
        };
        found.insert(key.clone(), what.to_owned());
    }
    Ok(())
}

/// Whether the owner has a newer active cart.
async fn is_set_aside(shared: &Shared, key: &Key, owner: &mw_domain::Owner) -> Result<bool> {
    let row = shared.target.state(vec![state::owner_key(owner)]).await?.into_iter().next().flatten();
    let carts = row.map(|row| state::decode_carts(&row)).transpose()?.unwrap_or_default();
    Ok(newest(&carts).is_some_and(|newest| *newest != key.id))
}
