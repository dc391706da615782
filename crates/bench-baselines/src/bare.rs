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
use scylla::statement::Consistency;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use std::collections::BTreeMap;
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::clients::{self, Client};
use crate::rounds::{Baseline, Round, RoundOptions};
use crate::work::{Sizes, Work, scattered, wish};

const CART_COLUMNS: &str = "created_at, cart_id, product_id, rev, recent_op_tokens, state, TTL(rev) AS header_ttl, line, \
     WRITETIME(line) AS line_stamp, TTL(line) AS line_ttl";
const PRODUCT_COLUMNS: &str = "product_id, name, category, price, band, description, attributes, created_at, updated_at, \
     deleted, rev, recent_op_tokens";
/// The maximum of rows that a request reads.
const CART_ROWS_MAX: usize = 1_000;
/// Twice the life of a user's cart, and the hour that rows are kept longer.
const CART_TTL_SECONDS: i32 = 2 * 30 * 86_400 + 3_600;
const CART_LIFE_MS: i64 = 30 * 86_400 * 1_000;
const HISTORY_TTL_SECONDS: i32 = 30 * 86_400 + 3_600;
const KIND: &str = "user";
type CartRow = (
    CqlTimestamp,
    Vec<u8>,
    String,
    Option<i64>,
    Option<Vec<Uuid>>,
    Option<Vec<u8>>,
    Option<i32>,
    Option<(i32, CqlTimestamp, CqlTimestamp)>,
    Option<i64>,
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
    /// The two statements of a change: the line and its history.
    change: Batch,
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
            Work::CartRead => shared.read_cart(&format!("{}-b{buyer}", shared.prefix)).await.map(drop),
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
        let line = format!(
            "UPDATE {carts} USING TIMESTAMP ? AND TTL ? SET line = ? \
             WHERE {of_owner} AND part = 0 AND created_at = ? AND cart_id = ? AND product_id = ?"
        );
        let history = format!(
            "INSERT INTO {keyspace}_carts.cart_changes \
             (owner_kind, owner_id, changed_at, version, product_id, cart_id, quantity) \
             VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
        );
        let mut change = Batch::new(BatchType::Unlogged);
        for statement in [line, history] {
            change.append_statement(prepare(statement, quorum).await?);
        }
        change.set_consistency(quorum);
        let product = format!("SELECT {PRODUCT_COLUMNS} FROM {products} WHERE product_id = ?");
        let cart =
            format!("SELECT {CART_COLUMNS} FROM {carts} WHERE {of_owner} AND part = 0 LIMIT {CART_ROWS_MAX}");
        Ok(Self {
            product: prepare(product, Consistency::LocalOne).await?,
            cart: prepare(cart, quorum).await?,
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

    async fn read_cart(&self, owner: &str) -> Result<Vec<CartRow>> {
        let result = self.session.execute_unpaged(&self.cart, (KIND, owner)).await?;
        let rows: Vec<CartRow> = result.into_rows_result()?.rows()?.collect::<Result<_, _>>()?;
        ensure!(rows.len() > 1, "read cart {owner}: not found");
        Ok(rows)
    }

    /// Sets one of the existing lines, so that the cart keeps its size.
    async fn set_line(&self, owner: &str, sequence: u64) -> Result<()> {
        let rows = self.read_cart(owner).await?;
        let gone = || format!("change cart {owner}: unexpected rows");
        let lines = rows.get(1..).with_context(gone)?;
        let at = usize::try_from(sequence)?.checked_rem(lines.len()).with_context(gone)?;
        let (created_at, cart_id, product_id, .., stamp, _) = lines.get(at).with_context(gone)?;
        let quantity = i32::try_from(1 + sequence % 3)?;
        let now = now()?;
        let stamp = stamp.unwrap_or(0).max(now.0 * 1_000) + 64;
        let value = (quantity, now, CqlTimestamp(now.0 + CART_LIFE_MS));
        let line = (stamp, CART_TTL_SECONDS, value, KIND, owner, created_at, cart_id, product_id);
        let noted = (KIND, owner, now, stamp, product_id, cart_id, quantity, stamp, HISTORY_TTL_SECONDS);
        self.session.batch(&self.change, (line, noted)).await?;
        self.read_cart(owner).await.map(drop)
    }
}

fn now() -> Result<CqlTimestamp> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?;
    Ok(CqlTimestamp(i64::try_from(since.as_millis())?))
}
