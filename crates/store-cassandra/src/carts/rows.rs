//! Rows of `carts_by_owner`: an owner's partition is read from them, and a decision about it is one conditional batch.
//!
//! A partition has two parts. The first has the header and the cells of lines, and is what a request reads; the second has the
//! markers of operations. Header and markers are written by LWTs only, the cells by plain writes only. Every change of a
//! cart moves its expiry, and nothing of it must expire before it. So rows get a TTL of two cart lifetimes, and a change that finds
//! less than one remaining goes through a decision, which writes the header whole.

use mw_codec::carts::header::{self as codec, CartHeader};
use mw_domain::carts::CartLifetime;
use mw_domain::limits::LINES_MAX;
use mw_domain::{Cart, CartId, Owner, ProductId, SessionId, Timestamp, UserId};
use mw_store::{Result, StoreError};
use scylla::DeserializeRow;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use super::Statements;
use super::protocol::{LineCell, View};
use crate::CassandraStore;
use crate::driver::statements::{Cql, Row};
use crate::driver::time::{from_cql, ttl_seconds};
use crate::revision::{CasLoop, NextRevision, Revision};

/// The `part` of the header and the lines, and of the markers.
pub(super) const OPEN_PART: i32 = 0;
pub(super) const MARKER_PART: i32 = 1;
/// The row of the header, which sorts before every line.
pub(super) const HEADER_ROW: &str =
    "part = 0 AND created_at = 253402300799999 AND cart_id = 0x AND product_id = ''";
/// A repeated operation finds its marker for this long. Intents have the same TTL, so that recovery always finds the
/// marker.
const MARKER_TTL_SECONDS: i32 = 10 * 86_400;
const DAY_SECONDS: i32 = 86_400;
/// The product id of rows that are not of a line.
const NO_PRODUCT: &str = "";
/// The `created_at` of markers.
const MARKER_CREATED_AT: CqlTimestamp = CqlTimestamp(0);
/// Removed lines of a cart that are kept as cells. A change that finds more goes through a decision, which drops them.
const REMOVED_MAX: usize = LINES_MAX;
/// New lines that concurrent blind writes may add before one of them reads the others. Above the limit less this a new line goes
/// through a decision.
const CONCURRENT_LINES_MAX: usize = 16;
/// The header, lines, removed lines, and cells that arrived late in earlier carts.
pub(super) const OPEN_ROWS_MAX: usize = 1_000;

/// The columns of [`OpenRow`].
pub(super) const OPEN_COLUMNS: &str = "created_at, cart_id, product_id, rev, recent_op_tokens, state, \
     TTL(rev) AS header_ttl, line, WRITETIME(line) AS line_stamp, TTL(line) AS line_ttl";

/// Quantity, change and expiry of a line.
pub(super) type LineValue = (i32, CqlTimestamp, CqlTimestamp);

/// A row of the first part.
#[derive(Debug, DeserializeRow)]
pub(super) struct OpenRow {
    created_at: CqlTimestamp,
    cart_id: Vec<u8>,
    product_id: String,
    rev: Option<i64>,
    recent_op_tokens: Option<Vec<Uuid>>,
    state: Option<Vec<u8>>,
    header_ttl: Option<i32>,
    line: Option<LineValue>,
    line_stamp: Option<i64>,
    line_ttl: Option<i32>,
}

pub(crate) const fn owner_kind(owner: &Owner) -> &'static str {
    match owner {
        Owner::User(_) => "user",
        Owner::Session(_) => "session",
    }
}

pub(super) fn parse_owner(kind: &str, id: &str) -> Result<Owner> {
    let owner = match kind {
        "user" => UserId::parse(id).ok().map(Owner::User),
        "session" => SessionId::parse(id).ok().map(Owner::Session),
        _ => None,
    };
    owner.ok_or_else(|| StoreError::Corrupt(format!("cannot read the owner of a cart: {kind} {id}")))
}

/// The clustering key of a cart in its owner's partition.
pub(crate) type CartKey = (Timestamp, CartId);

pub(super) fn cart_key(cart: &Cart) -> CartKey {
    (cart.created_at, cart.cart_id)
}

/// An owner's partition as one quorum read shows it.
#[derive(Debug)]
pub(super) struct CartPartition {
    pub(super) owner: Owner,
    pub(super) revision: Revision,
    pub(super) view: View,
    /// The open cart of the view; it may have expired.
    pub(super) open: Option<Cart>,
    /// The least TTL that remains of the header and of the lines, in seconds.
    pub(super) ttl_left: i32,
}

impl CartPartition {
    fn read(owner: &Owner, rows: Vec<OpenRow>) -> Result<Self> {
        let corrupt = |what: &str| StoreError::Corrupt(format!("cannot read {what} in carts_by_owner"));
        if rows.len() == OPEN_ROWS_MAX {
            return Err(corrupt("a cart of so many rows"));
        }
        let mut revision = Revision::default();
        let mut view = View::default();
        let mut ttl_left = i32::MAX;
        for row in rows {
            if let Some(state) = &row.state {
                revision = Revision::new(row.rev, row.recent_op_tokens);
                view.header = codec::decode(state)?;
                ttl_left = ttl_left.min(row.header_ttl.unwrap_or(0));
                continue;
            }
            let key = view.header.open.as_ref().map(|open| cart_key(&open.cart));
            let (Some(line), Some(stamp)) = (row.line, row.line_stamp) else { continue };
            let is_open = key.is_some_and(|(created_at, cart_id)| {
                from_cql(row.created_at) == created_at && row.cart_id == cart_id.as_bytes()
            });
            // Other cells are of writes that arrived after their cart was closed.
            if !is_open {
                continue;
            }
            let product_id = ProductId::parse(&row.product_id).map_err(|_| corrupt("a product id"))?;
            let (quantity, updated_at, expires_at) = line;
            let quantity = u32::try_from(quantity).map_err(|_| corrupt("a quantity"))?;
            let (updated_at, expires_at) = (from_cql(updated_at), from_cql(expires_at));
            view.cells.insert(product_id, LineCell { stamp, quantity, updated_at, expires_at });
            ttl_left = ttl_left.min(row.line_ttl.unwrap_or(0));
        }
        let open = view.cart();
        Ok(Self { owner: owner.clone(), revision, view, open, ttl_left })
    }

    /// The active cart, unless it has expired.
    pub(super) fn active_at(&self, now: Timestamp) -> Option<&Cart> {
        self.open.as_ref().filter(|cart| !cart.is_expired(now))
    }

    /// The TTL of the header after a change, which shortens none: an imported cart may have less time left than what the header has.
    pub(super) fn header_ttl(&self, ttl: RowTtl) -> i32 {
        if self.revision == Revision::default() { ttl.seconds } else { ttl.seconds.max(self.ttl_left) }
    }

    /// The TTL that is left of what is stored; the shortest where nothing is.
    pub(super) fn stored_ttl(&self) -> i32 {
        if self.revision == Revision::default() { 1 } else { self.rest_ttl() }
    }

    /// The TTL of a header of which only the claim changes.
    pub(super) fn rest_ttl(&self) -> i32 {
        self.ttl_left.clamp(1, i32::MAX)
    }

    /// The active cart, expired or not, if it is the one with this key.
    pub(super) fn open_with_key(&self, key: CartKey) -> Option<&Cart> {
        self.open.as_ref().filter(|cart| cart_key(cart) == key)
    }

    /// Whether a line may be written blindly: nothing must be renewed, and the cart has room for concurrent new lines.
    pub(super) fn takes_blind_write(&self, cart: &Cart, product_id: &ProductId, ttl: RowTtl) -> bool {
        let is_known = cart.lines.iter().any(|line| line.product_id == *product_id);
        let has_room = is_known || cart.lines.len() + CONCURRENT_LINES_MAX < LINES_MAX;
        let removed = self.view.cells.values().filter(|cell| cell.quantity == 0).count();
        has_room && self.ttl_left >= ttl.min_seconds && removed <= REMOVED_MAX
    }
}

/// The TTLs of the rows that a change writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowTtl {
    /// The time of the change.
    pub(super) now: Timestamp,
    pub(super) seconds: i32,
    /// Below this a blind write is not enough.
    min_seconds: i32,
    /// For a row that one change a day writes on behalf of all changes of that day.
    pub(super) day_seconds: i32,
}

impl RowTtl {
    pub(super) fn of_change(owner: &Owner, lifetime: &CartLifetime, now: Timestamp) -> Self {
        let expiry = lifetime.expiry(owner, now);
        let min_seconds = ttl_seconds(now, expiry);
        Self {
            now,
            seconds: ttl_seconds(now, lifetime.expiry(owner, expiry)),
            min_seconds,
            day_seconds: min_seconds.saturating_add(DAY_SECONDS),
        }
    }

    /// For an exported cart, which is written whole and keeps its own times.
    pub(super) fn of_imported(cart: &Cart) -> Self {
        let life_ms = cart.expires_at.as_millis().saturating_sub(cart.updated_at.as_millis());
        let until = cart.expires_at.plus_millis(life_ms);
        Self {
            now: cart.updated_at,
            seconds: ttl_seconds(cart.updated_at, until),
            min_seconds: i32::MAX,
            day_seconds: ttl_seconds(cart.updated_at, cart.expires_at).saturating_add(DAY_SECONDS),
        }
    }
}

/// One change of an owner's header: a batch on the condition of its revision. It is applied whole or not at all, so a crash never
/// leaves half of it.
pub(super) struct CartBatch<'s> {
    statements: &'s Statements,
    owner: Owner,
    next: NextRevision,
    rows: Vec<(&'s PreparedStatement, Row)>,
}

impl<'s> CartBatch<'s> {
    pub(super) fn new(
        statements: &'s Statements,
        before: &CartPartition,
        header: &CartHeader,
        ttl_seconds: i32,
    ) -> Self {
        let next = before.revision.next();
        let owner = before.owner.clone();
        let update = (
            ttl_seconds,
            next.rev,
            next.recent_op_tokens.clone(),
            codec::encode(header),
            owner_kind(&owner),
            owner.id().to_owned(),
            next.expected,
        );
        let rows: Vec<(&PreparedStatement, Row)> = vec![(&statements.update_header, Box::new(update))];
        Self { statements, owner, next, rows }
    }

    /// Stores the outcome of an operation together with its effect.
    pub(super) fn put_marker(&mut self, op_id: Uuid, outcome: Vec<u8>) {
        let row = (
            owner_kind(&self.owner),
            self.owner.id().to_owned(),
            MARKER_PART,
            MARKER_CREATED_AT,
            op_id.as_bytes().to_vec(),
            NO_PRODUCT,
            outcome,
            MARKER_TTL_SECONDS,
        );
        self.rows.push((&self.statements.insert_marker, Box::new(row)));
    }

    /// `true`: applied. `false`: another change came first; read the partition again.
    pub(super) async fn apply(&self, cql: &Cql, cas_loop: &mut CasLoop) -> Result<bool> {
        let key = (owner_kind(&self.owner), self.owner.id());
        cas_loop.apply(cql, &self.next, &self.rows, &self.statements.serial_revision, key).await
    }
}

impl CassandraStore {
    /// The owner's partition, also while a decision is under way.
    pub(super) async fn cart_partition(&self, owner: &Owner) -> Result<CartPartition> {
        let rows: Vec<OpenRow> =
            self.cql.rows(&self.carts.read_open, (owner_kind(owner), owner.id())).await?;
        CartPartition::read(owner, rows)
    }

    /// The marker of an operation in an owner's partition. It must be read after the partition: if the marker is
    /// written in between, a change computed without it fails on the revision.
    pub(super) async fn read_marker(&self, owner: &Owner, op_id: Uuid) -> Result<Option<Vec<u8>>> {
        let key = (
            owner_kind(owner),
            owner.id(),
            MARKER_PART,
            MARKER_CREATED_AT,
            &op_id.as_bytes()[..],
            NO_PRODUCT,
        );
        let row: Option<(Option<Vec<u8>>,)> = self.cql.first(&self.carts.read_marker, key).await?;
        Ok(row.and_then(|(outcome,)| outcome))
    }
}
