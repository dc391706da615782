//! The bare driver's side: the statements that the Cassandra engine sends for the same requests, on the same rows of the
//! same cluster, at the same consistency; and nothing else.
//!
//! The statements are those of `crates/store-cassandra`, in `carts.rs` and `products.rs`. A change there has to be
//! made here too, or the comparison is void.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::{CqlTimestamp, CqlValue, MaybeUnset, Row};
use std::collections::BTreeMap;
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::clients::{self, Client};
use crate::rounds::{Baseline, Round, RoundOptions};
use crate::work::{Sizes, Work, scattered, wish};

const CART_COLUMNS: &str = "created_at, cart_id, product_id, active_created_at, active_cart_id, status, version, \
     expires_at, merged_into, merge_id, order_id, updated_at, quantity, TTL(quantity) AS line_ttl";
const PRODUCT_COLUMNS: &str = "product_id, name, category, price, band, description, attributes, created_at, updated_at, \
     deleted, rev, recent_op_tokens";
/// The maximum of rows of a cart, its header included.
const CART_ROWS_MAX: usize = 101;
/// The length of `recent_op_tokens`.
const RECENT_OP_TOKENS_MAX: usize = 8;
/// Twice the life of a user's cart, and the hour that rows are kept longer.
const CART_TTL_SECONDS: i32 = 2 * 30 * 86_400 + 3_600;
const CART_LIFE_MS: i64 = 30 * 86_400 * 1_000;
const HISTORY_TTL_SECONDS: i32 = 30 * 86_400 + 3_600;
/// CAS rounds of a change before it gives up.
const ROUNDS_MAX: usize = 16;
const KIND: &str = "user";
/// The product of the row that is the cart itself.
const HEADER: &str = "";

type CartRow = (
    Option<CqlTimestamp>,
    Option<Vec<u8>>,
    Option<String>,
    Option<CqlTimestamp>,
    Option<Uuid>,
    Option<String>,
    Option<i64>,
    Option<CqlTimestamp>,
    Option<Uuid>,
    Option<Uuid>,
    Option<Uuid>,
    Option<CqlTimestamp>,
    Option<i32>,
    Option<i32>,
);

/// What is read of a cart before it is changed: `rev, recent_op_tokens`, then the columns of [`CartRow`].
type GuardedRow = (
    Option<i64>,
    Option<Vec<Uuid>>,
    Option<CqlTimestamp>,
    Option<Vec<u8>>,
    Option<String>,
    Option<CqlTimestamp>,
    Option<Uuid>,
    Option<String>,
    Option<i64>,
    Option<CqlTimestamp>,
    Option<Uuid>,
    Option<Uuid>,
    Option<Uuid>,
    Option<CqlTimestamp>,
    Option<i32>,
    Option<i32>,
);

type ProductRow = (
    String,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<i32>,
    Option<String>,
    Option<BTreeMap<String, String>>,
    Option<CqlTimestamp>,
    Option<CqlTimestamp>,
    Option<bool>,
    Option<i64>,
    Option<Vec<Uuid>>,
);

pub(crate) struct BareDriver {
    runtime: Handle,
    clients: Vec<BareClient>,
    sequences: Arc<AtomicU64>,
}

struct BareClient {
    shared: Arc<Shared>,
}

struct Shared {
    session: Session,
    product: PreparedStatement,
    cart: PreparedStatement,
    guarded: PreparedStatement,
    /// The three statements of a change: guard, cart, line.
    change: Batch,
    history: PreparedStatement,
    prefix: String,
    sizes: Sizes,
}

impl BareDriver {
    /// `prefix` is the prefix of the ids that Mobile World's side created.
    pub(crate) fn connect(
        runtime: &Handle,
        nodes: &[String],
        keyspace: &str,
        prefix: &str,
        sizes: &Sizes,
        clients: usize,
    ) -> Result<Self> {
        let shared = runtime.block_on(Shared::connect(nodes, keyspace, prefix, sizes))?;
        let shared = Arc::new(shared);
        let clients = (0..clients).map(|_| BareClient { shared: Arc::clone(&shared) }).collect();
        Ok(Self { runtime: runtime.clone(), clients, sequences: Arc::default() })
    }
}

impl Baseline for BareDriver {
    fn name(&self) -> &'static str {
        "bare driver"
    }

    fn round(&mut self, work: Work, options: &RoundOptions) -> Result<Round> {
        self.runtime.block_on(clients::round(&mut self.clients, work, options, &self.sequences, u64::MAX))
    }
}

impl Client for BareClient {
    async fn work(&mut self, work: Work, sequence: u64) -> Result<()> {
        let shared = &self.shared;
        let buyer = sequence % shared.sizes.buyers;
        match work {
            Work::ProductRead => shared.read_product(scattered(sequence) % shared.sizes.products).await,
            Work::CartRead => shared.read_cart(&format!("{}-b{buyer}", shared.prefix)).await,
            Work::CartWrite => {
                let (user, _) = wish(sequence, &shared.sizes);
                shared.set_line(&format!("{}-u{user}", shared.prefix), sequence).await
            }
            Work::Checkout | Work::HotOrder => bail!("orders are compared with PostgreSQL and Redis only"),
        }
    }
}

impl Shared {
    async fn connect(nodes: &[String], keyspace: &str, prefix: &str, sizes: &Sizes) -> Result<Self> {
        let session =
            SessionBuilder::new().known_nodes(nodes).build().await.context("connect to Cassandra")?;
        let (carts, products) =
            (format!("{keyspace}_carts.carts_by_owner"), format!("{keyspace}.product_by_id"));
        let of_owner = "owner_kind = ? AND owner_id = ?";
        let prepare = async |text: String, consistency: Consistency| {
            let mut statement = session.prepare(text).await.context("prepare a statement")?;
            statement.set_consistency(consistency);
            anyhow::Ok(statement)
        };
        let quorum = Consistency::LocalQuorum;
        let guard = prepare(
            format!(
                "UPDATE {carts} USING TTL ? SET rev = ?, recent_op_tokens = ?, active_created_at = ?, active_cart_id = ? \
                 WHERE {of_owner} IF rev = ?"
            ),
            quorum,
        );
        let header = prepare(
            format!(
                "INSERT INTO {carts} (owner_kind, owner_id, created_at, cart_id, product_id, status, version, expires_at, \
                 merged_into, merge_id, order_id, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?"
            ),
            quorum,
        );
        let line = prepare(
            format!(
                "INSERT INTO {carts} (owner_kind, owner_id, created_at, cart_id, product_id, quantity, updated_at) \
                 VALUES (?, ?, ?, ?, ?, ?, ?) USING TTL ?"
            ),
            quorum,
        );
        let mut change = Batch::new(BatchType::Unlogged);
        for statement in [guard.await?, header.await?, line.await?] {
            change.append_statement(statement);
        }
        change.set_consistency(quorum);
        change.set_serial_consistency(Some(SerialConsistency::LocalSerial));
        let product = format!("SELECT {PRODUCT_COLUMNS} FROM {products} WHERE product_id = ?");
        let cart = format!("SELECT {CART_COLUMNS} FROM {carts} WHERE {of_owner} LIMIT {CART_ROWS_MAX}");
        let guarded = format!(
            "SELECT rev, recent_op_tokens, {CART_COLUMNS} FROM {carts} WHERE {of_owner} LIMIT {CART_ROWS_MAX}"
        );
        let history = format!(
            "INSERT INTO {keyspace}_carts.cart_changes \
             (owner_kind, owner_id, changed_at, version, product_id, cart_id, quantity) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TTL ?"
        );
        Ok(Self {
            product: prepare(product, Consistency::LocalOne).await?,
            cart: prepare(cart, quorum).await?,
            guarded: prepare(guarded, quorum).await?,
            history: prepare(history, quorum).await?,
            change,
            prefix: prefix.to_owned(),
            sizes: *sizes,
            session,
        })
    }

    async fn read_product(&self, product: u64) -> Result<()> {
        let product_id = format!("{}-p{product}", self.prefix);
        let result = self.session.execute_unpaged(&self.product, (product_id.as_str(),)).await?;
        let product = result.into_rows_result()?.maybe_first_row::<ProductRow>()?;
        ensure!(product.is_some(), "read product {product_id}: not found");
        Ok(())
    }

    async fn read_cart(&self, owner: &str) -> Result<()> {
        let result = self.session.execute_unpaged(&self.cart, (KIND, owner)).await?;
        let rows: Vec<CartRow> = result.into_rows_result()?.rows()?.collect::<Result<_, _>>()?;
        ensure!(rows.len() > 1, "read cart {owner}: not found");
        Ok(())
    }

    /// Sets one of the existing lines, so that the cart keeps its size.
    async fn set_line(&self, owner: &str, sequence: u64) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            let result = self.session.execute_unpaged(&self.guarded, (KIND, owner)).await?;
            let rows: Vec<GuardedRow> = result.into_rows_result()?.rows()?.collect::<Result<_, _>>()?;
            if self.change(owner, &rows, sequence).await? {
                return Ok(());
            }
        }
        bail!("gave up after {ROUNDS_MAX} lost CAS rounds on cart {owner} (contention)");
    }

    async fn change(&self, owner: &str, rows: &[GuardedRow], sequence: u64) -> Result<bool> {
        let gone = || format!("change cart {owner}: unexpected rows");
        let (header, lines) = rows.split_first().with_context(gone)?;
        let (rev, Some(created_at), Some(cart_id), Some(version)) = (header.0, header.2, &header.3, header.8)
        else {
            bail!(gone());
        };
        let at = usize::try_from(sequence)?.checked_rem(lines.len()).with_context(gone)?;
        let product_id = lines.get(at).and_then(|line| line.4.as_deref()).with_context(gone)?;
        let quantity = i32::try_from(1 + sequence % 3)?;
        let now = now()?;
        let expires_at = CqlTimestamp(now.0 + CART_LIFE_MS);
        let before = header.1.iter().flatten().copied();
        let recent_op_tokens: Vec<Uuid> =
            std::iter::once(Uuid::new_v4()).chain(before).take(RECENT_OP_TOKENS_MAX).collect();
        let unset = MaybeUnset::<Uuid>::Unset;
        let next = rev.unwrap_or(0) + 1;
        let guard = (CART_TTL_SECONDS, next, recent_op_tokens, header.5, header.6, KIND, owner, rev);
        let cart = (
            KIND,
            owner,
            created_at,
            cart_id,
            HEADER,
            "active",
            version + 1,
            expires_at,
            unset,
            unset,
            unset,
            now,
            CART_TTL_SECONDS,
        );
        let line = (KIND, owner, created_at, cart_id, product_id, quantity, now, CART_TTL_SECONDS);
        let result = match self.session.batch(&self.change, (guard, cart, line)).await {
            Err(error) if is_undecided(&error) => return Ok(false),
            other => other?,
        };
        let answer = result.into_rows_result()?.first_row::<Row>()?;
        if answer.columns.first() != Some(&Some(CqlValue::Boolean(true))) {
            return Ok(false);
        }
        let noted = (KIND, owner, now, version + 1, product_id, cart_id, quantity, HISTORY_TTL_SECONDS);
        self.session.execute_unpaged(&self.history, noted).await?;
        Ok(true)
    }
}

/// Whether a CAS timed out. The client repeats it, as the engine does: setting the same line to the same quantity again is
/// idempotent.
fn is_undecided(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(DbError::WriteTimeout { .. }, _))
    )
}

fn now() -> Result<CqlTimestamp> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?;
    Ok(CqlTimestamp(i64::try_from(since.as_millis())?))
}
