//! Stock: figures by product and zone, through the keeper of each.

use futures_util::{StreamExt, TryStreamExt, stream};
use mw_domain::stock::Delta;
use mw_domain::{GeoZone, ProductId, Reservation, ReservationId, Timestamp, ZoneStock};
use mw_store::once::Outcome;
use mw_store::stock::{Adjust, Audit, Reserve, SetOnHand};
use mw_store::{Done, Freshness, Once, Refusal, Result, Stock, StoreError};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::guard::half_done;
use crate::keeper::{Answer, Change, FIGURES, FigureRow, Place, StoredRow, read_figures, read_row};
use crate::ledger::{END_OF_TIME, End, Figures, LedgerRow, State};
use crate::once::Memory;
use crate::tables::Table;
use crate::time::to_cql;

/// Places read at once for one request.
pub(crate) const AT_ONCE: usize = 16;
/// Holds settled at once.
const SETTLED_AT_ONCE: usize = 64;
/// Zones of one product.
const ZONES_MAX: i32 = 10_000;
/// Rows of the ledger looked through for the next hold that is open.
const NEXT_MAX: i32 = 500;
/// Rows of the ledger that are in memory at a time where holds that ended are looked for.
const ENDED_PAGE: i32 = 256;
/// How often holds that ended are settled for one request.
const SETTLE_ROUNDS: usize = 6;

#[derive(Debug)]
pub(crate) struct Statements {
    figures: PreparedStatement,
    figures_showcase: PreparedStatement,
    zones: PreparedStatement,
    ended: PreparedStatement,
    next: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let table = Table::Stock;
        let zones = "SELECT geo_zone FROM {} WHERE product_id = ? LIMIT ?";
        let ended =
            "SELECT until, op_id, operation FROM {} WHERE product_id = ? AND geo_zone = ? AND until <= ?";
        let next = "SELECT until, op_id, operation FROM {} \
             WHERE product_id = ? AND geo_zone = ? AND until > ? AND until < ? LIMIT ?";
        let mut ended = cql.prepare(table, Access::Read, ended).await?;
        ended.set_page_size(ENDED_PAGE);
        Ok(Self {
            figures: cql.prepare(table, Access::Read, FIGURES).await?,
            figures_showcase: cql.prepare(table, Access::Showcase, FIGURES).await?,
            zones: cql.prepare(Table::StockZones, Access::Read, zones).await?,
            ended,
            next: cql.prepare(table, Access::Read, next).await?,
        })
    }
}

impl CassandraStore {
    pub(crate) async fn figures(&self, place: &Place, freshness: Freshness) -> Result<Option<Figures>> {
        let statement = match freshness {
            Freshness::Showcase => &self.stock.figures_showcase,
            Freshness::Full => &self.stock.figures,
        };
        let values = (place.product_id.as_str(), place.geo_zone.as_str());
        let row: Option<FigureRow> = self.cql.first(statement, values).await?;
        let figures = row.map(read_figures).transpose()?;
        Ok(figures.filter(|figures| figures.rev.is_some()))
    }

    /// The figures as a reader sees them: holds past their time count as available.
    pub(crate) async fn level_at(
        &self,
        place: &Place,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        let Some(mut figures) = self.figures(place, freshness).await? else { return Ok(None) };
        if figures.holds_from.is_some_and(|from| now >= from) {
            let release = Delta { on_hand: 0, reserved: -self.ended_units(place, now).await? };
            figures.level = figures.level.moved(release).unwrap_or(figures.level);
        }
        Ok(Some(ZoneStock {
            product_id: place.product_id.clone(),
            geo_zone: place.geo_zone.clone(),
            level: figures.level,
            updated_at: figures.updated_at,
        }))
    }

    /// Units of holds whose time is over and that are not settled.
    async fn ended_units(&self, place: &Place, now: Timestamp) -> Result<i64> {
        let mut units = 0;
        let mut from = PagingState::start();
        loop {
            let (ended, next) = self.ended_holds(place, now, from).await?;
            units += ended.iter().map(|row| row.quantity).sum::<i64>();
            let Some(next) = next else { return Ok(units) };
            from = next;
        }
    }

    /// A page of the holds of a place whose time is over and that are not settled, and where the next begins.
    async fn ended_holds(
        &self,
        place: &Place,
        now: Timestamp,
        from: PagingState,
    ) -> Result<(Vec<LedgerRow>, Option<PagingState>)> {
        let values = (place.product_id.as_str(), place.geo_zone.as_str(), to_cql(now));
        let (rows, next) = self.cql.page::<StoredRow>(&self.stock.ended, values, from).await?;
        let rows: Vec<LedgerRow> = rows.into_iter().map(read_row).collect::<Result<_>>()?;
        let is_open = |row: &LedgerRow| row.state == State::Held && row.until != END_OF_TIME;
        Ok((rows.into_iter().filter(is_open).collect(), next))
    }

    /// Asks a keeper; where it says so, settles the holds that have ended first.
    pub(crate) async fn ask(&self, place: &Place, change: Change, now: Timestamp) -> Result<Answer> {
        for _ in 0..SETTLE_ROUNDS {
            match self.keepers.ask(&self.cql, place, change.clone(), now).await? {
                Answer::SettleFirst => self.settle_place(place, now).await?,
                answer => {
                    self.upkeep.grew(place, now);
                    return Ok(answer);
                }
            }
        }
        Err(StoreError::Unavailable(format!("holds of {} are still being settled", place.product_id)))
    }

    /// Ends the holds of a place whose time is over, and moves its bound up.
    async fn settle_place(&self, place: &Place, now: Timestamp) -> Result<()> {
        let _turn = self.locks.one(&("settle", place)).await;
        let mut from = PagingState::start();
        loop {
            let (ended, next) = self.ended_holds(place, now, from).await?;
            let settled: Vec<_> = ended.into_iter().map(|row| self.settle_hold(place, row, now)).collect();
            stream::iter(settled).buffer_unordered(SETTLED_AT_ONCE).try_collect::<()>().await?;
            let Some(next) = next else { break };
            from = next;
        }
        let Some(figures) = self.figures(place, Freshness::Full).await? else { return Ok(()) };
        let (product_id, geo_zone) = (place.product_id.as_str(), place.geo_zone.as_str());
        let values = (product_id, geo_zone, to_cql(now), to_cql(END_OF_TIME), NEXT_MAX);
        let rows: Vec<StoredRow> = self.cql.rows(&self.stock.next, values).await?;
        let rows: Vec<LedgerRow> = rows.into_iter().map(read_row).collect::<Result<_>>()?;
        let is_cut = rows.len() == usize::try_from(NEXT_MAX).unwrap_or_default();
        let next =
            rows.iter().find(|row| row.state == State::Held).or_else(|| rows.last().filter(|_| is_cut));
        let to = next.map(|row| row.until);
        let bound = Change::Bound { to, rev: figures.rev.unwrap_or_default() };
        self.keepers.ask(&self.cql, place, bound, now).await.map(drop)
    }

    /// A hold whose time is over belongs to a reservation that ends as a whole, or to one that was never finished.
    async fn settle_hold(&self, place: &Place, row: LedgerRow, now: Timestamp) -> Result<()> {
        if let Some(reservation) = self.stored_reservation(ReservationId::new(row.op_id)).await? {
            self.expire_reservation(&reservation, now).await?;
        }
        let quantity = u32::try_from(row.quantity).unwrap_or_default();
        let end = Change::End { until: row.until, op_id: row.op_id, quantity, end: End::Release };
        self.keepers.ask(&self.cql, place, end, now).await.map(drop)
    }

    async fn known_product(&self, product_id: &ProductId) -> Result<()> {
        match self.cards.offer(&self.cql, product_id.clone()).await? {
            Some(_) => Ok(()),
            None => Err(Refusal::ProductNotFound(product_id.clone()).into()),
        }
    }

    /// Refuses a movement of the back office for good; `false` where somebody else has done it meanwhile.
    pub(crate) async fn shut(&self, place: &Place, op_id: Uuid, now: Timestamp) -> Result<bool> {
        // A zone without any figures gets none by being refused.
        if self.figures(place, Freshness::Full).await?.is_none() {
            return Ok(true);
        }
        let shut = Change::End { until: END_OF_TIME, op_id, quantity: 0, end: End::Forbid };
        match self.ask(place, shut, now).await? {
            Answer::Done { state: Some(State::Void), .. } => Ok(true),
            Answer::Done { state: Some(State::Set | State::Adjusted), .. } => Ok(false),
            other => Err(StoreError::Corrupt(format!("a keeper answered {other:?}"))),
        }
    }

    /// Sets the units on hand of any product, listed or not.
    pub(crate) async fn put_on_hand(
        &self,
        place: &Place,
        op_id: Uuid,
        on_hand: u64,
        expected: Option<u64>,
        now: Timestamp,
    ) -> Result<ZoneStock> {
        figures_of(self.ask(place, Change::Set { op_id, on_hand, expected }, now).await?)
    }
}

pub(crate) fn gone(place: &Place) -> StoreError {
    StoreError::Corrupt(format!("the stock of {} is gone", place.product_id))
}

fn figures_of(answer: Answer) -> Result<ZoneStock> {
    match answer {
        Answer::Done { stock, .. } => Ok(stock),
        Answer::Refused(refusal) => Err(refusal.into()),
        other => Err(StoreError::Corrupt(format!("a keeper answered {other:?}"))),
    }
}

#[async_trait::async_trait]
impl Stock for CassandraStore {
    async fn zone_stock(
        &self,
        product_id: &ProductId,
        geo_zone: &GeoZone,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Option<ZoneStock>> {
        let place = Place { product_id: product_id.clone(), geo_zone: geo_zone.clone() };
        self.level_at(&place, freshness, now).await
    }

    async fn product_stock(
        &self,
        product_id: &ProductId,
        freshness: Freshness,
        now: Timestamp,
    ) -> Result<Vec<ZoneStock>> {
        let zones: Vec<(String,)> =
            self.cql.rows(&self.stock.zones, (product_id.as_str(), ZONES_MAX)).await?;
        let places = zones.into_iter().map(|(zone,)| {
            let geo_zone = GeoZone::parse(&zone)
                .map_err(|_| StoreError::Corrupt(format!("a zone is named {zone:?}")))?;
            Ok(Place { product_id: product_id.clone(), geo_zone })
        });
        let places: Vec<Place> = places.collect::<Result<_>>()?;
        let reads = places.iter().map(|place| self.level_at(place, freshness, now));
        let found: Vec<Option<ZoneStock>> =
            stream::iter(reads.collect::<Vec<_>>()).buffered(AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn set_on_hand(&self, command: SetOnHand) -> Result<ZoneStock> {
        self.known_product(&command.product_id).await?;
        let place = Place { product_id: command.product_id, geo_zone: command.geo_zone };
        self.put_on_hand(&place, command.op, command.on_hand, command.expected_on_hand, command.now).await
    }

    async fn adjust(&self, command: Adjust) -> Result<Done<ZoneStock>> {
        let Adjust { product_id, geo_zone, delta, reason, op, now, once } = command;
        let place = Place { product_id, geo_zone };
        let remembered: Memory<ZoneStock> = (
            |stock| Outcome::Stock(stock.clone()),
            |outcome| match outcome {
                Outcome::Stock(stock) => Some(stock),
                _ => None,
            },
        );
        let place = &place;
        let is_keyed = once.is_some();
        self.keyed(once.as_ref(), op, now, remembered, |op_id, _| async move {
            self.known_product(&place.product_id).await?;
            let answer = self.ask(place, Change::Adjust { op_id, delta, note: reason }, now).await?;
            let is_refused = matches!(answer, Answer::Refused(_));
            if is_refused && is_keyed && !self.shut(place, op_id, now).await.map_err(half_done)? {
                // Another process, with the same key, found units since.
                let stock = self.level_at(place, Freshness::Full, now).await.map_err(half_done)?;
                return stock.ok_or_else(|| gone(place));
            }
            figures_of(answer)
        })
        .await
    }

    async fn reserve(&self, command: Reserve) -> Result<Done<Reservation>> {
        self.reserve_units(command).await
    }

    async fn reservation(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
    ) -> Result<Option<Reservation>> {
        self.known_reservation(reservation_id, now).await
    }

    async fn confirm(
        &self,
        reservation_id: ReservationId,
        now: Timestamp,
        once: Option<Once>,
    ) -> Result<Done<Reservation>> {
        self.confirm_reservation(reservation_id, now, once).await
    }

    async fn release(&self, reservation_id: ReservationId, now: Timestamp) -> Result<()> {
        self.release_reservation(reservation_id, now).await
    }

    async fn settle_expired(&self, now: Timestamp, limit: usize) -> Result<usize> {
        self.settle_reservations(now, limit).await
    }

    async fn audit(&self, progress: &(dyn for<'a> Fn(u64) + Send + Sync)) -> Result<Audit> {
        self.audit_stock(progress).await
    }
}
