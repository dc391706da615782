//! Stock of the model: levels, the ledger of each, and reservations, which stay readable for a while after they close.

use mw_domain::stock::{Cause, Delta};
use mw_domain::{
    Demand, GeoZone, Level, Movement, Order, OrderStatus, ProductId, Reservation, ReservationId,
    ReservationStatus, Shortage, Timestamp, ZoneStock,
};
use uuid::Uuid;

use super::{Model, State, StockEntry};
use crate::changes::Changed;
use crate::idempotency::StoredValue as _;
use crate::stock::{Adjust, Audit, Drift, Reserve, SetOnHand, adjust_delta, set_delta};
use crate::{Done, Freshness, Refusal, RequestIdentity, Result, Stock};

/// A movement of the ledger without its units.
#[derive(Clone)]
pub(super) struct MovementHeader {
    pub(super) op: Uuid,
    pub(super) cause: Cause,
    pub(super) note: Option<String>,
    pub(super) now: Timestamp,
}

impl MovementHeader {
    pub(super) const fn new(op: Uuid, cause: Cause, now: Timestamp) -> Self {
        Self { op, cause, note: None, now }
    }

    pub(super) const fn set(op: Uuid, now: Timestamp) -> Self {
        Self::new(op, Cause::Set, now)
    }
}

impl State {
    fn known_reservation(&self, reservation_id: ReservationId, now: Timestamp) -> Option<Reservation> {
        self.reservations.get(&reservation_id).filter(|reservation| now < reservation.forgotten_at()).cloned()
    }

    /// The stock level as of `now`: a hold past its expiry counts as available.
    pub(super) fn stock_at(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        now: Timestamp,
    ) -> Option<ZoneStock> {
        let entry = self.stock.get(&(product_id.clone(), geo_zone.clone()))?;
        let over: u64 = self
            .reservations
            .values()
            .filter(|hold| hold.status == ReservationStatus::Held && now >= hold.expires_at)
            .map(|hold| units_of(&hold.lines, &hold.geo_zone, product_id, geo_zone))
            .sum();
        Some(ZoneStock {
            product_id: product_id.clone(),
            geo_zone: geo_zone.clone(),
            level: Level {
                on_hand: entry.level.on_hand,
                reserved: entry.level.reserved.saturating_sub(over),
            },
            updated_at: entry.updated_at,
        })
    }

    /// Like [`Self::stock_at`]; a zone without stock has 0.
    fn stock_or_none(&self, product_id: &ProductId, geo_zone: &GeoZone, now: Timestamp) -> ZoneStock {
        self.stock_at(product_id, geo_zone, now).unwrap_or_else(|| ZoneStock {
            product_id: product_id.clone(),
            geo_zone: geo_zone.clone(),
            level: Level::default(),
            updated_at: now,
        })
    }

    pub(super) fn available(&self, product_id: &ProductId, geo_zone: &GeoZone, now: Timestamp) -> u64 {
        self.stock_or_none(product_id, geo_zone, now).level.available()
    }

    /// The demands that the zone cannot meet.
    pub(super) fn shortages(&self, lines: &[Demand], geo_zone: &GeoZone, now: Timestamp) -> Vec<Shortage> {
        lines
            .iter()
            .map(|line| Shortage {
                product_id: line.product_id.clone(),
                requested: line.quantity,
                available: match self.known_product(&line.product_id) {
                    Ok(()) => self.available(&line.product_id, geo_zone, now),
                    Err(_) => 0,
                },
            })
            .filter(|shortage| u64::from(shortage.requested) > shortage.available)
            .collect()
    }

    /// Moves a level and appends to its ledger. Callers have checked that the level allows the movement.
    fn move_level(
        &mut self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        delta: Delta,
        change: MovementHeader,
    ) {
        let entry: &mut StockEntry = self.stock.entry((product_id.clone(), geo_zone.clone())).or_default();
        debug_assert!(entry.level.moved(delta).is_ok(), "{:?} by {delta:?}", entry.level);
        entry.level = entry.level.moved(delta).unwrap_or(entry.level);
        entry.updated_at = entry.updated_at.max(change.now);
        entry.ledger.push(Movement {
            at: change.now,
            op: change.op,
            cause: change.cause,
            delta,
            note: change.note,
        });
        let stock = ZoneStock {
            product_id: product_id.clone(),
            geo_zone: geo_zone.clone(),
            level: entry.level,
            updated_at: entry.updated_at,
        };
        self.record(stock.updated_at, Changed::Stock(stock));
    }

    /// Moves the units of an order or a reservation.
    pub(super) fn move_units(&mut self, lines: &[Demand], geo_zone: &GeoZone, change: &MovementHeader) {
        for line in lines {
            let delta = change.cause.delta(line.quantity);
            self.move_level(&line.product_id, geo_zone, delta, change.clone());
        }
    }

    /// Closes up to `limit` expired holds, the oldest first.
    pub(super) fn expire_holds(&mut self, now: Timestamp, limit: usize) -> usize {
        let mut over: Vec<Reservation> = self
            .reservations
            .values()
            .filter(|hold| hold.status == ReservationStatus::Held && now >= hold.expires_at)
            .cloned()
            .collect();
        over.sort_by_key(|hold| (hold.expires_at, hold.reservation_id));
        over.truncate(limit);
        for hold in &over {
            self.close(hold, ReservationStatus::Expired, Cause::Release, now);
        }
        over.len()
    }

    fn close(
        &mut self,
        hold: &Reservation,
        status: ReservationStatus,
        cause: Cause,
        now: Timestamp,
    ) -> Reservation {
        let change = MovementHeader::new(hold.reservation_id.uuid(), cause, now);
        self.move_units(&hold.lines, &hold.geo_zone, &change);
        let mut closed = hold.clone();
        closed.status = status;
        self.reservations.insert(closed.reservation_id, closed.clone());
        closed
    }

    /// Closes a hold with a status; a hold that has this status already is unchanged.
    fn end(
        &mut self,
        reservation_id: ReservationId,
        status: ReservationStatus,
        cause: Cause,
        now: Timestamp,
    ) -> Result<Reservation> {
        let hold = self.known_reservation(reservation_id, now).ok_or(Refusal::ReservationNotFound)?;
        if hold.status == status {
            return Ok(hold);
        }
        if hold.status != ReservationStatus::Held {
            return Err(Refusal::ReservationClosed { status: hold.status }.into());
        }
        Ok(self.close(&hold, status, cause, now))
    }

    pub(super) fn check_on_hand(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        on_hand: u64,
        now: Timestamp,
    ) -> Result<()> {
        let current = self.stock_or_none(product_id, geo_zone, now);
        set_delta(&current, on_hand, None)?;
        Ok(())
    }

    /// Sets the units on hand, as a movement by the difference.
    pub(super) fn put_on_hand(
        &mut self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        on_hand: u64,
        change: MovementHeader,
    ) -> ZoneStock {
        let now = change.now;
        let current = self.stock_or_none(product_id, geo_zone, now).level;
        let delta = Delta { on_hand: on_hand.cast_signed() - current.on_hand.cast_signed(), reserved: 0 };
        self.move_level(product_id, geo_zone, delta, change);
        self.stock_or_none(product_id, geo_zone, now)
    }

    fn known_product(&self, product_id: &ProductId) -> Result<()> {
        if self.products.contains_key(product_id) {
            Ok(())
        } else {
            Err(Refusal::ProductNotFound(product_id.clone()).into())
        }
    }

    /// Units of orders that wait for payment and of holds that are open.
    fn held(&self, product_id: &ProductId, geo_zone: &GeoZone) -> u64 {
        let orders =
            self.orders.values().filter(|stored| stored.order.status == OrderStatus::Created).map(|stored| {
                let lines = demands(&stored.order);
                units_of(&lines, &stored.order.geo_zone, product_id, geo_zone)
            });
        let reservations = self
            .reservations
            .values()
            .filter(|hold| hold.status == ReservationStatus::Held)
            .map(|hold| units_of(&hold.lines, &hold.geo_zone, product_id, geo_zone));
        orders.chain(reservations).sum()
    }
}

/// Units of one product in one zone among the lines of an order or a reservation.
fn units_of(lines: &[Demand], of_zone: &GeoZone, product_id: &ProductId, geo_zone: &GeoZone) -> u64 {
    lines
        .iter()
        .filter(|line| of_zone == geo_zone && line.product_id == *product_id)
        .map(|line| u64::from(line.quantity))
        .sum()
}

/// The stock demands of an order.
pub(super) fn demands(order: &Order) -> Vec<Demand> {
    order
        .lines
        .iter()
        .map(|line| Demand { product_id: line.product_id.clone(), quantity: line.quantity })
        .collect()
}

#[async_trait::async_trait]
impl Stock for Model {
    async fn zone_stock(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        _freshness: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        Ok(self.state().stock_at(product_id, geo_zone, now))
    }

    async fn product_stock(
        &self,
        product_id: &ProductId,
        _freshness: Freshness,
        now: Timestamp,
    ) -> Result<Vec<ZoneStock>> {
        let state = self.state();
        let zones = state.stock.keys().filter(|(of, _)| of == product_id);
        Ok(zones.filter_map(|(_, zone)| state.stock_at(product_id, zone, now)).collect())
    }

    async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock> {
        let mut state = self.state();
        let SetOnHand { product_id, geo_zone, on_hand, expected_on_hand, op, now } = command;
        state.expire_holds(now, usize::MAX);
        state.known_product(&product_id)?;
        set_delta(&state.stock_or_none(&product_id, &geo_zone, now), on_hand, expected_on_hand)?;
        Ok(state.put_on_hand(&product_id, &geo_zone, on_hand, MovementHeader::set(op, now)))
    }

    async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>> {
        let mut state = self.state();
        if let Some(first) = state.replay(command.identity.as_ref(), command.now)? {
            return Ok(first);
        }
        let now = command.now;
        state.expire_holds(now, usize::MAX);
        state.known_product(&command.product_id)?;
        let current = state.stock_or_none(&command.product_id, &command.geo_zone, now);
        let delta = adjust_delta(&current, command.delta)?;
        let change = MovementHeader { op: command.op, cause: Cause::Adjust, note: Some(command.reason), now };
        state.move_level(&command.product_id, &command.geo_zone, delta, change);
        let stock = state.stock_or_none(&command.product_id, &command.geo_zone, now);
        state.store_outcome(command.identity, || stock.to_outcome());
        Ok(Done::first(stock))
    }

    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
        let mut state = self.state();
        if let Some(first) = state.replay(command.identity.as_ref(), command.now)? {
            return Ok(first);
        }
        state.expire_holds(command.now, usize::MAX);
        let shortages = state.shortages(&command.lines, &command.geo_zone, command.now);
        if !shortages.is_empty() {
            return Err(Refusal::OutOfStock(shortages).into());
        }
        let reservation = Reservation {
            reservation_id: command.reservation_id,
            geo_zone: command.geo_zone,
            lines: command.lines,
            status: ReservationStatus::Held,
            created_at: command.now,
            expires_at: command.expires_at,
        };
        let change = MovementHeader::new(reservation.reservation_id.uuid(), Cause::Hold, command.now);
        state.move_units(&reservation.lines, &reservation.geo_zone, &change);
        state.reservations.insert(reservation.reservation_id, reservation.clone());
        state.store_outcome(command.identity, || reservation.to_outcome());
        Ok(Done::first(reservation))
    }

    async fn reservation(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
    ) -> Result<Option<Reservation>> {
        let found = self.state().known_reservation(reservation_id, now);
        Ok(found.map(|mut reservation| {
            reservation.status = reservation.status_at(now);
            reservation
        }))
    }

    async fn confirm(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
        identity: Option<RequestIdentity>,
    ) -> Result<Done<Reservation>> {
        let mut state = self.state();
        if let Some(first) = state.replay(identity.as_ref(), now)? {
            return Ok(first);
        }
        state.expire_holds(now, usize::MAX);
        let confirmed = state.end(reservation_id, ReservationStatus::Confirmed, Cause::Take, now)?;
        state.store_outcome(identity, || confirmed.to_outcome());
        Ok(Done::first(confirmed))
    }

    async fn release(&self, reservation_id: ReservationId, now: Timestamp) -> Result<()> {
        let mut state = self.state();
        state.expire_holds(now, usize::MAX);
        state.end(reservation_id, ReservationStatus::Released, Cause::Release, now)?;
        Ok(())
    }

    async fn expire_reservations(&self, now: Timestamp, limit: usize) -> Result<usize> {
        Ok(self.state().expire_holds(now, limit))
    }

    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        let state = self.state();
        let mut audit = Audit::default();
        for ((product_id, geo_zone), entry) in &state.stock {
            audit.levels += 1;
            audit.movements += entry.ledger.len() as u64;
            let ledger = entry.ledger.iter().fold(Delta::default(), |sum, movement| Delta {
                on_hand: sum.on_hand + movement.delta.on_hand,
                reserved: sum.reserved + movement.delta.reserved,
            });
            let held = state.held(product_id, geo_zone);
            let recorded = entry.level;
            let explained = ledger.on_hand == recorded.on_hand.cast_signed()
                && ledger.reserved == recorded.reserved.cast_signed()
                && held == recorded.reserved;
            if !explained {
                audit.drifts.push(Drift {
                    product_id: product_id.clone(),
                    geo_zone: geo_zone.clone(),
                    recorded,
                    ledger,
                    held,
                });
            }
            progress(audit.levels);
        }
        Ok(audit)
    }
}
