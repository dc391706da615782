//! Carts: an owner's open cart is one partition. A line is changed by a plain write, everything else is decided by lightweight
//! transactions on the partition's header (`protocol.rs`). Closed carts are rows of other partitions (`closed.rs`).
//!
//! Reading the active cart takes one statement. Setting a line takes a read, one mutation with its history row, and a read; the
//! first change of a day also writes the index row by which the report of idle carts finds the owner.

mod checkout;
mod closed;
mod decisions;
mod export;
mod lines;
mod lists;
mod merge;
pub(crate) mod migration;
pub(crate) mod protocol;
mod report;
mod rows;

use async_trait::async_trait;
use mw_codec::idempotency::{decode_outcome, encode_outcome};
use mw_codec::intents::merge::MergeSpec;
use mw_domain::{Cart, CartChange, CartStatus, Date, Owner, Timestamp};
use mw_store::carts::{Abandon, Carts, Merge, Merged, RemoveLine, SetLine, check_version};
use mw_store::idempotency::StoredValue;
use mw_store::{Done, Page, PageRequest, Refusal, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlDate;
use uuid::Uuid;

use crate::CassandraStore;
use crate::bucketing::hash_of;
use crate::driver::scan;
use crate::driver::statements::{Access, Cql};
use crate::schema::tables::Table;
pub(crate) use checkout::CloseResult;
use decisions::{Decided, Plan, Planned};
use lines::LineChange;
use protocol::active_cart_of;
pub(crate) use rows::owner_kind;
use rows::{CartPartition, HEADER_ROW, OPEN_COLUMNS, OPEN_PART, OPEN_ROWS_MAX, RowTtl};

/// Partitions of one day in `carts_by_day`, each with the carts of a few owners: at a thousand new carts a second 21 000.
const DAY_SHARDS: u32 = 4_096;
/// Partitions of a CQL page.
const PAGE_PARTITIONS: i32 = 5_000;
/// Rows of a CQL page.
const PAGE_ROWS: i32 = 500;

#[derive(Debug)]
pub(crate) struct Statements {
    /// The low bits of the write timestamps of this process.
    pub(crate) lane: u8,
    read_open: PreparedStatement,
    serial_revision: PreparedStatement,
    read_closed: PreparedStatement,
    read_marker: PreparedStatement,
    list: PreparedStatement,
    scan: PreparedStatement,
    scan_closed: PreparedStatement,
    /// The condition of every batch; the statement after it has none.
    update_header: PreparedStatement,
    insert_marker: PreparedStatement,
    /// Plain, with the write timestamp of the caller.
    insert_closed: PreparedStatement,
    delete_closed: PreparedStatement,
    update_line: PreparedStatement,
    delete_lines: PreparedStatement,
    insert_change: PreparedStatement,
    delete_change: PreparedStatement,
    read_changes: PreparedStatement,
    scan_changes: PreparedStatement,
    /// The index of the report of idle carts.
    insert_day: PreparedStatement,
    read_days: PreparedStatement,
    read_owners: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let [carts, closed, changes, days] =
            [Table::CartsByOwner, Table::ClosedCarts, Table::CartChanges, Table::CartsByDay];
        let of_owner = "owner_kind = ? AND owner_id = ?";
        let of_row = format!("{of_owner} AND part = ? AND created_at = ? AND cart_id = ? AND product_id = ?");
        let of_closed = format!("{of_owner} AND bucket = ? AND created_at = ? AND cart_id = ?");
        let of_change =
            format!("{of_owner} AND changed_at = ? AND version = ? AND product_id = ? AND cart_id = ?");
        let change_columns = "changed_at, version, product_id, cart_id, quantity";
        let read = async |table, text: &str| cql.prepare(table, Access::Read, text).await;
        let cas = async |text: &str| cql.prepare(carts, Access::Cas, text).await;
        let write = async |table, text: &str| cql.prepare(table, Access::Write, text).await;
        let read_open = format!(
            "SELECT {OPEN_COLUMNS} FROM {{}} WHERE {of_owner} AND part = {OPEN_PART} LIMIT {OPEN_ROWS_MAX}"
        );
        let serial_revision =
            format!("SELECT rev, recent_op_tokens FROM {{}} WHERE {of_owner} AND {HEADER_ROW}");
        let list = format!(
            "SELECT cart FROM {{}} WHERE {of_owner} AND bucket = ? AND (created_at, cart_id) < (?, ?)"
        );
        let update_header = format!(
            "UPDATE {{}} USING TTL ? SET rev = ?, recent_op_tokens = ?, state = ? \
             WHERE {of_owner} AND {HEADER_ROW} IF rev = ?"
        );
        let insert_closed = "INSERT INTO {} (owner_kind, owner_id, bucket, created_at, cart_id, cart, merge_id) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?";
        let insert_marker = "INSERT INTO {} (owner_kind, owner_id, part, created_at, cart_id, product_id, outcome) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TTL ?";
        let update_line = format!("UPDATE {{}} USING TIMESTAMP ? AND TTL ? SET line = ? WHERE {of_row}");
        let delete_lines = format!(
            "DELETE FROM {{}} USING TIMESTAMP ? WHERE {of_owner} AND part = {OPEN_PART} AND created_at = ? AND cart_id = ?"
        );
        let insert_change = "INSERT INTO {} (owner_kind, owner_id, changed_at, version, product_id, cart_id, quantity) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?";
        let read_changes = format!(
            "SELECT {change_columns} FROM {{}} WHERE {of_owner} AND changed_at <= ? AND changed_at > ?"
        );
        let insert_day =
            "INSERT INTO {} (day, shard, status, owner_kind, owner_id) VALUES (?, ?, ?, ?, ?) USING TTL ?";
        let read_owners = "SELECT status, owner_kind, owner_id FROM {} WHERE day = ? AND shard = ? \
             AND (status, owner_kind, owner_id) >= (?, ?, ?) AND (status) <= (?)";
        let mut read_days = read(days, "SELECT DISTINCT day, shard FROM {}").await?;
        read_days.set_page_size(PAGE_PARTITIONS);
        Ok(Self {
            lane: Uuid::new_v4().into_bytes()[0],
            read_open: read(carts, &read_open).await?,
            serial_revision: cql.prepare(carts, Access::Serial, &serial_revision).await?,
            read_closed: read(closed, &format!("SELECT cart, merge_id FROM {{}} WHERE {of_closed}")).await?,
            read_marker: read(carts, &format!("SELECT outcome FROM {{}} WHERE {of_row}")).await?,
            list: paged(read(closed, &list).await?),
            scan: scan::prepare(cql, carts, "owner_kind, owner_id, part, state").await?,
            scan_closed: scan::prepare(cql, closed, "cart").await?,
            update_header: cas(&update_header).await?,
            insert_marker: cas(insert_marker).await?,
            insert_closed: write(closed, insert_closed).await?,
            delete_closed: write(closed, &format!("DELETE FROM {{}} USING TIMESTAMP ? WHERE {of_closed}"))
                .await?,
            update_line: write(carts, &update_line).await?,
            delete_lines: write(carts, &delete_lines).await?,
            insert_change: write(changes, insert_change).await?,
            delete_change: write(changes, &format!("DELETE FROM {{}} USING TIMESTAMP ? WHERE {of_change}"))
                .await?,
            read_changes: paged(read(changes, &read_changes).await?),
            scan_changes: scan::prepare(cql, changes, &format!("owner_kind, owner_id, {change_columns}"))
                .await?,
            insert_day: write(days, insert_day).await?,
            read_days,
            read_owners: paged(read(days, read_owners).await?),
        })
    }
}

fn paged(mut statement: PreparedStatement) -> PreparedStatement {
    statement.set_page_size(PAGE_ROWS);
    statement
}

/// The key under which changes of an owner's partition wait for each other in this process.
const fn lock_key(owner: &Owner) -> (&'static str, &Owner) {
    ("carts", owner)
}

/// An owner's cart as errors name it. The id of a guest is that of its session, which is a secret.
fn subject(owner: &Owner) -> String {
    match owner {
        Owner::User(user_id) => format!("cart u:{user_id}"),
        Owner::Session(_) => "the cart of a guest".to_owned(),
    }
}

#[async_trait]
impl Carts for CassandraStore {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        self.read_active_cart(owner, now).await
    }

    async fn set_line(&self, command: SetLine) -> Result<Cart> {
        self.check_clock(command.now)?;
        let SetLine { owner, product_id, quantity, new_cart_id, expected_version, lifetime, now } = command;
        let _lock = self.locks.partition(&lock_key(&owner)).await;
        let new_cart_id = Some(new_cart_id);
        let change = LineChange { owner, product_id, quantity, new_cart_id, expected_version, lifetime, now };
        let cart = self.change_line(&change).await?;
        cart.ok_or_else(|| {
            StoreError::Ambiguous(format!("set a line of {}: no cart after it", subject(&change.owner)))
        })
    }

    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>> {
        self.check_clock(command.now)?;
        let RemoveLine { owner, product_id, expected_version, lifetime, now } = command;
        let _lock = self.locks.partition(&lock_key(&owner)).await;
        let (quantity, new_cart_id) = (0, None);
        let change = LineChange { owner, product_id, quantity, new_cart_id, expected_version, lifetime, now };
        self.change_line(&change).await
    }

    async fn abandon(&self, command: Abandon) -> Result<Done<Cart>> {
        self.check_clock(command.now)?;
        let identity = command.identity.as_ref();
        self.idempotent(identity, Uuid::new_v4(), command.now, |op_id, _| {
            self.abandon_under(identity.map(|_| op_id), &command)
        })
        .await
    }

    async fn merge(&self, command: Merge) -> Result<Done<Merged>> {
        self.check_clock(command.now)?;
        let identity = command.identity.as_ref();
        let spec = &MergeSpec {
            user: Owner::User(command.user_id.clone()),
            guest: Owner::Session(command.session_id.clone()),
            mode: command.mode,
            new_cart_id: command.new_cart_id,
            expected_version: command.expected_version,
            lifetime: command.lifetime,
            now: command.now,
        };
        self.idempotent(identity, Uuid::new_v4(), command.now, |op_id, _| {
            self.merge_under(op_id, identity.is_some(), spec, None)
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
    /// The owner's active cart, unless it has expired.
    pub(crate) async fn read_active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        Ok(active_cart_of(&self.settled_partition(owner).await?.view, now))
    }

    /// `op_id` is there if a second request with the same key may run at the same time or later.
    async fn abandon_under(&self, op_id: Option<Uuid>, command: &Abandon) -> Result<Cart> {
        let Abandon { owner, expected_version, lifetime, now, .. } = command;
        let ttl = RowTtl::of_change(owner, lifetime, *now);
        let _lock = self.locks.partition(&lock_key(owner)).await;
        let plan = |partition: &CartPartition| {
            let before = partition.active_at(*now);
            check_version(before, *expected_version)?;
            let before = before.ok_or(Refusal::CartEmpty)?;
            let mut cart = before.clone();
            cart.abandon(*now, lifetime);
            let plan = Plan {
                closed: vec![(cart.clone(), None)],
                marker: op_id.map(|op_id| (op_id, encode_outcome(&cart.to_outcome()))),
                indexed: Some((Some(before.clone()), cart.clone())),
                ..Plan::default()
            };
            Ok(Planned::Change(Box::new(plan), cart))
        };
        // Crash in here: at most the key is claimed; a repeated request runs again under the same op_id. Crash after it: the cart is
        // abandoned, the key has no outcome; a repeated request finds the marker and stores it.
        match self.decide(owner, op_id, ttl, plan).await? {
            Decided::Done(cart) => Ok(cart),
            Decided::Before(bytes) => {
                let op_id = op_id.unwrap_or_default();
                let cart = Cart::from_outcome(decode_outcome(&bytes)?).ok_or_else(|| wrong_marker(op_id))?;
                self.report_carts(std::iter::once(&cart), None).await?;
                Ok(cart)
            }
        }
    }

    /// Writes the index row by which the report of idle carts finds a cart. It is written before the cart changes, so
    /// that no idle cart is missed; the report reads the carts themselves and skips those that do not match the row.
    async fn index_day(&self, before: Option<&Cart>, cart: &Cart, ttl: RowTtl) -> Result<()> {
        let day = cart.updated_at.date();
        let is_indexed =
            before.is_some_and(|before| before.status == cart.status && before.updated_at.date() == day);
        if is_indexed || cart.status == CartStatus::Ordered {
            return Ok(());
        }
        let values = (
            cql_date(day),
            day_shard(&cart.owner),
            cart.status.as_str(),
            owner_kind(&cart.owner),
            cart.owner.id(),
            ttl.day_seconds,
        );
        self.cql.write(&self.carts.insert_day, values).await.map_err(StoreError::before_first_effect)
    }
}

fn wrong_marker(op_id: Uuid) -> StoreError {
    StoreError::Corrupt(format!("the marker of operation {op_id} in carts_by_owner is of another kind"))
}

fn cql_date(day: Date) -> CqlDate {
    // A CQL date is unsigned, with the epoch in the middle of its range.
    CqlDate(day.as_days().cast_unsigned() ^ (1 << 31))
}

const fn from_cql_date(day: CqlDate) -> Date {
    Date::from_days((day.0 ^ (1 << 31)).cast_signed())
}

fn day_shard(owner: &Owner) -> i32 {
    i32::try_from(hash_of(owner.id()) % u64::from(DAY_SHARDS)).unwrap_or_default()
}
