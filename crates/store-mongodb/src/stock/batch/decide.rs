//! Decides the commands of a batch, one after the other. A refused command changes nothing.

use std::collections::BTreeMap;

use mw_domain::orders::Step;
use mw_domain::stock::Cause;
use mw_domain::{
    Cart, CartStatus, Demand, GeoZone, Movement, Order, OrderStatus, Reservation, ReservationId,
    ReservationStatus, Shortage, Timestamp, ZoneStock,
};
use mw_store::idempotency::{Outcome, StoredOutcome, StoredValue};
use mw_store::orders::{self, Basket, PlaceOrder, SetStatus, price_basket};
use mw_store::stock::decision::{Decision, Replacement, StockCommand, StockKey};
use mw_store::stock::ledger::{END_OF_TIME, LedgerRow, LedgerState, Transition};
use mw_store::stock::{Adjust, Reserve, SetOnHand};
use mw_store::{Done, Refusal, RequestIdentity, Result, StoreError, carts};
use uuid::Uuid;

use super::{Batch, StockState};
use crate::documents::Shape;
use crate::orders::documents::{StoredOrder, UNITS_MAX};
use crate::stock::command::{
    CloseReservation, ImportStock, Settled, StockRequest, demands_of, keys_of, stock_key,
};

/// The note in the ledger when units of an order come back that the ledger has no open row of.
const RETURNED: &str = "units of an order came back";

impl Batch<'_> {
    /// `None`: more holds have expired than this transaction releases, and the command depends on them.
    pub(super) fn decide(&mut self, request: &StockRequest) -> Option<Result<Settled>> {
        if self.awaits_expiry(request) {
            return None;
        }
        Some(match request {
            StockRequest::Place(command) => self.place(command).map(Settled::Order),
            StockRequest::SetStatus(command) => self.set_status(command).map(Settled::Order),
            StockRequest::Reserve(command) => self.reserve(command).map(Settled::Reservation),
            StockRequest::Close(command) => self.close(command).map(Settled::Reservation),
            StockRequest::SetOnHand(command) => self.set_on_hand(command).map(Settled::Stock),
            StockRequest::Adjust(command) => self.adjust(command).map(Settled::Stock),
            StockRequest::ImportStock(import) => self.import_stock(import).map(|()| Settled::Imported),
            StockRequest::ImportReservation(hold) => {
                self.import_reservation(hold).map(|()| Settled::Imported)
            }
            StockRequest::ExpireHolds { .. } => Ok(Settled::Expired(0)),
        })
    }

    fn awaits_expiry(&self, request: &StockRequest) -> bool {
        self.keys_that_expire(request).iter().filter_map(|key| self.stock.get(key)).any(|state| {
            state.plan.header.earliest_hold_end.is_some_and(|earliest| request.now() >= earliest)
        })
    }

    /// The products and zones whose expired holds change the decision.
    pub(super) fn keys_that_expire(&self, request: &StockRequest) -> Vec<StockKey> {
        match request {
            StockRequest::Place(command) => match &command.basket {
                Basket::Lines(lines) => keys_of(lines, &command.geo_zone),
                Basket::Cart { .. } => {
                    let cart = self.cart_of(&command.user_id);
                    keys_of(&cart.map(Cart::demands).unwrap_or_default(), &command.geo_zone)
                }
            },
            StockRequest::Reserve(command) => keys_of(&command.lines, &command.geo_zone),
            StockRequest::SetOnHand(command) => {
                vec![StockKey { product_id: command.product_id.clone(), geo_zone: command.geo_zone.clone() }]
            }
            StockRequest::Adjust(command) => {
                vec![StockKey { product_id: command.product_id.clone(), geo_zone: command.geo_zone.clone() }]
            }
            // What comes back may be a movement of its own.
            StockRequest::SetStatus(command)
                if matches!(command.to, OrderStatus::Cancelled | OrderStatus::Returned) =>
            {
                let stored = self.orders.get(&command.order_id).map(|stored| &stored.order);
                stored.map(|order| keys_of(&demands_of(order), &order.geo_zone)).unwrap_or_default()
            }
            StockRequest::SetStatus(_)
            | StockRequest::Close(_)
            | StockRequest::ImportStock(_)
            | StockRequest::ImportReservation(_)
            | StockRequest::ExpireHolds { .. } => Vec::new(),
        }
    }

    /// The stored outcome of a repeated request; `None` if the key is free or the request has none.
    fn replay<T>(
        &self,
        identity: Option<&RequestIdentity>,
        now: Timestamp,
        read: impl FnOnce(&Outcome) -> Option<T>,
    ) -> Result<Option<Done<T>>> {
        let known = identity.and_then(|identity| Some((identity, self.outcomes.get(identity.key.as_str())?)));
        let Some((identity, known)) = known.filter(|(_, known)| now < known.identity.keep_until) else {
            return Ok(None);
        };
        if known.identity.fingerprint != identity.fingerprint {
            return Err(Refusal::KeyReused.into());
        }
        // One fingerprint is one request, so an outcome of another kind belongs to another request.
        Ok(Some(Done::replay(read(&known.outcome).ok_or(Refusal::KeyReused)?)))
    }

    fn replay_value<T: StoredValue>(
        &self,
        identity: Option<&RequestIdentity>,
        now: Timestamp,
    ) -> Result<Option<Done<T>>> {
        self.replay(identity, now, |outcome| T::from_outcome(outcome.clone()))
    }

    fn store_outcome(&mut self, identity: Option<&RequestIdentity>, outcome: impl FnOnce() -> Outcome) {
        let Some(identity) = identity else { return };
        let stored = StoredOutcome { identity: identity.clone(), outcome: outcome() };
        self.changes.outcomes.push((stored.identity.clone(), stored.outcome.clone()));
        self.outcomes.insert(identity.key.as_str().to_owned(), stored);
    }

    fn place(&mut self, command: &PlaceOrder) -> Result<Done<Order>> {
        let identity = command.identity.as_ref();
        let first = self.replay(identity, command.now, |outcome| match outcome {
            Outcome::Placed(order_id) => Some(self.orders.get(order_id)?.order.clone().as_placed()),
            _ => None,
        })?;
        if let Some(first) = first {
            return Ok(first);
        }
        let demands = self.basket(command)?;
        let (lines, total) = price_basket(demands.clone(), |product_id| {
            let offer = self.products.get(product_id).and_then(|product| product.offer.as_ref());
            Ok(offer.map(|offer| (offer.name.clone(), offer.price)))
        })?;
        let units: u64 = demands.iter().map(|demand| u64::from(demand.quantity)).sum();
        if self.store.options.shape == Shape::User && units > UNITS_MAX {
            let detail = format!("an order has at most {UNITS_MAX} units");
            return Err(Refusal::InvalidField { field: "lines".to_owned(), detail }.into());
        }
        command.check_total(total)?;
        self.hold(&demands, &command.geo_zone, (END_OF_TIME, command.order_id.uuid()), command.now)?;
        if let Basket::Cart { lifetime, .. } = &command.basket
            && let Some(Some((_, cart))) = self.carts.get_mut(&command.user_id)
        {
            cart.become_order(command.order_id, command.now, lifetime);
            self.changes.closed_carts.push(command.user_id.clone());
        }
        for demand in &demands {
            let offer = self.products.get(&demand.product_id).and_then(|product| product.offer.as_ref());
            if let Some(offer) = offer {
                self.changes.categories.insert(demand.product_id.clone(), offer.category.clone());
            }
        }
        let order = command.clone().into_order(lines, total);
        self.store_outcome(identity, || Outcome::Placed(order.order_id));
        self.orders.insert(order.order_id, StoredOrder::placed(order.clone(), self.store.options.shape));
        self.changes.placed.push(order.order_id);
        Ok(Done::first(order))
    }

    fn basket(&self, command: &PlaceOrder) -> Result<Vec<Demand>> {
        match &command.basket {
            Basket::Lines(lines) => Ok(lines.clone()),
            Basket::Cart { expected_version, .. } => {
                let active = self.cart_of(&command.user_id);
                // A cart that an earlier command of this batch has ordered is not active any more.
                let active = active.filter(|cart| cart.status == CartStatus::Active);
                carts::check_version(active, *expected_version)?;
                let cart = active.filter(|cart| !cart.lines.is_empty()).ok_or(Refusal::CartEmpty)?;
                Ok(cart.demands())
            }
        }
    }

    fn reserve(&mut self, command: &Reserve) -> Result<Done<Reservation>> {
        let identity = command.identity.as_ref();
        if let Some(first) = self.replay_value(identity, command.now)? {
            return Ok(first);
        }
        let row = (command.expires_at, command.reservation_id.uuid());
        self.hold(&command.lines, &command.geo_zone, row, command.now)?;
        let reservation = Reservation {
            reservation_id: command.reservation_id,
            geo_zone: command.geo_zone.clone(),
            lines: command.lines.clone(),
            status: ReservationStatus::Held,
            created_at: command.now,
            expires_at: command.expires_at,
        };
        self.store_outcome(identity, || reservation.to_outcome());
        self.reservations.insert(reservation.reservation_id, reservation.clone());
        self.changes.reserved.push(reservation.reservation_id);
        Ok(Done::first(reservation))
    }

    /// Holds the units of all lines, or refuses with every shortage.
    fn hold(
        &mut self,
        lines: &[Demand],
        geo_zone: &GeoZone,
        (until, op_id): (Timestamp, Uuid),
        now: Timestamp,
    ) -> Result<()> {
        let shortages: Vec<Shortage> = lines
            .iter()
            .map(|line| Shortage {
                product_id: line.product_id.clone(),
                requested: line.quantity,
                available: self.available(&stock_key(line, geo_zone)),
            })
            .filter(|shortage| u64::from(shortage.requested) > shortage.available)
            .collect();
        if !shortages.is_empty() {
            return Err(Refusal::OutOfStock(shortages).into());
        }
        for line in lines {
            let command = StockCommand::Hold { until, op_id, quantity: line.quantity, started_at: None };
            let decision = self.stock_of(&stock_key(line, geo_zone))?.plan.decide(&command, now);
            if !matches!(decision, Decision::Done { state: Some(LedgerState::Held), .. }) {
                return Err(decision.unexpected());
            }
        }
        Ok(())
    }

    /// What can be sold; of a product that is not in the catalogue nothing.
    fn available(&self, key: &StockKey) -> u64 {
        let is_listed = self.products.get(&key.product_id).is_some_and(|product| product.is_listed);
        let level = self.stock.get(key).map(|state| state.plan.header.level);
        level.filter(|_| is_listed).map_or(0, |level| level.available())
    }

    fn close(&mut self, command: &CloseReservation) -> Result<Done<Reservation>> {
        let CloseReservation { reservation_id, to, now, identity } = command;
        if let Some(first) = self.replay_value(identity.as_ref(), *now)? {
            return Ok(first);
        }
        let known = self.reservations.get(reservation_id).filter(|hold| *now < hold.forgotten_at());
        let mut hold = known.cloned().ok_or(Refusal::ReservationNotFound)?;
        let status = hold.status_at(*now);
        if status != *to {
            if status != ReservationStatus::Held {
                return Err(Refusal::ReservationClosed { status }.into());
            }
            let transition =
                if *to == ReservationStatus::Confirmed { Transition::Take } else { Transition::Release };
            let row = (hold.expires_at, reservation_id.uuid());
            self.advance(&hold.lines, &hold.geo_zone, row, transition, *now)?;
            hold.status = *to;
            self.reservations.insert(*reservation_id, hold.clone());
            self.changes.closed.push(*reservation_id);
        }
        self.store_outcome(identity.as_ref(), || hold.to_outcome());
        Ok(Done::first(hold))
    }

    /// Takes, releases or returns the units of a hold.
    fn advance(
        &mut self,
        lines: &[Demand],
        geo_zone: &GeoZone,
        (until, op_id): (Timestamp, Uuid),
        transition: Transition,
        now: Timestamp,
    ) -> Result<()> {
        for line in lines {
            let key = stock_key(line, geo_zone);
            let state = self.stock_of(&key)?;
            let command = StockCommand::Advance { until, op_id, quantity: line.quantity, transition };
            state.plan.decide(&command, now);
            if let Some((op_id, delta)) = state.plan.out_of_bounds.take() {
                tracing::error!(
                    product_id = %key.product_id, geo_zone = %key.geo_zone, %op_id, ?delta,
                    "skip ledger transition: the stock level would leave its bounds; run `mw stock audit`"
                );
            }
        }
        Ok(())
    }

    fn set_status(&mut self, command: &SetStatus) -> Result<Done<Order>> {
        let identity = command.identity.as_ref();
        if let Some(first) = self.replay_value(identity, command.now)? {
            return Ok(first);
        }
        let of_user =
            |stored: &&StoredOrder| command.of_user.as_ref().is_none_or(|user| *user == stored.order.user_id);
        let stored = self.orders.get(&command.order_id).filter(of_user).cloned();
        let mut stored = stored.ok_or(Refusal::OrderNotFound(command.order_id))?;
        orders::check_version(&stored.order, command.expected_version)?;
        let step = stored.order.status.step(command.to)?;
        if step != Step::Stay {
            if let Step::MoveUnits(cause) = step {
                self.move_units(&stored, cause, command.now)?;
            }
            let event = stored.order.advance(command.to, command.note.clone(), command.now);
            stored.events.push(event);
            self.orders.insert(command.order_id, stored.clone());
            self.changes.moved.push(command.order_id);
        }
        self.store_outcome(identity, || stored.order.to_outcome());
        Ok(Done::first(stored.order))
    }

    /// Moves the units of an order. An order of another program holds none: its program took `quantity` down when it was
    /// made, so paying changes nothing, and what comes back is added.
    fn move_units(&mut self, stored: &StoredOrder, cause: Cause, now: Timestamp) -> Result<()> {
        let op_id = stored.order.order_id.uuid();
        let (lines, zone) = (demands_of(&stored.order), &stored.order.geo_zone);
        let transition = match cause {
            Cause::Take if !stored.is_ours => return Ok(()),
            Cause::Take => Transition::Take,
            Cause::Release if stored.is_ours => Transition::Release,
            _ => Transition::Return,
        };
        let row = (END_OF_TIME, op_id);
        for line in &lines {
            let key = stock_key(line, zone);
            let is_known = self.stock_of(&key)?.plan.rows.get(&row).is_some_and(Option::is_some);
            if is_known {
                self.advance(std::slice::from_ref(line), zone, row, transition, now)?;
            } else if transition == Transition::Return {
                // The ledger has no row of the order, or no longer: what comes back is a movement of its own.
                let delta = i64::from(line.quantity);
                let command = StockCommand::Adjust { op_id, delta, note: RETURNED.to_owned() };
                let decision = self.stock_of(&key)?.plan.decide(&command, now);
                if !matches!(decision, Decision::Done { .. }) {
                    return Err(refused(decision));
                }
            }
        }
        Ok(())
    }

    fn set_on_hand(&mut self, command: &SetOnHand) -> Result<Done<ZoneStock>> {
        let SetOnHand { product_id, geo_zone, on_hand, expected_on_hand, op, now } = command;
        let key = StockKey { product_id: product_id.clone(), geo_zone: geo_zone.clone() };
        let set = StockCommand::Set { op_id: *op, on_hand: *on_hand, expected: *expected_on_hand };
        let stock = self.change_on_hand(&key, &set, *now)?;
        // The count says what is there: what another program sold beyond it is settled.
        self.stock_of(&key)?.deficit_is_settled();
        Ok(Done::first(stock))
    }

    fn adjust(&mut self, command: &Adjust) -> Result<Done<ZoneStock>> {
        let identity = command.identity.as_ref();
        if let Some(first) = self.replay_value(identity, command.now)? {
            return Ok(first);
        }
        let key = StockKey { product_id: command.product_id.clone(), geo_zone: command.geo_zone.clone() };
        let adjust =
            StockCommand::Adjust { op_id: command.op, delta: command.delta, note: command.reason.clone() };
        let stock = self.change_on_hand(&key, &adjust, command.now)?;
        self.store_outcome(identity, || stock.to_outcome());
        Ok(Done::first(stock))
    }

    /// A command of the back office, on a product of the catalogue.
    fn change_on_hand(
        &mut self,
        key: &StockKey,
        command: &StockCommand,
        now: Timestamp,
    ) -> Result<ZoneStock> {
        if !self.products.get(&key.product_id).is_some_and(|product| product.is_listed) {
            return Err(Refusal::ProductNotFound(key.product_id.clone()).into());
        }
        match self.stock_of(key)?.plan.decide(command, now) {
            Decision::Done { stock, .. } => Ok(stock),
            decision => Err(refused(decision)),
        }
    }
}

impl Batch<'_> {
    /// Replaces the figures and the ledger: the sum of all that came and went, and the open holds.
    fn import_stock(&mut self, import: &ImportStock) -> Result<()> {
        let ImportStock { stock, ledger } = import;
        let mut rows = vec![LedgerRow {
            until: END_OF_TIME,
            op_id: Uuid::nil(),
            state: LedgerState::Set,
            quantity: ledger.iter().map(|movement| movement.delta.on_hand).sum(),
            at: stock.updated_at,
            note: None,
            result: None,
        }];
        for (op_id, (quantity, at)) in open_holds(ledger) {
            let hold = self.reservations.get(&ReservationId::new(op_id));
            let hold = hold.filter(|hold| hold.status == ReservationStatus::Held);
            let until = hold.map_or(END_OF_TIME, |hold| hold.expires_at);
            rows.push(LedgerRow {
                until,
                op_id,
                state: LedgerState::Held,
                quantity,
                at,
                note: None,
                result: None,
            });
        }
        let key = StockKey { product_id: stock.product_id.clone(), geo_zone: stock.geo_zone.clone() };
        let state = self.stock_of(&key)?;
        let rev = state.plan.header.rev;
        let (level, updated_at) = (stock.level, stock.updated_at);
        let replacement = Replacement { rev, level, compacted: 0, updated_at, rows };
        state.plan.decide(&StockCommand::Replace(Box::new(replacement)), updated_at);
        Ok(())
    }

    fn import_reservation(&mut self, hold: &Reservation) -> Result<()> {
        if hold.status == ReservationStatus::Held {
            let (op_id, until) = (hold.reservation_id.uuid(), hold.expires_at);
            for line in &hold.lines {
                let state = self.stock_of(&stock_key(line, &hold.geo_zone))?;
                state.plan.decide(&StockCommand::SetHoldEnd { op_id, until }, hold.created_at);
            }
        }
        self.changes.imported.push(hold.clone());
        Ok(())
    }
}

/// The open holds of a ledger: units and time by operation.
fn open_holds(ledger: &[Movement]) -> BTreeMap<Uuid, (i64, Timestamp)> {
    let mut holds: BTreeMap<Uuid, (i64, Timestamp)> = BTreeMap::new();
    for movement in ledger.iter().filter(|movement| movement.delta.reserved != 0) {
        let (units, _) = holds.entry(movement.op).or_insert((0, movement.at));
        *units += movement.delta.reserved;
    }
    holds.retain(|_, (units, _)| *units != 0);
    holds
}

fn refused(decision: Decision) -> StoreError {
    match decision {
        Decision::Refused(refusal) => refusal.into(),
        other => other.unexpected(),
    }
}

impl StockState {
    fn deficit_is_settled(&mut self) {
        self.external += self.deficit;
        self.deficit = 0;
    }
}
