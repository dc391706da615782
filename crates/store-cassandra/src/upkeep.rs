//! What the engine does for itself: folding ledgers, and telling whether the cluster can serve.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use mw_domain::Timestamp;
use mw_domain::limits::IDEMPOTENCY_HOURS;
use mw_store::{Result, StoreError, Upkeep};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::intents::TTL_SECONDS as INTENT_SECONDS;
use crate::keeper::{Answer, Change, Place, StoredRow, read_row};
use crate::ledger::{LedgerRow, State};
use crate::tables::Table;

/// Nobody asks for a hold that is settled again after this time: requests and recovery take seconds, and a key that comes
/// again is answered by the order or the reservation.
const HOLD_SECONDS: i64 = 3_600;
/// What would count again without its row is kept for as long as a key or an intent can bring it again, and longer.
const MOVED_SECONDS: i64 = 11 * 86_400;
const _: () = assert!(MOVED_SECONDS > INTENT_SECONDS as i64 && MOVED_SECONDS > IDEMPOTENCY_HOURS * 3_600);
/// Rows folded in one write.
const FOLD_MAX: usize = 256;
/// Places that wait to be folded; further ones are folded after their next change.
const PLACES_MAX: usize = 100_000;

#[derive(Debug)]
pub(crate) struct Upkeeping {
    ready: PreparedStatement,
    rows: PreparedStatement,
    /// Places whose ledger has grown, the longest ago first.
    grown: Mutex<Grown>,
}

#[derive(Debug, Default)]
struct Grown {
    queue: VecDeque<(Timestamp, Place)>,
    known: std::collections::HashSet<Place>,
}

impl Upkeeping {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let rows = "SELECT until, op_id, operation FROM {} \
             WHERE product_id = ? AND geo_zone = ? AND until >= ?";
        Ok(Self {
            ready: cql.prepare(Table::Settings, Access::Read, "SELECT value FROM {} WHERE name = ?").await?,
            rows: cql.prepare(Table::Stock, Access::Read, rows).await?,
            grown: Mutex::default(),
        })
    }

    /// A ledger has more rows than before.
    pub(crate) fn grew(&self, place: &Place, now: Timestamp) {
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        if grown.known.len() < PLACES_MAX && grown.known.insert(place.clone()) {
            grown.queue.push_back((now, place.clone()));
        }
    }

    /// The place that has waited longest, if that is long enough.
    fn next(&self, before: Timestamp) -> Option<Place> {
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, _) = grown.queue.front()?;
        if *since > before {
            return None;
        }
        let (_, place) = grown.queue.pop_front()?;
        grown.known.remove(&place);
        Some(place)
    }
}

#[async_trait::async_trait]
impl Upkeep for CassandraStore {
    async fn ready(&self) -> Result<()> {
        self.cql.check_replicas()?;
        // The driver may be late to know; the nodes themselves are asked for one partition.
        let found: Result<Option<(Option<String>,)>> =
            self.cql.first(&self.upkeep.ready, ("currency",)).await;
        found.map(drop).map_err(|error| StoreError::Unavailable(format!("the cluster: {error}")))
    }

    async fn clean(&self, now: Timestamp, limit: usize) -> Result<usize> {
        let mut folded = 0;
        // Places count too: many have nothing to fold.
        for _ in 0..limit {
            if folded >= limit {
                break;
            }
            let Some(place) = self.upkeep.next(now.plus_seconds(-HOLD_SECONDS)) else { break };
            folded += self.fold(&place, now).await?;
        }
        Ok(folded)
    }
}

/// For how many seconds somebody may ask for a row.
const fn asked_for(row: &LedgerRow) -> i64 {
    match row.state {
        State::Set | State::Adjusted | State::Returned => MOVED_SECONDS,
        // Of a figure that was not to be moved; holds are of units.
        State::Void if row.quantity == 0 => MOVED_SECONDS,
        State::Held | State::Taken | State::Released | State::Void => HOLD_SECONDS,
    }
}

impl CassandraStore {
    /// Folds the settled rows of a ledger that are older than anybody's question; answers how many.
    async fn fold(&self, place: &Place, now: Timestamp) -> Result<usize> {
        let mut count = 0;
        let mut is_young_left = false;
        let mut from = PagingState::start();
        loop {
            let values =
                (place.product_id.as_str(), place.geo_zone.as_str(), crate::time::to_cql(Timestamp::EPOCH));
            let (rows, next) = self.cql.page::<StoredRow>(&self.upkeep.rows, values, from).await?;
            let mut old = Vec::new();
            for row in rows {
                let row = read_row(row)?;
                let asked_for = asked_for(&row);
                if row.state.is_settled() && row.at.plus_seconds(asked_for) <= now {
                    old.push(row);
                } else {
                    // The few that are kept for long wait for the next change of the place.
                    is_young_left |= asked_for == HOLD_SECONDS;
                }
            }
            for rows in old.chunks(FOLD_MAX) {
                let change = Change::Fold { rows: rows.to_vec() };
                if let Answer::Done { .. } = self.keepers.ask(&self.cql, place, change, now).await? {
                    count += rows.len();
                }
            }
            let Some(next) = next else { break };
            from = next;
        }
        if is_young_left {
            self.upkeep.grew(place, now);
        }
        Ok(count)
    }
}
