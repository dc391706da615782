//! Rows of `carts_by_owner`: carts are assembled from them, and a change of a cart is one conditional batch of them.
//!
//! An owner's partition has a revision, the key of the active cart, a header row and a row a line of every cart, and
//! markers of operations. Every change of a cart moves its expiry, and its lines must not expire before it. So rows get
//! a TTL of two cart lifetimes, and a change rewrites the lines whose remaining TTL is below one.

use mw_domain::carts::CartLifetime;
use mw_domain::limits::LINES_MAX;
use mw_domain::{
    Cart, CartId, CartLine, CartStatus, OrderId, Owner, ProductId, SessionId, Timestamp, UserId,
};
use mw_store::{Result, StoreError};
use scylla::DeserializeRow;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use super::Statements;
use crate::CassandraStore;
use crate::driver::statements::{Cql, Prefixed, Row, unset_if_null};
use crate::driver::time::{from_cql, to_cql, ttl_seconds};
use crate::revision::{CasLoop, NextRevision, Revision};

/// The `created_at` of markers: the first instant of year 1, so that they sort before every cart.
const MARKER_CREATED_AT: CqlTimestamp = CqlTimestamp(-62_135_596_800_000);
/// A repeated operation finds its marker for this long. Intents have the same TTL, so that recovery always finds the
/// marker.
const MARKER_TTL_SECONDS: i32 = 10 * 86_400;
const DAY_SECONDS: i32 = 86_400;
/// The product id of a cart's header row.
const HEADER: &str = "";
/// A header and its lines.
pub(super) const CART_ROWS_MAX: usize = LINES_MAX + 1;

/// The columns of [`CartRow`]. Reads for a change put `rev, recent_op_tokens` before them, scans the owner.
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

/// A cart, and what its rows have besides it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredCart {
    pub(super) cart: Cart,
    /// The merge that closed the cart.
    pub(super) merge_id: Option<Uuid>,
    /// The remaining TTL of each line, in seconds.
    line_ttls: Vec<i32>,
}

/// Assembles carts from rows in their clustering order.
#[derive(Debug, Default)]
pub(super) struct CartAssembler {
    current: Option<StoredCart>,
}

impl CartAssembler {
    /// Adds the next row; returns the cart before it if the row does not belong to that one.
    pub(super) fn push(&mut self, owner: &Owner, row: &CartRow) -> Result<Option<StoredCart>> {
        let (Some(created_at), Some(cart_id), Some(product_id)) =
            (row.created_at, row.cart_id.as_deref(), row.product_id.as_deref())
        else {
            return Ok(self.current.take());
        };
        if created_at == MARKER_CREATED_AT {
            return Ok(self.current.take());
        }
        if product_id == HEADER {
            let cart_id = Uuid::from_slice(cart_id).map_err(|_| corrupt("cart_id", row))?;
            let header = read_header(owner, created_at, cart_id, row)?;
            return Ok(std::mem::replace(&mut self.current, header));
        }
        match &mut self.current {
            Some(stored) if stored.cart.cart_id.as_bytes() == cart_id => {
                stored.cart.lines.push(read_line(product_id, row)?);
                stored.line_ttls.push(row.line_ttl.unwrap_or(0));
                Ok(None)
            }
            // A line whose header has expired.
            _ => Ok(self.current.take()),
        }
    }

    pub(super) fn finish(self) -> Option<StoredCart> {
        self.current
    }
}

fn corrupt(column: &str, row: &CartRow) -> StoreError {
    let cart_id = row.cart_id.as_deref().and_then(|id| Uuid::from_slice(id).ok()).unwrap_or_default();
    StoreError::Corrupt(format!("cannot read {column} of cart {cart_id} in carts_by_owner"))
}

/// `None` where columns of the header have expired.
fn read_header(
    owner: &Owner,
    created_at: CqlTimestamp,
    cart_id: Uuid,
    row: &CartRow,
) -> Result<Option<StoredCart>> {
    let (Some(status), Some(version), Some(updated_at), Some(expires_at)) =
        (row.status.as_deref(), row.version, row.updated_at, row.expires_at)
    else {
        return Ok(None);
    };
    let cart = Cart {
        cart_id: CartId::new(cart_id),
        owner: owner.clone(),
        status: CartStatus::parse(status).ok_or_else(|| corrupt("status", row))?,
        version: u64::try_from(version).map_err(|_| corrupt("version", row))?,
        lines: Vec::new(),
        created_at: from_cql(created_at),
        updated_at: from_cql(updated_at),
        expires_at: from_cql(expires_at),
        merged_into: row.merged_into.map(CartId::new),
        order_id: row.order_id.map(OrderId::new),
    };
    Ok(Some(StoredCart { cart, merge_id: row.merge_id, line_ttls: Vec::new() }))
}

fn read_line(product_id: &str, row: &CartRow) -> Result<CartLine> {
    let quantity = row.quantity.and_then(|quantity| u32::try_from(quantity).ok());
    let (Ok(product_id), Some(quantity), Some(updated_at)) =
        (ProductId::parse(product_id), quantity, row.updated_at)
    else {
        return Err(corrupt("a line", row));
    };
    Ok(CartLine { product_id, quantity, updated_at: from_cql(updated_at) })
}

pub(super) const fn owner_kind(owner: &Owner) -> &'static str {
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
pub(super) type CartKey = (Timestamp, CartId);

pub(super) fn cart_key(cart: &Cart) -> CartKey {
    (cart.created_at, cart.cart_id)
}

/// An owner's partition as a change reads it.
#[derive(Debug)]
pub(super) struct CartPartition {
    pub(super) owner: Owner,
    pub(super) revision: Revision,
    pub(super) active_key: Option<CartKey>,
    /// The cart of `active_key`; it may have expired.
    active: Option<StoredCart>,
    /// The merge that closed the newest cart.
    pub(super) last_merge: Option<Uuid>,
}

impl CartPartition {
    /// The active cart, unless it has expired.
    pub(super) fn active_at(&self, now: Timestamp) -> Option<&StoredCart> {
        self.active.as_ref().filter(|stored| !stored.cart.is_expired(now))
    }

    /// The active cart, expired or not, if it is the one with this key.
    pub(super) fn active_with_key(&self, key: CartKey) -> Option<&StoredCart> {
        self.active.as_ref().filter(|stored| cart_key(&stored.cart) == key)
    }

    pub(super) fn into_active(self, now: Timestamp) -> Option<Cart> {
        self.active.map(|stored| stored.cart).filter(|cart| !cart.is_expired(now))
    }
}

/// The TTLs of the rows that a change writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowTtl {
    seconds: i32,
    /// Lines with less than this remaining are rewritten.
    min_seconds: i32,
    /// For a row that one change a day writes on behalf of all changes of that day.
    pub(super) day_seconds: i32,
}

impl RowTtl {
    pub(super) fn of_change(owner: &Owner, lifetime: &CartLifetime, now: Timestamp) -> Self {
        let expiry = lifetime.expiry(owner, now);
        let min_seconds = ttl_seconds(now, expiry);
        Self {
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
            seconds: ttl_seconds(cart.updated_at, until),
            min_seconds: i32::MAX,
            day_seconds: ttl_seconds(cart.updated_at, cart.expires_at).saturating_add(DAY_SECONDS),
        }
    }
}

/// One change of an owner's partition: a batch on the condition of its revision. It is applied whole or not at all, so
/// a crash never leaves half of it.
pub(super) struct CartBatch<'s> {
    statements: &'s Statements,
    owner: Owner,
    ttl: RowTtl,
    next: NextRevision,
    rows: Vec<(&'s PreparedStatement, Row)>,
}

impl<'s> CartBatch<'s> {
    /// `active_key` is the key of the active cart after the change.
    pub(super) fn new(
        statements: &'s Statements,
        before: &CartPartition,
        active_key: Option<CartKey>,
        ttl: RowTtl,
    ) -> Self {
        let next = before.revision.next();
        let owner = before.owner.clone();
        let condition = (
            ttl.seconds,
            next.rev,
            next.recent_op_tokens.clone(),
            active_key.map(|(created_at, _)| to_cql(created_at)),
            active_key.map(|(_, cart_id)| cart_id.uuid()),
            owner_kind(&owner),
            owner.id().to_owned(),
            next.expected,
        );
        let rows: Vec<(&PreparedStatement, Row)> = vec![(&statements.update_revision, Box::new(condition))];
        Self { statements, owner, ttl, next, rows }
    }

    /// Writes the difference between a cart and what is stored of it.
    pub(super) fn put_cart(&mut self, before: Option<&StoredCart>, cart: &Cart, merge_id: Option<Uuid>) {
        let cart_before = before.map(|stored| &stored.cart);
        let header = (
            owner_kind(&self.owner),
            self.owner.id().to_owned(),
            to_cql(cart.created_at),
            cart.cart_id.as_bytes().to_vec(),
            HEADER,
            cart.status.as_str(),
            cart.version.cast_signed(),
            to_cql(cart.expires_at),
            unset_if_null(
                cart_before.and_then(|cart| cart.merged_into).map(CartId::uuid),
                cart.merged_into.map(CartId::uuid),
            ),
            unset_if_null(before.and_then(|before| before.merge_id), merge_id),
            unset_if_null(
                cart_before.and_then(|cart| cart.order_id).map(OrderId::uuid),
                cart.order_id.map(OrderId::uuid),
            ),
            to_cql(cart.updated_at),
            self.ttl.seconds,
        );
        self.rows.push((&self.statements.insert_header, Box::new(header)));

        let lines_before = cart_before.map_or(&[][..], |cart| &cart.lines);
        for line in &cart.lines {
            let remaining_ttl = lines_before
                .binary_search_by(|before| before.product_id.cmp(&line.product_id))
                .ok()
                .filter(|index| lines_before.get(*index) == Some(line))
                .and_then(|index| before.and_then(|before| before.line_ttls.get(index)));
            if remaining_ttl.is_none_or(|ttl| *ttl < self.ttl.min_seconds) {
                self.put_line(cart, line);
            }
        }
        for line in lines_before {
            if cart.lines.binary_search_by(|after| after.product_id.cmp(&line.product_id)).is_err() {
                self.delete_line(cart, &line.product_id);
            }
        }
    }

    fn put_line(&mut self, cart: &Cart, line: &CartLine) {
        let row = (
            owner_kind(&self.owner),
            self.owner.id().to_owned(),
            to_cql(cart.created_at),
            cart.cart_id.as_bytes().to_vec(),
            line.product_id.as_str().to_owned(),
            line.quantity.cast_signed(),
            to_cql(line.updated_at),
            self.ttl.seconds,
        );
        self.rows.push((&self.statements.insert_line, Box::new(row)));
    }

    fn delete_line(&mut self, cart: &Cart, product_id: &ProductId) {
        let key = (
            owner_kind(&self.owner),
            self.owner.id().to_owned(),
            to_cql(cart.created_at),
            cart.cart_id.as_bytes().to_vec(),
            product_id.as_str().to_owned(),
        );
        self.rows.push((&self.statements.delete_row, Box::new(key)));
    }

    /// Stores the outcome of an operation together with its effect.
    pub(super) fn put_marker(&mut self, op_id: Uuid, outcome: Vec<u8>) {
        let row = (
            owner_kind(&self.owner),
            self.owner.id().to_owned(),
            MARKER_CREATED_AT,
            op_id.as_bytes().to_vec(),
            HEADER,
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
    /// The owner's partition, for a change of it.
    pub(super) async fn cart_partition(&self, owner: &Owner) -> Result<CartPartition> {
        let rows: Vec<Prefixed<Option<i64>, Option<Vec<Uuid>>, CartRow>> =
            self.cql.rows(&self.carts.read_with_revision, (owner_kind(owner), owner.id())).await?;
        let mut revision = Revision::default();
        let mut carts = Vec::with_capacity(rows.len());
        for Prefixed { first: rev, second: recent_op_tokens, row } in rows {
            if carts.is_empty() {
                revision = Revision::new(rev, recent_op_tokens);
            }
            carts.push(row);
        }
        let (active_key, active, last_merge) = self.active_of_rows(owner, &carts).await?;
        Ok(CartPartition { owner: owner.clone(), revision, active_key, active, last_merge })
    }

    /// The owner's active cart, unless it has expired.
    pub(crate) async fn read_active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        let rows: Vec<CartRow> =
            self.cql.rows(&self.carts.read_newest, (owner_kind(owner), owner.id())).await?;
        let (_, active, _) = self.active_of_rows(owner, &rows).await?;
        Ok(active.map(|stored| stored.cart).filter(|cart| !cart.is_expired(now)))
    }

    /// The key of the active cart, the cart itself, and the merge that closed the newest cart. The rows begin with the
    /// newest cart; a second read is needed only where that is not the active one.
    async fn active_of_rows(
        &self,
        owner: &Owner,
        rows: &[CartRow],
    ) -> Result<(Option<CartKey>, Option<StoredCart>, Option<Uuid>)> {
        let newest = first_cart(owner, rows)?;
        let last_merge = newest.as_ref().and_then(|stored| stored.merge_id);
        let columns = rows.first().and_then(|row| row.active_created_at.zip(row.active_cart_id));
        let Some((created_at, cart_id)) = columns else { return Ok((None, None, last_merge)) };
        let active_key = (from_cql(created_at), CartId::new(cart_id));
        let active = match newest.filter(|stored| cart_key(&stored.cart) == active_key) {
            Some(stored) => Some(stored),
            None => self.stored_cart(owner, active_key).await?,
        };
        Ok((Some(active_key), active, last_merge))
    }

    pub(super) async fn stored_cart(
        &self,
        owner: &Owner,
        (created_at, cart_id): CartKey,
    ) -> Result<Option<StoredCart>> {
        let key = (owner_kind(owner), owner.id(), to_cql(created_at), &cart_id.as_bytes()[..]);
        let rows: Vec<CartRow> = self.cql.rows(&self.carts.read_cart, key).await?;
        first_cart(owner, &rows)
    }

    /// The marker of an operation in an owner's partition. It must be read after the partition: if the marker is
    /// written in between, a change computed without it fails on the revision.
    pub(super) async fn read_marker(&self, owner: &Owner, op_id: Uuid) -> Result<Option<Vec<u8>>> {
        let key = (owner_kind(owner), owner.id(), MARKER_CREATED_AT, &op_id.as_bytes()[..], HEADER);
        let row: Option<(Option<Vec<u8>>,)> = self.cql.first(&self.carts.read_marker, key).await?;
        Ok(row.and_then(|(outcome,)| outcome))
    }
}

/// The first cart of the rows, which may go on with others.
fn first_cart(owner: &Owner, rows: &[CartRow]) -> Result<Option<StoredCart>> {
    let mut assembler = CartAssembler::default();
    for row in rows {
        if let Some(stored) = assembler.push(owner, row)? {
            return Ok(Some(stored));
        }
    }
    Ok(assembler.finish())
}
