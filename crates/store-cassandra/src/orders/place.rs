//! Placing an order over several partitions: the order exists completely or not at all, whichever process crashes.
//!
//! The steps: an intent with the whole order, the claim of the request's key, a hold for every line, the cart, the
//! lists and the payment timer, the order's own row. What can be written only once decides: the ledger row of a line
//! is held or void, and a cart is closed by one order. If all lines are held (and the cart is closed by this order),
//! the order will exist, whichever process writes it; if a line is void, it never will. Every step can be repeated,
//! so recovery runs the same steps again ([`CassandraStore::recover_order`]) and a slow process finds them done.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_codec::intents::order::{self as order_intent, OrderIntent};
use mw_domain::lanes::Lane;
use mw_domain::{Demand, Order, OrderId, OrderLine, Owner, Shortage, Timestamp};
use mw_store::idempotency::Outcome;
use mw_store::orders::{Basket, PlaceOrder};
use mw_store::{Done, Freshness, Refusal, RequestIdentity, Result, StoreError};
use uuid::Uuid;

use crate::CassandraStore;
use crate::carts::CloseResult;
use crate::changes::OrderStep;
use crate::recovery::idempotency::Claim;
use crate::recovery::intents::Kind;
use crate::stock::CONCURRENT_LINES;
use crate::stock::decision::StockKey;
use crate::stock::holds::HoldOwner;
use crate::stock::ledger::Transition;

/// Attempts of one request, each under a new order id: the cart changed, or another request released the key.
const ATTEMPTS: usize = 4;
/// A request waits this long in total for another process that places the same order; recovery takes less.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const POLLS: usize = 75;
/// Pauses between the looks of a checkout that came short at its cart. Another process may hold the units for the same cart and
/// close it within this time, all attempts together.
const RECHECK_PAUSES: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1_600),
];

/// How placing an order ended.
enum PlacementOutcome {
    Placed,
    /// A line is void; the placement was undone.
    OutOfStock(Vec<Shortage>),
    /// The cart was changed or closed by another request; the placement was undone.
    CartChanged,
}

/// The state of the key of a request that places an order.
enum KeyState {
    /// This request has claimed the key.
    Claimed,
    /// An earlier request placed this order.
    Placed(Order),
    /// The request that had claimed the key was refused and released it.
    Released,
}

impl CassandraStore {
    pub(super) async fn place(&self, mut command: PlaceOrder) -> Result<Done<Order>> {
        let key = command.identity.as_ref().map(|identity| identity.key.clone());
        let _lock = match &key {
            Some(key) => self.locks.idempotency_key(key.as_str()).await,
            None => None,
        };
        let is_checkout = matches!(command.basket, Basket::Cart { .. });
        let _checkout = if is_checkout { self.locks.checkout(command.user_id.as_str()).await } else { None };
        let mut recheck_pauses = RECHECK_PAUSES.iter();
        for _ in 0..ATTEMPTS {
            command.order_id = self.available_order_id(command.order_id, command.now);
            match self.draft_and_place(&command).await {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(error) => {
                    let Some(Refusal::OutOfStock(shortages)) = error.refusal().filter(|_| is_checkout) else {
                        return Err(error);
                    };
                    if !self.is_held_only(&command, shortages).await?
                        || !self.cart_changes(&command, &mut recheck_pauses).await?
                    {
                        return Err(error);
                    }
                }
            }
            // A crash here leaves nothing of the failed attempt: its lines are void and its key is free.
            command.order_id = OrderId::new(Lane::of(command.order_id.uuid()).stamp(Uuid::now_v7()));
        }
        let user_id = &command.user_id;
        Err(StoreError::Unavailable(format!(
            "gave up after {ATTEMPTS} attempts to order the cart of {user_id}: it kept changing (contention)"
        )))
    }

    /// Drafts the order and places it; `None` where the request must try again under a new id.
    async fn draft_and_place(&self, command: &PlaceOrder) -> Result<Option<Done<Order>>> {
        match self.draft_order(command).await {
            Ok(draft) => self.attempt_placement(draft, command.now).await,
            // Only a new request is refused; a key that was used before replays its order.
            Err(StoreError::Refused(refusal)) => match self.find_replay(command).await? {
                Some(order) => Ok(Some(Done::replay(order))),
                None => Err(StoreError::Refused(refusal)),
            },
            Err(error) => Err(error),
        }
    }

    /// Whether the missing units exist and are held by other requests, perhaps by a concurrent checkout of the same cart.
    async fn is_held_only(&self, command: &PlaceOrder, shortages: &[Shortage]) -> Result<bool> {
        for short in shortages {
            let (product_id, geo_zone) = (short.product_id.clone(), command.geo_zone.clone());
            let stock_key = StockKey { product_id, geo_zone };
            let stock = self.level_at(&stock_key, Freshness::Latest, command.now).await?;
            if stock.is_none_or(|stock| stock.level.on_hand < u64::from(short.requested)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the user's cart is gone, or changes within the pauses.
    async fn cart_changes(
        &self,
        command: &PlaceOrder,
        pauses: &mut impl Iterator<Item = &'static Duration>,
    ) -> Result<bool> {
        let owner = Owner::User(command.user_id.clone());
        let before = self.read_active_cart(&owner, command.now).await?;
        if before.is_none() {
            return Ok(true);
        }
        for pause in pauses {
            tokio::time::sleep(*pause).await;
            if self.read_active_cart(&owner, command.now).await? != before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// One attempt under one order id; `None` where the request must try again under a new id.
    async fn attempt_placement(&self, draft: OrderIntent, now: Timestamp) -> Result<Option<Done<Order>>> {
        let payload = order_intent::encode(&draft);
        let started_at = Instant::now();
        let op_id = draft.order.order_id.uuid();
        let intent = self.intents.begin(&self.cql, Kind::Order, op_id, payload).await?;
        // A crash here leaves only the intent. Recovery finds the key unclaimed and voids the lines; an order without
        // a key it places.
        match self.claim_key(&draft, now).await {
            Ok(KeyState::Claimed) => {}
            Ok(KeyState::Placed(order)) => {
                // Nothing was done under this id. A crash before the intent is removed leaves it to recovery, which
                // finds that the key belongs to another order and voids the lines of this one.
                self.complete_soon(intent);
                return Ok(Some(Done::replay(order)));
            }
            Ok(KeyState::Released) => {
                self.complete_soon(intent);
                return Ok(None);
            }
            Err(error) => {
                self.intents.abandon(intent);
                return Err(error);
            }
        }
        // A crash here leaves the intent and the claim. Recovery finds the claim and places the order or undoes it; a
        // second request with the key waits for that.
        match Box::pin(self.complete_placement(&draft, Some(started_at), now)).await {
            Ok(PlacementOutcome::Placed) => {
                // A crash before the intent is removed leaves it to recovery, which writes the same rows again.
                self.complete_soon(intent);
                Ok(Some(Done::first(draft.order)))
            }
            Ok(PlacementOutcome::OutOfStock(shortages)) => {
                self.complete_soon(intent);
                let OrderIntent { order, .. } = &draft;
                Err(self.out_of_stock(&order.geo_zone, &demands(order), shortages, now).await?)
            }
            Ok(PlacementOutcome::CartChanged) => {
                self.complete_soon(intent);
                Ok(None)
            }
            Err(error) => {
                // This process tries again in a second; if it crashes before that, recovery does.
                self.intents.abandon(intent);
                Err(error.after_first_effect())
            }
        }
    }

    /// The order that an earlier request with the command's key placed.
    async fn find_replay(&self, command: &PlaceOrder) -> Result<Option<Order>> {
        let Some(identity) = &command.identity else { return Ok(None) };
        match self.claims.find(&self.cql, identity, command.now).await? {
            None => Ok(None),
            Some(Claim::Replay(outcome)) => self.replay_outcome(*outcome).await.map(Some),
            Some(Claim::Execute { op_id, .. }) => {
                match self.poll_order(identity, op_id, command.now).await? {
                    KeyState::Placed(order) => Ok(Some(order)),
                    KeyState::Claimed | KeyState::Released => Ok(None),
                }
            }
        }
    }

    /// The order as the first response showed it.
    async fn replay_outcome(&self, outcome: Outcome) -> Result<Order> {
        let Outcome::Placed(order_id) = outcome else { return Err(Refusal::KeyReused.into()) };
        let missing =
            || StoreError::Corrupt(format!("replay order {order_id}: a key names it, no row has it"));
        Ok(self.find_order(order_id).await?.ok_or_else(missing)?.order.as_placed())
    }

    async fn claim_key(&self, draft: &OrderIntent, now: Timestamp) -> Result<KeyState> {
        let Some(identity) = &draft.identity else { return Ok(KeyState::Claimed) };
        let own = draft.order.order_id.uuid();
        match self.claims.claim(&self.cql, identity, own, now).await? {
            Claim::Execute { op_id, .. } if op_id == own => Ok(KeyState::Claimed),
            Claim::Execute { op_id, .. } => self.poll_order(identity, op_id, now).await,
            Claim::Replay(outcome) => self.replay_outcome(*outcome).await.map(KeyState::Placed),
        }
    }

    /// Waits for an order that another request began under the same key: its process finishes it, or recovery does.
    async fn poll_order(&self, identity: &RequestIdentity, op_id: Uuid, now: Timestamp) -> Result<KeyState> {
        let order_id = OrderId::new(op_id);
        for _ in 0..POLLS {
            if let Some(stored) = self.find_order(order_id).await? {
                return Ok(KeyState::Placed(stored.order.as_placed()));
            }
            match self.claims.find(&self.cql, identity, now).await? {
                Some(Claim::Execute { op_id: holder, .. }) if holder == op_id => {}
                _ => return Ok(KeyState::Released),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Err(StoreError::Ambiguous(format!(
            "another process is still placing order {order_id}: repeat the request"
        )))
    }

    /// Runs every step after the claim, from wherever an earlier process stopped. `started_at` is given by the
    /// process that created the order.
    async fn complete_placement(
        &self,
        intent: &OrderIntent,
        started_at: Option<Instant>,
        now: Timestamp,
    ) -> Result<PlacementOutcome> {
        let OrderIntent { order, closing, .. } = intent;
        // A crash between two lines leaves some lines held. Recovery holds the rest, or finds a shortage and releases
        // them.
        let shortages = self.hold_order(order, started_at, now).await?;
        if !shortages.is_empty() {
            // A crash here leaves a void line, so the order can never exist. Recovery finds it and undoes the rest.
            self.undo_placement(intent, shortages.len(), now).await?;
            return Ok(PlacementOutcome::OutOfStock(shortages));
        }
        if let Some((cart, lifetime)) = closing {
            // A crash here leaves all lines held and the cart open. Recovery closes it, or finds it changed and
            // undoes.
            let closed = self.close_for_order(cart, order.order_id, now, lifetime).await?;
            if matches!(closed, CloseResult::Conflict) {
                // A crash here leaves all lines held. Recovery finds the cart changed again and releases them.
                self.undo_placement(intent, 0, now).await?;
                return Ok(PlacementOutcome::CartChanged);
            }
        }
        // The order is decided. A crash here leaves no row of it; recovery finds the holds and the closed cart and
        // writes it.
        self.bucketing.keep_fresh(&self.cql).await?;
        let list_buckets = self.list_buckets(order);
        Box::pin(self.write_placed(order, &list_buckets, started_at.map(|_| now))).await?;
        // A crash here leaves the order without its row in the feed; recovery writes its views again, and the row.
        let step = OrderStep { version: 1, moves_units: true, previous_at: None };
        self.report_step(order, step, now).await?;
        Ok(PlacementOutcome::Placed)
    }

    /// Holds the units of every line; returns the shortages of lines that are void now.
    async fn hold_order(
        &self,
        order: &Order,
        started_at: Option<Instant>,
        now: Timestamp,
    ) -> Result<Vec<Shortage>> {
        let owner = HoldOwner::order(order);
        let lines = demands(order);
        let holds = lines.iter().map(|line| self.hold_or_void(owner, line, started_at, now));
        let shortages: Vec<Option<Shortage>> =
            stream::iter(holds.collect::<Vec<_>>()).buffered(CONCURRENT_LINES).try_collect().await?;
        Ok(shortages.into_iter().flatten().collect())
    }

    /// Voids or releases every line of an order that will never exist, and releases its key. So many of its lines are known to
    /// be void.
    async fn undo_placement(&self, intent: &OrderIntent, void: usize, now: Timestamp) -> Result<()> {
        let order = &intent.order;
        let lines = demands(order);
        // A crash between two lines leaves some held. Recovery finds a void line or a changed cart, and undoes the
        // rest.
        self.advance_lines(HoldOwner::order(order), lines.iter(), Transition::ReleaseOrVoid, now).await?;
        if void < lines.len() {
            // A crash here leaves the released stock without its row in the feed; recovery comes here again.
            self.report_stock(lines.iter().map(|line| &line.product_id), &order.geo_zone).await?;
        }
        // A crash here leaves the key claimed by a void order. Recovery finds the void lines and releases the key; a
        // second request waits for that.
        if let Some(identity) = &intent.identity {
            self.claims.release(&self.cql, identity, order.order_id.uuid()).await?;
        }
        Ok(())
    }

    /// Places or undoes an order whose process crashed or gave up. A crash of the recovering process leaves the
    /// intent; the next process starts again here.
    pub(crate) async fn recover_order(&self, payload: &[u8]) -> Result<()> {
        let intent = order_intent::decode(payload)?;
        let order = &intent.order;
        let now = order.created_at;
        if let Some(stored) = self.find_order(order.order_id).await? {
            // Lists and timer come before the order's own row, so they are there. Written again they change nothing,
            // also where the order has a newer version: the version is the write timestamp.
            let placed = stored.order.clone().as_placed();
            Box::pin(self.write_placed(&placed, &stored.list_buckets, None)).await?;
            return self.report_recovered(&stored.order, 1).await;
        }
        if let Some(identity) = &intent.identity {
            let is_claimed = match self.claims.find(&self.cql, identity, now).await {
                Ok(Some(Claim::Execute { op_id, .. })) => op_id == order.order_id.uuid(),
                Ok(_) | Err(StoreError::Refused(_)) => false,
                Err(error) => return Err(error),
            };
            if !is_claimed {
                // The key was never claimed, or belongs to another order. Voiding the lines stops the process that
                // began, if it is only slow.
                return self.undo_placement(&intent, 0, now).await;
            }
        }
        let outcome = Box::pin(self.complete_placement(&intent, None, now)).await?;
        let is_placed = matches!(outcome, PlacementOutcome::Placed);
        tracing::info!(order_id = %order.order_id, is_placed, "recovered an unfinished order");
        Ok(())
    }
}

pub(super) fn demands(order: &Order) -> Vec<Demand> {
    let demand = |line: &OrderLine| Demand { product_id: line.product_id.clone(), quantity: line.quantity };
    order.lines.iter().map(demand).collect()
}
