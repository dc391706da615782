//! Carts of a live migration. All changes of an owner in a batch are found from one read of the owner's header, which is written
//! once, after the rows of closed carts that it names.

use mw_codec::carts::encode as encode_cart;
use mw_codec::carts::header::{self as codec, CartHeader, ClosedBucket, OpenCart};
use mw_domain::{Cart, CartStatus, Owner};
use mw_store::Result;
use mw_store::migration::{CartKey, Change};
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use super::closed::{BUCKETS_MAX, bucket_of};
use super::owner_kind;
use super::rows::{CartPartition, HEADER_ROW, RowTtl};
use crate::CassandraStore;
use crate::driver::statements::{Access, Cql};
use crate::driver::time::to_cql;
use crate::migration::Stamp;
use crate::schema::tables::Table;

/// The revision of a migrated owner: the first decision of the service makes it the second one.
const REV: i64 = 1;
/// Above the write timestamp of every row that a migration writes, and below those of the service.
const CLOSED_STAMP: i64 = 1;

#[derive(Debug)]
pub(crate) struct Statements {
    put_header: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(cql: &Cql) -> Result<Self> {
        let put_header = format!(
            "UPDATE {{}} USING TIMESTAMP ? AND TTL ? SET rev = ?, state = ? \
             WHERE owner_kind = ? AND owner_id = ? AND {HEADER_ROW}"
        );
        Ok(Self { put_header: cql.prepare(Table::CartsByOwner, Access::Write, &put_header).await? })
    }
}

/// What becomes of an owner's header.
struct OwnerState {
    header: CartHeader,
    ttl_seconds: i32,
}

impl OwnerState {
    fn of(partition: &CartPartition) -> Self {
        Self { header: partition.view.header.clone(), ttl_seconds: partition.stored_ttl() }
    }

    fn is_open(&self, key: &CartKey) -> bool {
        self.header.open.as_ref().is_some_and(|open| CartKey::of(&open.cart) == *key)
    }

    fn put(&mut self, cart: &Cart, stamp: Stamp) {
        self.remove(&CartKey::of(cart));
        self.ttl_seconds = self.ttl_seconds.max(RowTtl::of_imported(cart).seconds);
        if cart.status == CartStatus::Active {
            self.header.open = Some(OpenCart { cart: cart.clone(), base: stamp.micros() });
            return;
        }
        let header = &mut self.header;
        header.last_version = header.last_version.max(cart.version);
        header.last_stamp = CLOSED_STAMP;
        let bucket = ClosedBucket { bucket: bucket_of(cart.created_at), until: cart.expires_at };
        match header.closed_buckets.iter_mut().find(|known| known.bucket == bucket.bucket) {
            Some(known) => known.until = known.until.max(bucket.until),
            None => header.closed_buckets.push(bucket),
        }
        header.closed_buckets.sort_unstable_by_key(|bucket| std::cmp::Reverse(bucket.bucket));
        header.closed_buckets.truncate(BUCKETS_MAX);
    }

    fn remove(&mut self, key: &CartKey) {
        if self.is_open(key) {
            self.header.open = None;
        }
    }
}

impl CassandraStore {
    /// Writes changes of one owner's carts in their order.
    pub(crate) async fn migrate_carts(&self, changes: Vec<(Stamp, Change)>) -> Result<()> {
        let (Some(owner), Some((last, _))) =
            (changes.first().and_then(|(_, it)| owner_of(it)), changes.last())
        else {
            return Ok(());
        };
        let last = *last;
        let mut state = OwnerState::of(&self.cart_partition(&owner).await?);
        for (stamp, change) in changes {
            match change {
                Change::Cart(cart) => {
                    // A crash after it leaves an index row without the cart, which the report skips.
                    self.index_day(None, &cart, RowTtl::of_imported(&cart)).await?;
                    state.put(&cart, stamp);
                    if cart.status == CartStatus::Active {
                        self.delete_closed_row(&CartKey::of(&cart), stamp).await?;
                    } else {
                        self.write_closed_row(&cart, stamp).await?;
                    }
                }
                Change::RemoveCart(key) => {
                    state.remove(&key);
                    self.delete_closed_row(&key, stamp).await?;
                }
                _ => {}
            }
        }
        let values = (
            last.get(),
            state.ttl_seconds,
            REV,
            codec::encode(&state.header),
            owner_kind(&owner),
            owner.id(),
        );
        self.cql.write(&self.migration().await?.carts.put_header, values).await
    }

    async fn write_closed_row(&self, cart: &Cart, stamp: Stamp) -> Result<()> {
        let ttl_seconds = RowTtl::of_imported(cart).seconds;
        let (created_at, merge_id) = (to_cql(cart.created_at), None::<Uuid>);
        let row = (
            owner_kind(&cart.owner),
            cart.owner.id(),
            bucket_of(cart.created_at),
            created_at,
            &cart.cart_id.as_bytes()[..],
            encode_cart(cart),
            merge_id,
            stamp.get(),
            ttl_seconds,
        );
        self.cql.write(&self.carts.insert_closed, row).await
    }

    async fn delete_closed_row(&self, key: &CartKey, stamp: Stamp) -> Result<()> {
        let CartKey { owner, created_at, cart_id } = key;
        let id = &cart_id.as_bytes()[..];
        let bucket = bucket_of(*created_at);
        let values = (stamp.get(), owner_kind(owner), owner.id(), bucket, to_cql(*created_at), id);
        self.cql.write(&self.carts.delete_closed, values).await
    }

    /// A cart as it is stored, whatever its status.
    pub(crate) async fn migrated_cart(&self, key: CartKey) -> Result<Option<Cart>> {
        let partition = self.cart_partition(&key.owner).await?;
        let own = (key.created_at, key.cart_id);
        if let Some(open) = partition.open_with_key(own) {
            return Ok(Some(open.clone()));
        }
        let is_listed = |bucket: &ClosedBucket| bucket.bucket == bucket_of(key.created_at);
        if !partition.view.header.closed_buckets.iter().any(is_listed) {
            return Ok(None);
        }
        Ok(self.closed_cart(&partition, own).await?.map(|closed| closed.cart))
    }
}

fn owner_of(change: &Change) -> Option<Owner> {
    match change {
        Change::Cart(cart) => Some(cart.owner.clone()),
        Change::RemoveCart(key) => Some(key.owner.clone()),
        _ => None,
    }
}
