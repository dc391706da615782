//! Placing an order over several partitions: whole or not at all, whoever dies in between.
//!
//! First an intent that holds the whole order, then the claim of the request's key, then the units of every line, then
//! the cart, then the views. The order is decided by what can be written only once: each line's row in the ledger is
//! either held or void, and a cart is closed by one order. If all lines are held (and the cart is closed by it) the order
//! exists, whoever writes its views; if any line is void it never will. So a process that died leaves something that any
//! other can bring to the same end, and a process that was only slow finds it there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_codec::{Damaged, Reader, Writer};
use mw_domain::cart::CartLifetime;
use mw_domain::limits::InvalidField;
use mw_domain::order::total;
use mw_domain::{
    Cart, Demand, IdempotencyKey, Money, Order, OrderId, OrderLine, OrderStatus, Owner, Shortage, Timestamp,
};
use mw_store::once::Outcome;
use mw_store::orders::{Basket, PlaceOrder};
use mw_store::{Done, Fingerprint, Once, Refusal, Result, StoreError};
use uuid::Uuid;

use crate::CassandraStore;
use crate::carts::Closed;
use crate::intents::{Intent, Kind};
use crate::keeper::{Answer, Change, Place};
use crate::ledger::{END_OF_TIME, End, State};
use crate::once::Claim;
use crate::stock::AT_ONCE;

/// How often an order is begun again because its cart changed or its key moved on.
const ROUNDS: usize = 4;
/// How long one waits for an order that another process is in the middle of; recovery takes less.
const WAIT: Duration = Duration::from_millis(200);
const WAITS: usize = 75;

/// An order that is being placed: everything that is needed to bring it to its end.
#[derive(Debug, Clone)]
struct Pending {
    order: Order,
    closing: Option<(Cart, CartLifetime)>,
    once: Option<Once>,
}

/// How an order ended.
enum Ending {
    Placed,
    Short(Vec<Shortage>),
    /// Somebody else changed or closed the cart.
    CartLost,
}

/// What somebody who comes with a key is to do.
enum Turn {
    Mine,
    Done(Order),
    /// The key was freed meanwhile.
    Again,
}

impl CassandraStore {
    pub(super) async fn place(&self, mut command: PlaceOrder) -> Result<Done<Order>> {
        let key = command.once.as_ref().map(|once| once.key.clone());
        let _turn = match &key {
            Some(key) => self.locks.key(key.as_str()).await,
            None => None,
        };
        for _ in 0..ROUNDS {
            let pending = match self.drafted(&command).await {
                Ok(pending) => pending,
                Err(StoreError::Refused(refusal)) => {
                    // A refusal counts only if the key was not used before.
                    return match self.known_answer(&command).await? {
                        Some(order) => Ok(Done::again(order)),
                        None => Err(StoreError::Refused(refusal)),
                    };
                }
                Err(error) => return Err(error),
            };
            let payload = encode(&pending);
            let born = Instant::now();
            let op_id = command.order_id.uuid();
            let intent = self.intents.begin(&self.cql, Kind::Order, op_id, payload).await?;
            match self.claim_turn(&pending, command.now).await {
                Ok(Turn::Mine) => {}
                Ok(Turn::Done(order)) => {
                    self.end_soon(intent);
                    return Ok(Done::again(order));
                }
                Ok(Turn::Again) => {
                    self.end_soon(intent);
                    command.order_id = OrderId::new(Uuid::now_v7());
                    continue;
                }
                Err(error) => {
                    self.intents.leave(intent);
                    return Err(error);
                }
            }
            match Box::pin(self.drive(&pending, Some(born), command.now)).await {
                Ok(Ending::Placed) => {
                    self.end_soon(intent);
                    return Ok(Done::first(pending.order));
                }
                Ok(Ending::Short(short)) => {
                    self.end_soon(intent);
                    let lines = demands(&pending.order);
                    let zone = &pending.order.geo_zone;
                    return Err(self.all_shortages(zone, &lines, short, command.now).await?);
                }
                Ok(Ending::CartLost) => {
                    self.end_soon(intent);
                    command.order_id = OrderId::new(Uuid::now_v7());
                }
                Err(error) => {
                    self.intents.leave(intent);
                    return Err(unknown(error));
                }
            }
        }
        Err(StoreError::Unavailable("the cart changes too fast to be ordered".to_owned()))
    }

    pub(crate) fn end_soon(&self, intent: Intent) {
        let (intents, cql) = (Arc::clone(&self.intents), Arc::clone(&self.cql));
        tokio::spawn(async move { intents.end(&cql, intent).await });
    }

    /// The order as it would be placed now, or why not.
    async fn drafted(&self, command: &PlaceOrder) -> Result<Pending> {
        let (demands, closing) = match &command.basket {
            Basket::Lines(lines) => (lines.clone(), None),
            Basket::Cart { expected_version, lifetime } => {
                let owner = Owner::User(command.user_id.clone());
                let active = self.active(&owner, command.now).await?;
                let version = active.as_ref().map_or(0, |cart| cart.version);
                if expected_version.is_some_and(|expected| expected != version) {
                    return Err(Refusal::CartVersion { current: active }.into());
                }
                let cart = active.filter(|cart| !cart.lines.is_empty()).ok_or(Refusal::CartEmpty)?;
                let demand = |line: &mw_domain::CartLine| Demand {
                    product_id: line.product_id.clone(),
                    quantity: line.quantity,
                };
                (cart.lines.iter().map(demand).collect(), Some((cart, *lifetime)))
            }
        };
        let (lines, total) = self.priced(&demands).await?;
        if command.expected_total.is_some_and(|expected| expected != total) {
            return Err(Refusal::PriceChanged { current: total }.into());
        }
        if demands.len() > 1 || self.looks_short(&command.geo_zone, &demands) {
            self.refuse_shortages(&command.geo_zone, &demands, command.now).await?;
        }
        let order = Order {
            order_id: command.order_id,
            user_id: command.user_id.clone(),
            status: OrderStatus::Created,
            geo_zone: command.geo_zone.clone(),
            lines,
            total,
            delivery_address: command.delivery_address.clone(),
            payment_method: command.payment_method.clone(),
            created_at: command.now,
            updated_at: command.now,
            version: 1,
            pay_by: command.pay_by,
        };
        Ok(Pending { order, closing, once: command.once.clone() })
    }

    async fn priced(&self, demands: &[Demand]) -> Result<(Vec<OrderLine>, Money)> {
        let offers = self.cards.offers(&self.cql, demands.iter().map(|line| &line.product_id)).await?;
        let mut lines = Vec::with_capacity(demands.len());
        for (demand, offer) in demands.iter().zip(offers) {
            let offer = offer.ok_or_else(|| Refusal::ProductNotFound(demand.product_id.clone()))?;
            lines.push(OrderLine {
                product_id: demand.product_id.clone(),
                name: offer.name,
                price: offer.price,
                quantity: demand.quantity,
            });
        }
        let total = total(&lines)
            .ok_or_else(|| InvalidField::new("lines", format!("the total is at most {}", Money::MAX)))?;
        Ok((lines, total))
    }

    /// The order that the command's key placed before.
    async fn known_answer(&self, command: &PlaceOrder) -> Result<Option<Order>> {
        let Some(once) = &command.once else { return Ok(None) };
        match self.claims.look(&self.cql, once, command.now).await? {
            None => Ok(None),
            Some(Claim::Done(outcome)) => match *outcome {
                Outcome::Placed(order_id) => self.first_answer(order_id).await.map(Some),
                _ => Err(Refusal::KeyReused.into()),
            },
            Some(Claim::Do { op_id, .. }) => match self.wait_for(once, op_id, command.now).await? {
                Turn::Done(order) => Ok(Some(order)),
                Turn::Mine | Turn::Again => Ok(None),
            },
        }
    }

    async fn first_answer(&self, order_id: OrderId) -> Result<Order> {
        let order = self.placed(order_id).await?;
        order
            .map(|(order, _)| order.as_placed())
            .ok_or_else(|| StoreError::Corrupt(format!("order {order_id}, which a key names")))
    }

    async fn claim_turn(&self, pending: &Pending, now: Timestamp) -> Result<Turn> {
        let Some(once) = &pending.once else { return Ok(Turn::Mine) };
        let own = pending.order.order_id.uuid();
        match self.claims.claim(&self.cql, once, own, now).await? {
            Claim::Do { op_id, .. } if op_id == own => Ok(Turn::Mine),
            Claim::Do { op_id, .. } => self.wait_for(once, op_id, now).await,
            Claim::Done(outcome) => match *outcome {
                Outcome::Placed(order_id) => self.first_answer(order_id).await.map(Turn::Done),
                _ => Err(Refusal::KeyReused.into()),
            },
        }
    }

    /// Waits for an order that another process began under the same key: it finishes it, or somebody recovers it.
    async fn wait_for(&self, once: &Once, op_id: Uuid, now: Timestamp) -> Result<Turn> {
        for _ in 0..WAITS {
            if let Some((order, _)) = self.placed(OrderId::new(op_id)).await? {
                return Ok(Turn::Done(order.as_placed()));
            }
            match self.claims.look(&self.cql, once, now).await? {
                Some(Claim::Do { op_id: holder, .. }) if holder == op_id => {}
                _ => return Ok(Turn::Again),
            }
            tokio::time::sleep(WAIT).await;
        }
        Err(StoreError::Ambiguous("another process is still placing this order".to_owned()))
    }

    /// Brings an order to its end, from wherever somebody left it; `born` where this process is just placing it.
    async fn drive(&self, pending: &Pending, born: Option<Instant>, now: Timestamp) -> Result<Ending> {
        let Pending { order, closing, .. } = pending;
        let short = self.hold_lines(order, born, now).await?;
        if !short.is_empty() {
            self.undo(pending, now).await?;
            return Ok(Ending::Short(short));
        }
        if let Some((cart, lifetime)) = closing {
            let closed = self.close_for_order(cart, order.order_id, now, lifetime).await?;
            if matches!(closed, Closed::Lost) {
                self.undo(pending, now).await?;
                return Ok(Ending::CartLost);
            }
        }
        let standing = self.standing(order);
        Box::pin(self.write_placed(order, &standing, born.map(|_| now))).await?;
        Ok(Ending::Placed)
    }

    /// Holds the units of every line; the shortages of those that can never be held any more.
    async fn hold_lines(
        &self,
        order: &Order,
        born: Option<Instant>,
        now: Timestamp,
    ) -> Result<Vec<Shortage>> {
        let op_id = order.order_id.uuid();
        let holds = order.lines.iter().map(|line| async move {
            let place = Place { product_id: line.product_id.clone(), geo_zone: order.geo_zone.clone() };
            let (until, quantity) = (END_OF_TIME, line.quantity);
            let shortage =
                |available| Shortage { product_id: line.product_id.clone(), requested: quantity, available };
            let hold = Change::Hold { until, op_id, quantity, born };
            let available = match self.ask(&place, hold, now).await? {
                Answer::Short { available } => available,
                Answer::Done { state: Some(State::Void), stock } => {
                    return Ok(Some(shortage(stock.level.available())));
                }
                Answer::Done { .. } => return Ok(None),
                other => return Err(StoreError::Corrupt(format!("a keeper answered {other:?}"))),
            };
            // Somebody who brings this order to its end at the same time may have found units since.
            let forbid = Change::End { until, op_id, quantity, end: End::Forbid };
            match self.keepers.ask(&self.cql, &place, forbid, now).await? {
                Answer::Done { state: Some(State::Void), .. } => Ok(Some(shortage(available))),
                _ => Ok(None),
            }
        });
        let answers: Vec<Option<Shortage>> =
            stream::iter(holds.collect::<Vec<_>>()).buffered(AT_ONCE).try_collect().await?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Gives back what an order holds that will never be, and frees its key.
    async fn undo(&self, pending: &Pending, now: Timestamp) -> Result<()> {
        let order = &pending.order;
        let ends = order.lines.iter().map(|line| async move {
            let place = Place { product_id: line.product_id.clone(), geo_zone: order.geo_zone.clone() };
            let change = Change::End {
                until: END_OF_TIME,
                op_id: order.order_id.uuid(),
                quantity: line.quantity,
                end: End::Prevent,
            };
            self.keepers.ask(&self.cql, &place, change, now).await.map(drop)
        });
        stream::iter(ends.collect::<Vec<_>>()).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        if let Some(once) = &pending.once {
            self.claims.free(&self.cql, once, order.order_id.uuid()).await?;
        }
        Ok(())
    }

    /// Finishes or undoes an order that somebody began.
    pub(crate) async fn recover_order(&self, payload: &[u8]) -> Result<()> {
        let pending = decode(payload)?;
        let order = &pending.order;
        let now = order.created_at;
        if let Some((placed, standing)) = self.placed(order.order_id).await? {
            return Box::pin(self.write_placed(&placed.as_placed(), &standing, None)).await;
        }
        if let Some(once) = &pending.once {
            let is_claimed = match self.claims.look(&self.cql, once, now).await {
                Ok(Some(Claim::Do { op_id, .. })) => op_id == order.order_id.uuid(),
                Ok(_) | Err(StoreError::Refused(_)) => false,
                Err(error) => return Err(error),
            };
            if !is_claimed {
                // The key belongs to another order, or was never claimed: this one must never come.
                return self.undo(&pending, now).await;
            }
        }
        let is_placed = matches!(Box::pin(self.drive(&pending, None, now)).await?, Ending::Placed);
        tracing::info!(order = %order.order_id, is_placed, "brought an unfinished order to its end");
        Ok(())
    }
}

/// Once the intent is durable, somebody brings the order to its end: a failure on the way is not a refusal.
fn unknown(error: StoreError) -> StoreError {
    match error {
        StoreError::Refused(_) | StoreError::Ambiguous(_) | StoreError::Corrupt(_) => error,
        StoreError::Unavailable(detail) => StoreError::Ambiguous(detail),
        StoreError::Overloaded => StoreError::Ambiguous("storage has too much waiting".to_owned()),
    }
}

pub(super) fn demands(order: &Order) -> Vec<Demand> {
    let demand = |line: &OrderLine| Demand { product_id: line.product_id.clone(), quantity: line.quantity };
    order.lines.iter().map(demand).collect()
}

fn encode(pending: &Pending) -> Vec<u8> {
    let mut writer = Writer::new(256);
    mw_codec::orders::write(&mut writer, &pending.order);
    writer.optional(pending.closing.as_ref(), |writer, (cart, lifetime)| {
        mw_codec::carts::write(writer, cart);
        writer.signed(lifetime.user_ms);
        writer.signed(lifetime.guest_ms);
    });
    writer.optional(pending.once.as_ref(), |writer, once| {
        writer.text(once.key.as_str());
        writer.bytes(&once.fingerprint.0);
        writer.time(once.keep_until);
    });
    writer.done()
}

fn decode(bytes: &[u8]) -> Result<Pending, Damaged> {
    let mut reader = Reader::new(bytes, "the intent of an order")?;
    let order = mw_codec::orders::read(&mut reader)?;
    let closing = reader.optional(|reader| {
        let cart = mw_codec::carts::read(reader)?;
        Ok((cart, CartLifetime { user_ms: reader.signed()?, guest_ms: reader.signed()? }))
    })?;
    let once = reader.optional(|reader| {
        Ok(Once {
            key: reader.id(IdempotencyKey::restore)?,
            fingerprint: Fingerprint(reader.array()?),
            keep_until: reader.time()?,
        })
    })?;
    reader.end()?;
    Ok(Pending { order, closing, once })
}
