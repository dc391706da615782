//! Carts: an owner has one active cart in the target. Of several at the source the newest stays; the others become abandoned
//! and are reported. The decision needs all active carts of an owner, so a batch with one of them has all of them.

use std::collections::{BTreeMap, BTreeSet};

use mongodb::bson::Document;
use mw_domain::{Cart, CartStatus, Owner, Timestamp};
use mw_store::migration::{CartKey, Change};

use super::{Batch, Taker};
use crate::error::Result;
use crate::key::{Id, Key, Kind};
use crate::mapping::{self, Outcome, Rejection};
use crate::state::{self, ActiveCarts, Taken};

/// How often a batch is completed with carts that other programs move between owners meanwhile. What is still missing then
/// follows with its own change.
const COMPLETIONS: usize = 3;

/// The active carts of the owners of a batch, after it.
#[derive(Debug, Default)]
pub(super) struct ActiveCartsOf {
    after: BTreeMap<Vec<u8>, ActiveCarts>,
    /// Owners with several active carts before or after it: the one that stays may be another.
    contested: BTreeSet<Vec<u8>>,
}

impl Taker {
    /// Adds the other active carts of every owner whose active carts the batch changes.
    pub(super) async fn complete_owners(
        &self,
        documents: &mut BTreeMap<Key, Option<Document>>,
        now: Timestamp,
    ) -> Result<ActiveCartsOf> {
        for _ in 0..COMPLETIONS {
            let of = self.active_carts(documents, now).await?;
            let others = of.contested.iter().filter_map(|owner| of.after.get(owner)).flat_map(BTreeMap::keys);
            let missing: Vec<Id> = others
                .filter(|id| !documents.contains_key(&Key { kind: Kind::Carts, id: (*id).clone() }))
                .cloned()
                .collect();
            if missing.is_empty() {
                return Ok(of);
            }
            let mut found = self.source.read(Kind::Carts, &missing, None).await?;
            for id in missing {
                let document = found.remove(&id);
                documents.insert(Key { kind: Kind::Carts, id }, document);
            }
        }
        self.active_carts(documents, now).await
    }

    async fn active_carts(
        &self,
        documents: &BTreeMap<Key, Option<Document>>,
        now: Timestamp,
    ) -> Result<ActiveCartsOf> {
        let carts: Vec<(&Key, Option<Cart>)> = documents
            .iter()
            .filter(|(key, _)| key.kind == Kind::Carts)
            .map(|(key, document)| (key, self.active_cart(document.as_ref(), now)))
            .collect();
        let rows = carts.iter().map(|(key, _)| state::doc_key(key)).collect();
        let mut before: Vec<(Owner, &Id)> = Vec::new();
        for ((key, _), row) in carts.iter().zip(self.target.state(rows).await?) {
            if let Some(Taken::Cart(taken)) = row.map(|row| Taken::decode(&row)).transpose()? {
                before.push((taken.owner, &key.id));
            }
        }
        let after = carts.iter().filter_map(|(key, cart)| Some((cart.as_ref()?, &key.id)));
        let owners = before.iter().map(|(owner, _)| owner).chain(after.clone().map(|(cart, _)| &cart.owner));
        let mut of: BTreeMap<Vec<u8>, ActiveCarts> =
            owners.map(|owner| (state::owner_key(owner), ActiveCarts::new())).collect();
        let stored = self.target.state(of.keys().cloned().collect()).await?;
        for (carts, row) in of.values_mut().zip(stored) {
            *carts = row.map(|row| state::decode_carts(&row)).transpose()?.unwrap_or_default();
        }
        let is_contested = |(_, carts): &(&Vec<u8>, &ActiveCarts)| carts.len() > 1;
        let mut contested: BTreeSet<Vec<u8>> =
            of.iter().filter(is_contested).map(|(owner, _)| owner.clone()).collect();
        for (owner, id) in before {
            of.entry(state::owner_key(&owner)).or_default().remove(id);
        }
        for (cart, id) in after {
            of.entry(state::owner_key(&cart.owner)).or_default().insert(id.clone(), cart.updated_at);
        }
        contested.extend(of.iter().filter(is_contested).map(|(owner, _)| owner.clone()));
        Ok(ActiveCartsOf { after: of, contested })
    }

    fn active_cart(&self, document: Option<&Document>, now: Timestamp) -> Option<Cart> {
        match mapping::map(Kind::Carts, document, &self.settings) {
            Outcome::Cart(cart) if cart.status == CartStatus::Active && !mapping::is_left_out(&cart, now) => {
                Some(*cart)
            }
            _ => None,
        }
    }
}

/// The newest of the active carts of an owner; of two of one moment, the one with the greater id.
pub(crate) fn newest(carts: &ActiveCarts) -> Option<&Id> {
    carts.iter().max_by_key(|(id, at)| (**at, *id)).map(|(id, _)| id)
}

impl ActiveCartsOf {
    /// Takes a cart; the result says what it became, and whether it is set aside for a newer one.
    pub(super) fn take(
        &self,
        batch: &mut Batch,
        key: &Key,
        outcome: &Outcome,
        before: Option<&Taken>,
    ) -> (Option<Taken>, Option<Rejection>) {
        if let Some(Taken::Cart(key)) = before {
            batch.changes.push(Change::RemoveCart(key.clone()));
        }
        let Outcome::Cart(cart) = outcome else { return (None, None) };
        let is_left_out = mapping::is_left_out(cart, batch.now);
        let is_active = cart.status == CartStatus::Active && !is_left_out;
        if is_left_out {
            return (None, None);
        }
        let taken = Taken::Cart(CartKey::of(cart));
        let carts = self.after.get(&state::owner_key(&cart.owner));
        let is_set_aside = is_active && carts.and_then(newest).is_some_and(|newest| *newest != key.id);
        let mut cart = cart.as_ref().clone();
        let mut set_aside = None;
        if is_set_aside {
            cart.status = CartStatus::Abandoned;
            set_aside = Some(set_aside_for_newer(&cart.owner));
        }
        // An owner's row has room for one active cart: it is written after those that ended.
        let change = Change::Cart(cart);
        if is_active && !is_set_aside {
            batch.active_carts.push(change);
        } else {
            batch.changes.push(change);
        }
        (Some(taken), set_aside)
    }

    /// The rows of the owners.
    pub(super) fn write(self, changes: &mut Vec<Change>) -> Result<()> {
        for (key, carts) in self.after {
            let value = if carts.is_empty() { None } else { Some(state::encode_carts(&carts)?) };
            changes.push(Change::State { key, value });
        }
        Ok(())
    }
}

pub(crate) fn set_aside_for_newer(owner: &Owner) -> Rejection {
    Rejection {
        reason: format!(
            "{} {} has a newer active cart: this one became abandoned",
            kind_of(owner),
            owner.id()
        ),
        advice: "nothing to do; close the older carts at the source to be rid of this line".to_owned(),
        blocking: false,
    }
}

const fn kind_of(owner: &Owner) -> &'static str {
    match owner {
        Owner::User(_) => "user",
        Owner::Session(_) => "session",
    }
}
