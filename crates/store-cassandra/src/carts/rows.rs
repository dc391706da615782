//! Rows of `carts_by_owner`: carts read from them, and the batch that a change of a cart becomes.
//!
//! A cart's life moves with every change, and its lines must not die before it. So rows are kept twice as long as a cart
//! lives, and a change writes those again that would not outlive it.

use mw_domain::cart::CartLifetime;
use mw_domain::limits::LINES_MAX;
use mw_domain::{
    Cart, CartId, CartLine, CartStatus, OrderId, Owner, ProductId, SessionId, Timestamp, UserId,
};
use mw_store::{Result, StoreError};
use scylla::DeserializeRow;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::{CqlTimestamp, MaybeUnset};
use uuid::Uuid;

use super::Statements;
use crate::CassandraStore;
use crate::cql::{Cql, Led, Row};
use crate::guard::{Guard, Next, Rounds};
use crate::time::{from_cql, to_cql, ttl_seconds};

/// Where rows stand that are no carts: before every cart, in the first instant of the first year.
const MARKERS: CqlTimestamp = CqlTimestamp(-62_135_596_800_000);
/// Redoing an operation finds its marker for so long; nothing that is in the middle of something is kept longer.
const MARKER_TTL_SECONDS: i32 = 10 * 86_400;
const DAY_SECONDS: i32 = 86_400;
/// The product id of the row that is the cart itself.
const HEADER: &str = "";
/// A cart and its lines.
pub(super) const CART_ROWS_MAX: usize = LINES_MAX + 1;

/// What the statements that read carts select; for changes `rev, marks` stand before them, in scans the owner.
pub(super) const COLUMNS: &str = "created_at, cart_id, product_id, active_created_at, active_cart_id, status, \
     version, expires_at, merged_into, merge_id, order_id, updated_at, quantity, TTL(quantity) AS line_ttl";

#[derive(Debug, DeserializeRow)]
pub(super) struct CartRow {
    created_at: Option<CqlTimestamp>,
    cart_id: Option<Vec<u8>>,
    product_id: Option<String>,
    active_created_at: Option<CqlTimestamp>,
    active_cart_id: Option<Uuid>,
    status: Option<String>,
    version: Option<i64>,
    expires_at: Option<CqlTimestamp>,
    merged_into: Option<Uuid>,
    merge_id: Option<Uuid>,
    order_id: Option<Uuid>,
    updated_at: Option<CqlTimestamp>,
    quantity: Option<i32>,
    line_ttl: Option<i32>,
}

/// A cart as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) cart: Cart,
    pub(super) merge_id: Option<Uuid>,
    /// Seconds that each line has left.
    line_ttls: Vec<i32>,
}

/// What makes a cart out of its rows, one row after another.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    cart: Option<Stored>,
}

impl Gathering {
    /// Takes the next row; answers the cart before it where the row is not of that one.
    pub(super) fn take(&mut self, owner: &Owner, row: &CartRow) -> Result<Option<Stored>> {
        let (Some(created_at), Some(cart_id), Some(product_id)) =
            (row.created_at, row.cart_id.as_deref(), row.product_id.as_deref())
        else {
            return Ok(self.cart.take());
        };
        if created_at == MARKERS {
            return Ok(self.cart.take());
        }
        if product_id == HEADER {
            let cart_id = Uuid::from_slice(cart_id).map_err(|_| damaged("the id", row))?;
            let header = header(owner, created_at, cart_id, row)?;
            return Ok(std::mem::replace(&mut self.cart, header));
        }
        match &mut self.cart {
            Some(stored) if stored.cart.cart_id.as_bytes() == cart_id => {
                stored.cart.lines.push(line(product_id, row)?);
                stored.line_ttls.push(row.line_ttl.unwrap_or(0));
                Ok(None)
            }
            // A line that has outlived its cart.
            _ => Ok(self.cart.take()),
        }
    }

    pub(super) fn end(self) -> Option<Stored> {
        self.cart
    }
}

fn damaged(what: &str, row: &CartRow) -> StoreError {
    StoreError::Corrupt(format!("{what} of cart {:?}", row.cart_id))
}

/// `None` where only remains of a cart are left.
fn header(owner: &Owner, created_at: CqlTimestamp, cart_id: Uuid, row: &CartRow) -> Result<Option<Stored>> {
    let (Some(status), Some(version), Some(updated_at), Some(expires_at)) =
        (row.status.as_deref(), row.version, row.updated_at, row.expires_at)
    else {
        return Ok(None);
    };
    let cart = Cart {
        cart_id: CartId::new(cart_id),
        owner: owner.clone(),
        status: status_named(status).ok_or_else(|| damaged("the status", row))?,
        version: u64::try_from(version).map_err(|_| damaged("the version", row))?,
        lines: Vec::new(),
        created_at: from_cql(created_at),
        updated_at: from_cql(updated_at),
        expires_at: from_cql(expires_at),
        merged_into: row.merged_into.map(CartId::new),
        order_id: row.order_id.map(OrderId::new),
    };
    Ok(Some(Stored { cart, merge_id: row.merge_id, line_ttls: Vec::new() }))
}

fn line(product_id: &str, row: &CartRow) -> Result<CartLine> {
    let quantity = row.quantity.and_then(|quantity| u32::try_from(quantity).ok());
    let (Ok(product_id), Some(quantity), Some(updated_at)) =
        (ProductId::parse(product_id), quantity, row.updated_at)
    else {
        return Err(damaged("a line", row));
    };
    Ok(CartLine { product_id, quantity, updated_at: from_cql(updated_at) })
}

pub(super) const fn status_name(status: CartStatus) -> &'static str {
    match status {
        CartStatus::Active => "active",
        CartStatus::Ordered => "ordered",
        CartStatus::Abandoned => "abandoned",
    }
}

pub(super) fn status_named(name: &str) -> Option<CartStatus> {
    [CartStatus::Active, CartStatus::Ordered, CartStatus::Abandoned]
        .into_iter()
        .find(|status| status_name(*status) == name)
}

pub(super) const fn owner_kind(owner: &Owner) -> &'static str {
    match owner {
        Owner::User(_) => "user",
        Owner::Session(_) => "session",
    }
}

/// The owner that stored columns name.
pub(super) fn read_owner(kind: &str, id: &str) -> Result<Owner> {
    let owner = match kind {
        "user" => UserId::parse(id).ok().map(Owner::User),
        "session" => SessionId::parse(id).ok().map(Owner::Session),
        _ => None,
    };
    owner.ok_or_else(|| StoreError::Corrupt(format!("the owner of a cart: {kind} {id}")))
}

/// Where a cart stands among its owner's.
pub(super) type Place = (Timestamp, CartId);

pub(super) fn place(cart: &Cart) -> Place {
    (cart.created_at, cart.cart_id)
}

/// An owner's partition, as a change needs it.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) owner: Owner,
    pub(super) guard: Guard,
    pub(super) pointer: Option<Place>,
    /// The open cart, which may have expired.
    active: Option<Stored>,
    /// The merge that took the newest cart.
    pub(super) last_merge: Option<Uuid>,
}

impl Partition {
    /// The open cart, unless it has expired.
    pub(super) fn active_at(&self, now: Timestamp) -> Option<&Stored> {
        self.active.as_ref().filter(|stored| !stored.cart.is_expired(now))
    }

    /// The open cart, if it stands there.
    pub(super) fn open_at(&self, at: Place) -> Option<&Stored> {
        self.active.as_ref().filter(|stored| place(&stored.cart) == at)
    }

    pub(super) fn into_active(self, now: Timestamp) -> Option<Cart> {
        self.active.map(|stored| stored.cart).filter(|cart| !cart.is_expired(now))
    }
}

/// How long the rows of a change are kept, and which of the others are not kept long enough.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    seconds: i32,
    enough_seconds: i32,
    /// Of a row that is written once a day for whatever happens that day.
    pub(super) day_seconds: i32,
}

impl Kept {
    pub(super) fn of(owner: &Owner, lifetime: &CartLifetime, now: Timestamp) -> Self {
        let expiry = lifetime.expiry(owner, now);
        let enough_seconds = ttl_seconds(now, expiry);
        Self {
            seconds: ttl_seconds(now, lifetime.expiry(owner, expiry)),
            enough_seconds,
            day_seconds: enough_seconds.saturating_add(DAY_SECONDS),
        }
    }

    /// For a cart that is written as it is, whatever the time.
    pub(super) fn whole(cart: &Cart) -> Self {
        let life_ms = cart.expires_at.as_millis().saturating_sub(cart.updated_at.as_millis());
        let until = cart.expires_at.plus_millis(life_ms);
        Self {
            seconds: ttl_seconds(cart.updated_at, until),
            enough_seconds: i32::MAX,
            day_seconds: ttl_seconds(cart.updated_at, cart.expires_at).saturating_add(DAY_SECONDS),
        }
    }
}

/// One conditional change of an owner's partition.
pub(super) struct Change<'s> {
    statements: &'s Statements,
    owner: Owner,
    kept: Kept,
    next: Next,
    rows: Vec<(&'s PreparedStatement, Row)>,
}

impl<'s> Change<'s> {
    /// Begins with the guard; `pointer` is where the open cart stands afterwards.
    pub(super) fn new(
        statements: &'s Statements,
        found: &Partition,
        pointer: Option<Place>,
        kept: Kept,
    ) -> Self {
        let next = found.guard.next();
        let owner = found.owner.clone();
        let guard = (
            kept.seconds,
            next.rev,
            next.marks.clone(),
            pointer.map(|(created_at, _)| to_cql(created_at)),
            pointer.map(|(_, cart_id)| cart_id.uuid()),
            owner_kind(&owner),
            owner.id().to_owned(),
            next.expected,
        );
        let rows: Vec<(&PreparedStatement, Row)> = vec![(&statements.guard, Box::new(guard))];
        Self { statements, owner, kept, next, rows }
    }

    /// Writes what is different in the cart from how it was before.
    pub(super) fn cart(&mut self, before: Option<&Stored>, cart: &Cart, merge_id: Option<Uuid>) {
        let was = before.map(|stored| &stored.cart);
        let header = (
            owner_kind(&self.owner),
            self.owner.id().to_owned(),
            to_cql(cart.created_at),
            cart.cart_id.as_bytes().to_vec(),
            HEADER,
            status_name(cart.status),
            cart.version.cast_signed(),
            to_cql(cart.expires_at),
            written(
                was.and_then(|was| was.merged_into).map(CartId::uuid),
                cart.merged_into.map(CartId::uuid),
            ),
            written(before.and_then(|before| before.merge_id), merge_id),
            written(was.and_then(|was| was.order_id).map(OrderId::uuid), cart.order_id.map(OrderId::uuid)),
            to_cql(cart.updated_at),
            self.kept.seconds,
        );
        self.rows.push((&self.statements.header, Box::new(header)));

        let lines_before = was.map_or(&[][..], |was| &was.lines);
        let known = |product_id: &ProductId| {
            lines_before.binary_search_by(|line| line.product_id.cmp(product_id)).ok()
        };
        for line in &cart.lines {
            let ttl = known(&line.product_id)
                .filter(|at| lines_before.get(*at) == Some(line))
                .and_then(|at| before.and_then(|before| before.line_ttls.get(at)));
            if ttl.is_none_or(|ttl| *ttl < self.kept.enough_seconds) {
                self.line(cart, line);
            }
        }
        for line in lines_before {
            if cart.lines.binary_search_by(|kept| kept.product_id.cmp(&line.product_id)).is_err() {
                let key = (
                    owner_kind(&self.owner),
                    self.owner.id().to_owned(),
                    to_cql(cart.created_at),
                    cart.cart_id.as_bytes().to_vec(),
                    line.product_id.as_str().to_owned(),
                );
                self.rows.push((&self.statements.remove, Box::new(key)));
            }
        }
    }

    fn line(&mut self, cart: &Cart, line: &CartLine) {
        let row = (
            owner_kind(&self.owner),
            self.owner.id().to_owned(),
            to_cql(cart.created_at),
            cart.cart_id.as_bytes().to_vec(),
            line.product_id.as_str().to_owned(),
            line.quantity.cast_signed(),
            to_cql(line.updated_at),
            self.kept.seconds,
        );
        self.rows.push((&self.statements.line, Box::new(row)));
    }

    /// Notes what became of an operation, together with its effect.
    pub(super) fn marker(&mut self, op_id: Uuid, outcome: Vec<u8>) {
        let row = (
            owner_kind(&self.owner),
            self.owner.id().to_owned(),
            MARKERS,
            op_id.as_bytes().to_vec(),
            HEADER,
            outcome,
            MARKER_TTL_SECONDS,
        );
        self.rows.push((&self.statements.marker, Box::new(row)));
    }

    /// `true`: done. `false`: another change was faster.
    pub(super) async fn settle(&self, cql: &Cql, rounds: &mut Rounds) -> Result<bool> {
        let key = (owner_kind(&self.owner), self.owner.id());
        rounds.settle(cql, &self.next, &self.rows, &self.statements.look, key).await
    }
}

/// Leaves a column alone that was and stays empty: writing nothing into it would be a tombstone.
fn written(before: Option<Uuid>, after: Option<Uuid>) -> MaybeUnset<Option<Uuid>> {
    match (before, after) {
        (None, None) => MaybeUnset::Unset,
        (_, after) => MaybeUnset::Set(after),
    }
}

impl CassandraStore {
    /// The owner's partition, for a change of it.
    pub(super) async fn partition(&self, owner: &Owner) -> Result<Partition> {
        let rows: Vec<Led<Option<i64>, Option<Vec<Uuid>>, CartRow>> =
            self.cql.rows(&self.carts.guarded, (owner_kind(owner), owner.id())).await?;
        let mut guard = Guard::default();
        let mut carts = Vec::with_capacity(rows.len());
        for Led { first: rev, second: marks, row } in rows {
            if carts.is_empty() {
                guard = Guard::new(rev, marks);
            }
            carts.push(row);
        }
        let (pointer, active, last_merge) = self.open_cart(owner, &carts).await?;
        Ok(Partition { owner: owner.clone(), guard, pointer, active, last_merge })
    }

    /// The owner's open cart, unless it has expired.
    pub(crate) async fn active(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        let rows: Vec<CartRow> = self.cql.rows(&self.carts.active, (owner_kind(owner), owner.id())).await?;
        let (_, active, _) = self.open_cart(owner, &rows).await?;
        Ok(active.map(|stored| stored.cart).filter(|cart| !cart.is_expired(now)))
    }

    /// Where the open cart stands, the cart itself, and the merge that took the newest one. The rows begin with the newest
    /// cart; another is read only where that one is the open cart.
    async fn open_cart(
        &self,
        owner: &Owner,
        rows: &[CartRow],
    ) -> Result<(Option<Place>, Option<Stored>, Option<Uuid>)> {
        let newest = newest(owner, rows)?;
        let last_merge = newest.as_ref().and_then(|stored| stored.merge_id);
        let pointer = rows.first().and_then(|row| row.active_created_at.zip(row.active_cart_id));
        let Some((created_at, cart_id)) = pointer else { return Ok((None, None, last_merge)) };
        let pointer = (from_cql(created_at), CartId::new(cart_id));
        let active = match newest.filter(|stored| place(&stored.cart) == pointer) {
            Some(stored) => Some(stored),
            None => self.cart_at(owner, pointer).await?,
        };
        Ok((Some(pointer), active, last_merge))
    }

    pub(super) async fn cart_at(
        &self,
        owner: &Owner,
        (created_at, cart_id): Place,
    ) -> Result<Option<Stored>> {
        let key = (owner_kind(owner), owner.id(), to_cql(created_at), &cart_id.as_bytes()[..]);
        let rows: Vec<CartRow> = self.cql.rows(&self.carts.one, key).await?;
        newest(owner, &rows)
    }

    /// What an operation left behind in an owner's partition. To be read after the partition, so that a change on the
    /// strength of there being nothing fails where there is.
    pub(super) async fn outcome_of(&self, owner: &Owner, op_id: Uuid) -> Result<Option<Vec<u8>>> {
        let key = (owner_kind(owner), owner.id(), MARKERS, &op_id.as_bytes()[..], HEADER);
        let row: Option<(Option<Vec<u8>>,)> = self.cql.first(&self.carts.outcome, key).await?;
        Ok(row.and_then(|(outcome,)| outcome))
    }
}

/// The first cart of rows that may go on with others.
fn newest(owner: &Owner, rows: &[CartRow]) -> Result<Option<Stored>> {
    let mut gathering = Gathering::default();
    for row in rows {
        if let Some(stored) = gathering.take(owner, row)? {
            return Ok(Some(stored));
        }
    }
    Ok(gathering.end())
}
