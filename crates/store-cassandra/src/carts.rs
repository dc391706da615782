//! Carts: all carts of an owner are one partition, a line is a row, and every change is one conditional batch.
//!
//! Reading the active cart takes one statement. Setting a line takes one read, one batch and one history row; the first
//! change of a day also writes the index row by which the report of idle carts finds the owner.

mod checkout;
mod export;
mod lists;
mod merge;
mod rows;

use async_trait::async_trait;
use mw_codec::idempotency::{decode_outcome, encode_outcome};
use mw_codec::intents::merge::MergeSpec;
use mw_domain::limits::CART_HISTORY_DAYS;
use mw_domain::{Cart, CartChange, CartStatus, Date, Owner, ProductId, Timestamp};
use mw_store::carts::{Abandon, Carts, Merge, Merged, RemoveLine, SetLine};
use mw_store::idempotency::StoredValue;
use mw_store::{Done, Page, PageRequest, Refusal, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlDate;
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::scan;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::{to_cql, ttl_seconds};
use crate::revision::CasLoop;
use crate::schema::tables::Table;
pub(crate) use checkout::CloseResult;
use rows::{CART_ROWS_MAX, COLUMNS, CartBatch, RowTtl, StoredCart, cart_key, owner_kind};

/// Partitions of one day in `carts_by_day`, each with the carts of a few owners: at a thousand new carts a second 21 000.
const DAY_SHARDS: u32 = 4_096;
/// Partitions of a CQL page.
const PAGE_PARTITIONS: i32 = 5_000;
/// Rows of a CQL page.
const PAGE_ROWS: i32 = 500;

#[derive(Debug)]
pub(crate) struct Statements {
    /// The newest cart, which is mostly the active one.
    read_newest: PreparedStatement,
    read_with_revision: PreparedStatement,
    serial_revision: PreparedStatement,
    read_cart: PreparedStatement,
    read_marker: PreparedStatement,
    list: PreparedStatement,
    scan: PreparedStatement,
    /// The condition of every batch; the statements after it have none.
    update_revision: PreparedStatement,
    insert_header: PreparedStatement,
    insert_line: PreparedStatement,
    insert_marker: PreparedStatement,
    delete_row: PreparedStatement,
    insert_change: PreparedStatement,
    read_changes: PreparedStatement,
    scan_changes: PreparedStatement,
    /// The index of the report of idle carts.
    insert_day: PreparedStatement,
    read_days: PreparedStatement,
    read_owners: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let (carts, changes, days) = (Table::CartsByOwner, Table::CartChanges, Table::CartsByDay);
        let of_owner = "owner_kind = ? AND owner_id = ?";
        let of_row = format!("{of_owner} AND created_at = ? AND cart_id = ? AND product_id = ?");
        let newest = format!("FROM {{}} WHERE {of_owner} LIMIT {CART_ROWS_MAX}");
        let one = format!("WHERE {of_owner} AND created_at = ? AND cart_id = ? LIMIT {CART_ROWS_MAX}");
        let update_revision = format!(
            "UPDATE {{}} USING TTL ? SET rev = ?, recent_op_tokens = ?, active_created_at = ?, active_cart_id = ? \
             WHERE {of_owner} IF rev = ?"
        );
        let insert_header = "INSERT INTO {} (owner_kind, owner_id, created_at, cart_id, product_id, status, version, \
             expires_at, merged_into, merge_id, order_id, updated_at) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?";
        let insert_line = "INSERT INTO {} (owner_kind, owner_id, created_at, cart_id, product_id, quantity, updated_at) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TTL ?";
        let insert_marker = "INSERT INTO {} (owner_kind, owner_id, created_at, cart_id, product_id, outcome) \
             VALUES (?, ?, ?, ?, ?, ?) USING TTL ?";
        let insert_change = "INSERT INTO {} (owner_kind, owner_id, changed_at, version, product_id, cart_id, quantity) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TTL ?";
        let change_columns = "changed_at, version, product_id, cart_id, quantity";
        let insert_day =
            "INSERT INTO {} (day, shard, status, owner_kind, owner_id) VALUES (?, ?, ?, ?, ?) USING TTL ?";
        let read_owners = "SELECT status, owner_kind, owner_id FROM {} WHERE day = ? AND shard = ? \
             AND (status, owner_kind, owner_id) >= (?, ?, ?) AND (status) <= (?)";
        let read = async |table, text: &str| cql.prepare(table, Access::Read, text).await;
        let cas = async |text: &str| cql.prepare(carts, Access::Cas, text).await;
        let serial_revision = format!("SELECT rev, recent_op_tokens FROM {{}} WHERE {of_owner} LIMIT 1");
        let list = format!("SELECT {COLUMNS} FROM {{}} WHERE {of_owner} AND (created_at, cart_id) < (?, ?)");
        let read_changes = format!(
            "SELECT {change_columns} FROM {{}} WHERE {of_owner} AND changed_at <= ? AND changed_at > ?"
        );
        let mut read_days = read(days, "SELECT DISTINCT day, shard FROM {}").await?;
        read_days.set_page_size(PAGE_PARTITIONS);
        Ok(Self {
            read_newest: read(carts, &format!("SELECT {COLUMNS} {newest}")).await?,
            read_with_revision: read(carts, &format!("SELECT rev, recent_op_tokens, {COLUMNS} {newest}"))
                .await?,
            serial_revision: cql.prepare(carts, Access::Serial, &serial_revision).await?,
            read_cart: read(carts, &format!("SELECT {COLUMNS} FROM {{}} {one}")).await?,
            read_marker: read(carts, &format!("SELECT outcome FROM {{}} WHERE {of_row}")).await?,
            list: paged(read(carts, &list).await?),
            scan: scan::prepare(cql, carts, &format!("owner_kind, owner_id, {COLUMNS}")).await?,
            update_revision: cas(&update_revision).await?,
            insert_header: cas(insert_header).await?,
            insert_line: cas(insert_line).await?,
            insert_marker: cas(insert_marker).await?,
            delete_row: cas(&format!("DELETE FROM {{}} WHERE {of_row}")).await?,
            insert_change: cql.prepare(changes, Access::Write, insert_change).await?,
            read_changes: paged(read(changes, &read_changes).await?),
            scan_changes: scan::prepare(cql, changes, &format!("owner_kind, owner_id, {change_columns}"))
                .await?,
            insert_day: cql.prepare(days, Access::Write, insert_day).await?,
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

/// Refuses unless the cart has the expected version; a missing cart has version 0.
fn check_version(cart: Option<&StoredCart>, expected: Option<u64>) -> Result<()> {
    mw_store::carts::check_version(cart.map(|stored| &stored.cart), expected)
}

#[async_trait]
impl Carts for CassandraStore {
    async fn active_cart(&self, owner: &Owner, now: Timestamp) -> Result<Option<Cart>> {
        self.read_active_cart(owner, now).await
    }

    async fn set_line(&self, command: SetLine) -> Result<Cart> {
        self.check_clock(command.now)?;
        let SetLine { owner, product_id, quantity, new_cart_id, expected_version, lifetime, now } = command;
        let ttl = RowTtl::of_change(&owner, &lifetime, now);
        let mut cas_loop = CasLoop::of(subject(&owner));
        let _lock = self.locks.partition(&lock_key(&owner)).await;
        loop {
            let partition = self.cart_partition(&owner).await?;
            let before = partition.active_at(now);
            check_version(before, expected_version)?;
            let mut cart = before
                .map_or_else(|| Cart::open(new_cart_id, owner.clone(), now), |stored| stored.cart.clone());
            cart.set_line(product_id.clone(), quantity, now, &lifetime)?;
            let mut batch = CartBatch::new(&self.carts, &partition, Some(cart_key(&cart)), ttl);
            batch.put_cart(before, &cart, None);
            if self.apply_line(&batch, before, &cart, &product_id, ttl, &mut cas_loop).await? {
                return Ok(cart);
            }
        }
    }

    async fn remove_line(&self, command: RemoveLine) -> Result<Option<Cart>> {
        self.check_clock(command.now)?;
        let RemoveLine { owner, product_id, expected_version, lifetime, now } = command;
        let ttl = RowTtl::of_change(&owner, &lifetime, now);
        let mut cas_loop = CasLoop::of(subject(&owner));
        let _lock = self.locks.partition(&lock_key(&owner)).await;
        loop {
            let partition = self.cart_partition(&owner).await?;
            let before = partition.active_at(now);
            check_version(before, expected_version)?;
            let Some(before) = before else { return Ok(None) };
            let mut cart = before.cart.clone();
            if !cart.remove_line(&product_id, now, &lifetime) {
                return Ok(Some(cart));
            }
            let mut batch = CartBatch::new(&self.carts, &partition, Some(cart_key(&cart)), ttl);
            batch.put_cart(Some(before), &cart, None);
            if self.apply_line(&batch, Some(before), &cart, &product_id, ttl, &mut cas_loop).await? {
                return Ok(Some(cart));
            }
        }
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
    /// Applies the change of one line, between its index row and its history row. `false`: read the partition again.
    async fn apply_line(
        &self,
        batch: &CartBatch<'_>,
        before: Option<&StoredCart>,
        cart: &Cart,
        product_id: &ProductId,
        ttl: RowTtl,
        cas_loop: &mut CasLoop,
    ) -> Result<bool> {
        // Crash here: nothing was written, no process has to finish anything.
        self.index_day(before, cart, ttl).await?;
        // Crash here: an index row without the change; the report of idle carts skips it, its TTL removes it.
        if !batch.apply(&self.cql, cas_loop).await? {
            return Ok(false);
        }
        // Crash here: the line is changed, its history row is missing. No process adds it: a line has no intent.
        let history = self.append_changes(&cart.owner, [cart.line_history(product_id)]).await;
        history.map_err(StoreError::after_first_effect)?;
        Ok(true)
    }

    /// `op_id` is there if a second request with the same key may run at the same time or later.
    async fn abandon_under(&self, op_id: Option<Uuid>, command: &Abandon) -> Result<Cart> {
        let Abandon { owner, expected_version, lifetime, now, .. } = command;
        let ttl = RowTtl::of_change(owner, lifetime, *now);
        let mut cas_loop = CasLoop::of(subject(owner));
        let _lock = self.locks.partition(&lock_key(owner)).await;
        loop {
            let partition = self.cart_partition(owner).await?;
            // An earlier request with the same key may have abandoned the cart and crashed before it stored the outcome.
            if let Some(op_id) = op_id
                && let Some(bytes) = self.read_marker(owner, op_id).await?
            {
                let outcome = Cart::from_outcome(decode_outcome(&bytes)?);
                return outcome.ok_or_else(|| wrong_marker(op_id));
            }
            let before = partition.active_at(*now);
            check_version(before, *expected_version)?;
            let before = before.ok_or(Refusal::CartEmpty)?;
            let mut cart = before.cart.clone();
            cart.abandon(*now, lifetime);
            // Crash here: at most the key is claimed; a repeated request runs again under the same op_id.
            self.index_day(Some(before), &cart, ttl).await?;
            // Crash here: an index row without the change; the report of idle carts skips it, its TTL removes it.
            let mut batch = CartBatch::new(&self.carts, &partition, None, ttl);
            batch.put_cart(Some(before), &cart, None);
            if let Some(op_id) = op_id {
                batch.put_marker(op_id, encode_outcome(&cart.to_outcome()));
            }
            if batch.apply(&self.cql, &mut cas_loop).await? {
                // Crash here: the cart is abandoned, the key has no outcome; a repeated request finds the marker and
                // stores it.
                return Ok(cart);
            }
        }
    }

    /// Writes the index row by which the report of idle carts finds a cart. It is written before the cart changes, so
    /// that no idle cart is missed; the report reads the carts themselves and skips those that do not match the row.
    async fn index_day(&self, before: Option<&StoredCart>, cart: &Cart, ttl: RowTtl) -> Result<()> {
        let day = cart.updated_at.date();
        let is_indexed = before
            .is_some_and(|before| before.cart.status == cart.status && before.cart.updated_at.date() == day);
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

    /// Appends to an owner's history. Writing a change again overwrites its row with the same values.
    async fn append_changes(
        &self,
        owner: &Owner,
        changes: impl IntoIterator<Item = CartChange>,
    ) -> Result<()> {
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
        self.cql.write_rows(&self.carts.insert_change, &rows).await
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

/// The shard of an owner (FNV-1a), the same in every process.
fn day_shard(owner: &Owner) -> i32 {
    let hash = owner.id().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i32::try_from((hash >> 32) % u64::from(DAY_SHARDS)).unwrap_or_default()
}
