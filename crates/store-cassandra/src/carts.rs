//! Carts: an owner's carts are one partition, a line is a row, and every change is one conditional batch.
//!
//! Reading the open cart is one statement. Setting a line is one read, one batch and one row of history; on the first
//! change of a day also the row by which the report of idle carts finds the owner.

mod checkout;
mod keep;
mod lists;
mod merge;
mod rows;

use async_trait::async_trait;
use mw_codec::once::{decode_outcome, encode_outcome};
use mw_domain::limits::CART_HISTORY_DAYS;
use mw_domain::{Cart, CartChange, CartStatus, Owner, Timestamp};
use mw_store::carts::{Abandon, Carts, Merge, Merged, RemoveLine, SetLine};
use mw_store::once::Outcome;
use mw_store::{Done, Page, PageRequest, Refusal, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlDate;
use uuid::Uuid;

use crate::CassandraStore;
use crate::cql::{Access, Cql};
use crate::guard::{Rounds, half_done};
use crate::scan;
use crate::tables::Table;
use crate::time::{to_cql, ttl_seconds};
pub(crate) use checkout::Closed;
pub(crate) use merge::Parties;
use rows::{CART_ROWS_MAX, COLUMNS, Change, Kept, Stored, owner_kind, place, status_name};

/// A day's owners are spread over so many partitions.
const DAY_SHARDS: u32 = 8;
/// Rows of a page of a walk through a partition or a table.
const PAGE_ROWS: i32 = 500;

#[derive(Debug)]
pub(crate) struct Statements {
    active: PreparedStatement,
    guarded: PreparedStatement,
    look: PreparedStatement,
    one: PreparedStatement,
    outcome: PreparedStatement,
    guard: PreparedStatement,
    header: PreparedStatement,
    line: PreparedStatement,
    remove: PreparedStatement,
    marker: PreparedStatement,
    list: PreparedStatement,
    all: PreparedStatement,
    change: PreparedStatement,
    changes: PreparedStatement,
    all_changes: PreparedStatement,
    day: PreparedStatement,
    days: PreparedStatement,
    owners: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let (carts, changes, days) = (Table::CartsByOwner, Table::CartChanges, Table::CartsByDay);
        let of_owner = "owner_kind = ? AND owner_id = ?";
        let read = format!("SELECT {COLUMNS} FROM {{}} WHERE {of_owner} LIMIT {CART_ROWS_MAX}");
        let guarded =
            format!("SELECT rev, marks, {COLUMNS} FROM {{}} WHERE {of_owner} LIMIT {CART_ROWS_MAX}");
        let one = format!(
            "SELECT {COLUMNS} FROM {{}} WHERE {of_owner} AND created_at = ? AND cart_id = ? LIMIT {CART_ROWS_MAX}"
        );
        let list = format!("SELECT {COLUMNS} FROM {{}} WHERE {of_owner} AND (created_at, cart_id) < (?, ?)");
        let guard = format!(
            "UPDATE {{}} USING TTL ? SET rev = ?, marks = ?, active_created_at = ?, active_cart_id = ? \
             WHERE {of_owner} IF rev = ?"
        );
        let header = "INSERT INTO {} (owner_kind, owner_id, created_at, cart_id, product_id, status, version, \
             expires_at, merged_into, merge_id, order_id, updated_at) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?";
        let line = "INSERT INTO {} (owner_kind, owner_id, created_at, cart_id, product_id, quantity, updated_at) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TTL ?";
        let marker = "INSERT INTO {} (owner_kind, owner_id, created_at, cart_id, product_id, outcome) \
             VALUES (?, ?, ?, ?, ?, ?) USING TTL ?";
        let row = format!("{of_owner} AND created_at = ? AND cart_id = ? AND product_id = ?");
        let change = "INSERT INTO {} (owner_kind, owner_id, changed_at, version, product_id, cart_id, quantity) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TTL ?";
        let of_changes = "changed_at, version, product_id, cart_id, quantity";
        let owners = "SELECT status, owner_kind, owner_id FROM {} WHERE day = ? AND shard = ? \
             AND (status, owner_kind, owner_id) >= (?, ?, ?) AND (status) <= (?)";
        Ok(Self {
            active: cql.prepare(carts, Access::Read, &read).await?,
            guarded: cql.prepare(carts, Access::Read, &guarded).await?,
            look: cql
                .prepare(
                    carts,
                    Access::Serial,
                    &format!("SELECT rev, marks FROM {{}} WHERE {of_owner} LIMIT 1"),
                )
                .await?,
            one: cql.prepare(carts, Access::Read, &one).await?,
            outcome: cql
                .prepare(carts, Access::Read, &format!("SELECT outcome FROM {{}} WHERE {row}"))
                .await?,
            guard: cql.prepare(carts, Access::Cas, &guard).await?,
            header: cql.prepare(carts, Access::Cas, header).await?,
            line: cql.prepare(carts, Access::Cas, line).await?,
            remove: cql.prepare(carts, Access::Cas, &format!("DELETE FROM {{}} WHERE {row}")).await?,
            marker: cql.prepare(carts, Access::Cas, marker).await?,
            list: paged(cql.prepare(carts, Access::Read, &list).await?),
            all: scan::prepare(cql, carts, &format!("owner_kind, owner_id, {COLUMNS}")).await?,
            change: cql.prepare(changes, Access::Write, change).await?,
            changes: paged(
                cql.prepare(
                    changes,
                    Access::Read,
                    &format!(
                        "SELECT {of_changes} FROM {{}} WHERE {of_owner} AND changed_at <= ? AND changed_at > ?"
                    ),
                )
                .await?,
            ),
            all_changes: scan::prepare(cql, changes, &format!("owner_kind, owner_id, {of_changes}")).await?,
            day: cql
                .prepare(
                    days,
                    Access::Write,
                    "INSERT INTO {} (day, shard, status, owner_kind, owner_id) VALUES (?, ?, ?, ?, ?) USING TTL ?",
                )
                .await?,
            days: paged(cql.prepare(days, Access::Read, "SELECT DISTINCT day, shard FROM {}").await?),
            owners: paged(cql.prepare(days, Access::Read, owners).await?),
        })
    }
}

fn paged(mut statement: PreparedStatement) -> PreparedStatement {
    statement.set_page_size(PAGE_ROWS);
    statement
}

/// What those take turns on who change an owner's carts.
const fn turn(owner: &Owner) -> (&'static str, &Owner) {
    ("carts", owner)
}

/// Refuses unless the cart has the expected version; no cart has version 0.
fn check_version(cart: Option<&Stored>, expected: Option<u64>) -> Result<()> {
    let version = cart.map_or(0, |stored| stored.cart.version);
    match expected {
        Some(expected) if expected != version => {
            Err(Refusal::CartVersion { current: cart.map(|stored| stored.cart.clone()) }.into())
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl Carts for CassandraStore {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        self.active(owner, now).await
    }

    async fn set_line(&self, command: SetLine) -> Result<Cart> {
        let SetLine { owner, product_id, quantity, new_cart_id, expected_version, lifetime, now } = command;
        let kept = Kept::of(&owner, &lifetime, now);
        let mut rounds = Rounds::of("a cart");
        let _turn = self.locks.one(&turn(&owner)).await;
        loop {
            let found = self.partition(&owner).await?;
            let before = found.active_at(now);
            check_version(before, expected_version)?;
            let mut cart = before
                .map_or_else(|| Cart::open(new_cart_id, owner.clone(), now), |stored| stored.cart.clone());
            cart.set_line(product_id.clone(), quantity, now, &lifetime)?;
            self.note_day(before, &cart, kept).await?;
            let mut change = Change::new(&self.carts, &found, Some(place(&cart)), kept);
            change.cart(before, &cart, None);
            if change.settle(&self.cql, &mut rounds).await? {
                self.note_changes(&owner, [cart.line_history(&product_id)]).await.map_err(half_done)?;
                return Ok(cart);
            }
        }
    }

    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>> {
        let RemoveLine { owner, product_id, expected_version, lifetime, now } = command;
        let kept = Kept::of(&owner, &lifetime, now);
        let mut rounds = Rounds::of("a cart");
        let _turn = self.locks.one(&turn(&owner)).await;
        loop {
            let found = self.partition(&owner).await?;
            let before = found.active_at(now);
            check_version(before, expected_version)?;
            let Some(before) = before else { return Ok(None) };
            let mut cart = before.cart.clone();
            if !cart.remove_line(&product_id, now, &lifetime) {
                return Ok(Some(cart));
            }
            self.note_day(Some(before), &cart, kept).await?;
            let mut change = Change::new(&self.carts, &found, Some(place(&cart)), kept);
            change.cart(Some(before), &cart, None);
            if change.settle(&self.cql, &mut rounds).await? {
                self.note_changes(&owner, [cart.line_history(&product_id)]).await.map_err(half_done)?;
                return Ok(Some(cart));
            }
        }
    }

    async fn abandon(&self, command: Abandon) -> Result<Done<Cart>> {
        let once = command.once.as_ref();
        let recall = |outcome| match outcome {
            Outcome::Cart(cart) => Some(cart),
            _ => None,
        };
        let answer: (fn(&Cart) -> Outcome, fn(Outcome) -> Option<Cart>) =
            (|cart| Outcome::Cart(cart.clone()), recall);
        self.keyed(once, Uuid::new_v4(), command.now, answer, |op_id, _| {
            self.abandon_under(once.map(|_| op_id), &command)
        })
        .await
    }

    async fn merge(&self, command: Merge) -> Result<Done<Merged>> {
        let once = command.once.as_ref();
        let recall = |outcome| match outcome {
            Outcome::Merged(merged) => Some(merged),
            _ => None,
        };
        let answer: (fn(&Merged) -> Outcome, fn(Outcome) -> Option<Merged>) =
            (|merged| Outcome::Merged(merged.clone()), recall);
        let parties = Parties {
            user: Owner::User(command.user_id.clone()),
            guest: Owner::Session(command.session_id.clone()),
            mode: command.mode,
            new_cart_id: command.new_cart_id,
            expected_version: command.expected_version,
            lifetime: command.lifetime,
            now: command.now,
        };
        let parties = &parties;
        self.keyed(once, Uuid::new_v4(), command.now, answer, |op_id, _| {
            self.merge_under(op_id, once.is_some(), parties, None)
        })
        .await
    }

    async fn carts(&self, owner: &Owner, now: Timestamp, page: PageRequest) -> Result<Page<Cart>> {
        self.list_carts(owner, now, &page).await
    }

    async fn cart_changes(
        &self,
        owner: &Owner,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<CartChange>> {
        self.list_changes(owner, now, &page).await
    }

    async fn idle_carts(
        &self,
        idle_since: Timestamp,
        now: Timestamp,
        page: PageRequest,
    ) -> Result<Page<Cart>> {
        self.list_idle(idle_since, now, &page).await
    }
}

impl CassandraStore {
    /// `op_id` is there where somebody else may do the same under it.
    async fn abandon_under(&self, op_id: Option<Uuid>, command: &Abandon) -> Result<Cart> {
        let Abandon { owner, expected_version, lifetime, now, .. } = command;
        let kept = Kept::of(owner, lifetime, *now);
        let mut rounds = Rounds::of("a cart");
        let _turn = self.locks.one(&turn(owner)).await;
        loop {
            let found = self.partition(owner).await?;
            if let Some(op_id) = op_id
                && let Some(bytes) = self.outcome_of(owner, op_id).await?
            {
                return match decode_outcome(&bytes)? {
                    Outcome::Cart(cart) => Ok(cart),
                    _ => Err(StoreError::Corrupt(format!("the outcome of {op_id}"))),
                };
            }
            let before = found.active_at(*now);
            check_version(before, *expected_version)?;
            let before = before.ok_or(Refusal::CartEmpty)?;
            let mut cart = before.cart.clone();
            cart.abandon(*now, lifetime);
            self.note_day(Some(before), &cart, kept).await?;
            let mut change = Change::new(&self.carts, &found, None, kept);
            change.cart(Some(before), &cart, None);
            if let Some(op_id) = op_id {
                change.marker(op_id, encode_outcome(&Outcome::Cart(cart.clone())));
            }
            if change.settle(&self.cql, &mut rounds).await? {
                return Ok(cart);
            }
        }
    }

    /// Writes where the report of idle carts will look for a cart, before it changes. Whoever is found there and has
    /// changed since is passed over.
    async fn note_day(&self, before: Option<&Stored>, cart: &Cart, kept: Kept) -> Result<()> {
        let day = cart.updated_at.date();
        let is_noted = before
            .is_some_and(|before| before.cart.status == cart.status && before.cart.updated_at.date() == day);
        if is_noted || cart.status == CartStatus::Ordered {
            return Ok(());
        }
        let values = (
            cql_date(day),
            day_shard(&cart.owner),
            status_name(cart.status),
            owner_kind(&cart.owner),
            cart.owner.id(),
            kept.day_seconds,
        );
        // Nothing of the change itself has happened.
        self.cql.write(&self.carts.day, values).await.map_err(|error| match error {
            StoreError::Ambiguous(detail) => StoreError::Unavailable(detail),
            other => other,
        })
    }

    /// Adds to the history of an owner.
    async fn note_changes(&self, owner: &Owner, changes: impl IntoIterator<Item = CartChange>) -> Result<()> {
        let rows: Vec<_> = changes
            .into_iter()
            .map(|change| {
                (
                    owner_kind(owner),
                    owner.id().to_owned(),
                    to_cql(change.at),
                    change.version.cast_signed(),
                    change.product_id.as_str().to_owned(),
                    change.cart_id.as_bytes().to_vec(),
                    change.quantity.cast_signed(),
                    ttl_seconds(change.at, change.at.plus_seconds(CART_HISTORY_DAYS * 86_400)),
                )
            })
            .collect();
        self.cql.write_rows(&self.carts.change, &rows).await
    }
}

fn cql_date(day: mw_domain::Date) -> CqlDate {
    // Cassandra counts days with the epoch in the middle of its range.
    CqlDate(day.as_days().cast_unsigned() ^ (1 << 31))
}

const fn date_of_cql(day: CqlDate) -> mw_domain::Date {
    mw_domain::Date::from_days((day.0 ^ (1 << 31)).cast_signed())
}

/// Where an owner stands among those of a day, the same in every process.
fn day_shard(owner: &Owner) -> i32 {
    let hash = owner.id().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i32::try_from((hash >> 32) % u64::from(DAY_SHARDS)).unwrap_or_default()
}
