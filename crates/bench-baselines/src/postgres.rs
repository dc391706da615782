//! PostgreSQL's side: SQL over its own protocol, prepared statements, a connection for each client.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, ensure};
use tokio::runtime::Handle;
use tokio_postgres::{Client as Connection, NoTls, Statement};
use uuid::Uuid;

use crate::clients::{self, Client};
use crate::rounds::{Baseline, Round, RoundOptions};
use crate::work::{Sizes, Work, basket, wish, zone};

const SCHEMA: &str = include_str!("postgres.sql");
/// Rows of one insert during setup.
const FILLED_AT_ONCE: usize = 5_000;
/// The length of a request fingerprint in Mobile World.
const FINGERPRINT: [u8; 32] = [7; 32];

pub(crate) struct Postgres {
    runtime: Handle,
    /// For the setup alone.
    filler: Connection,
    clients: Vec<PostgresClient>,
    sizes: Sizes,
    sequences: Arc<AtomicU64>,
}

struct PostgresClient {
    connection: Connection,
    cart: Statement,
    set_line: Statement,
    checkout: Statement,
    place_order: Statement,
    sizes: Sizes,
}

impl Postgres {
    /// Creates the tables and the same data as Mobile World's side.
    pub(crate) fn fill(runtime: &Handle, connection: &str, sizes: &Sizes, clients: usize) -> Result<Self> {
        eprintln!("postgres: creating the data");
        runtime.block_on(async {
            let filler = connect(connection).await?;
            filler.batch_execute(SCHEMA).await.context("create the tables")?;
            create_products(&filler, sizes).await.context("create products")?;
            create_carts(&filler, sizes).await.context("create carts")?;
            create_baskets(&filler, sizes).await.context("create baskets")?;
            filler.batch_execute("VACUUM ANALYZE").await.context("analyse the tables")?;
            let mut all = Vec::with_capacity(clients);
            for _ in 0..clients {
                all.push(PostgresClient::connect(connection, sizes).await?);
            }
            let sequences = Arc::default();
            Ok(Self { runtime: runtime.clone(), filler, clients: all, sizes: *sizes, sequences })
        })
    }
}

impl Baseline for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn round(&mut self, work: Work, options: &RoundOptions) -> Result<Round> {
        self.runtime.block_on(async {
            let (sequences, limit) = if work == Work::Checkout {
                create_baskets(&self.filler, &self.sizes).await.context("fill the carts again")?;
                (&Arc::default(), self.sizes.buyers)
            } else {
                (&self.sequences, u64::MAX)
            };
            let round = clients::round(&mut self.clients, work, options, sequences, limit).await?;
            // The same consistency check as on Mobile World's side.
            if matches!(work, Work::Checkout | Work::HotOrder) {
                check(&self.filler).await?;
            }
            Ok(Round { cpu_us: None, ..round })
        })
    }
}

async fn connect(connection: &str) -> Result<Connection> {
    let (client, driver) =
        tokio_postgres::connect(connection, NoTls).await.context("connect to PostgreSQL")?;
    // A broken connection is reported by the request in flight.
    tokio::spawn(driver);
    Ok(client)
}

impl PostgresClient {
    async fn connect(connection: &str, sizes: &Sizes) -> Result<Self> {
        let connection = connect(connection).await?;
        let cart = "SELECT cart_id, version, created_at, carts.updated_at, expires_at, product_id, quantity, \
             cart_lines.updated_at FROM carts LEFT JOIN cart_lines USING (cart_id) \
             WHERE owner_id = $1 AND status = 'active' ORDER BY product_id";
        Ok(Self {
            cart: connection.prepare(cart).await?,
            set_line: connection.prepare("SELECT set_line($1, $2, $3, $4)").await?,
            checkout: connection.prepare("SELECT checkout($1, $2, $3, $4, $5)").await?,
            place_order: connection.prepare("SELECT place_order($1, $2, $3, $4, $5, $6, $7)").await?,
            connection,
            sizes: *sizes,
        })
    }
}

impl Client for PostgresClient {
    async fn work(&mut self, work: Work, sequence: u64) -> Result<()> {
        let buyer = format!("b{}", sequence % self.sizes.buyers);
        let fingerprint = &FINGERPRINT[..];
        match work {
            Work::CartRead => {
                let lines = self.connection.query(&self.cart, &[&buyer]).await?;
                let quantities = lines.iter().map(|line| line.try_get::<_, i32>(6));
                let quantities: Vec<i32> = quantities.collect::<Result<_, _>>()?;
                ensure!(!quantities.is_empty(), "read cart {buyer}: not found");
            }
            Work::CartWrite => {
                let (user, product) = wish(sequence, &self.sizes);
                let (owner, product) = (format!("u{user}"), format!("p{product}"));
                let quantity = quantity(sequence);
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
                    [&owner, &product, &quantity, &Uuid::now_v7()];
                self.connection.query_one(&self.set_line, &values).await?;
            }
            Work::Checkout => {
                let (order, zone) = (Uuid::now_v7(), format!("z{}", zone(sequence, self.sizes.zones)));
                let key = format!("checkout-{order}");
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                    [&key, &fingerprint, &order, &buyer, &zone];
                self.connection.query_one(&self.checkout, &values).await?;
            }
            Work::HotOrder => {
                let order = Uuid::now_v7();
                let key = format!("order-{order}");
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
                    [&key, &fingerprint, &order, &buyer, &"z0", &&["p0"][..], &&[1_i32][..]];
                self.connection.query_one(&self.place_order, &values).await?;
            }
            Work::ProductRead => anyhow::bail!("product reads are compared on Cassandra only"),
        }
        Ok(())
    }
}

fn quantity(sequence: u64) -> i32 {
    if sequence.is_multiple_of(3) { 1 } else { 2 }
}

async fn create_products(filler: &Connection, sizes: &Sizes) -> Result<()> {
    let (products, zones, units) = (sizes.products, sizes.zones, sizes.units);
    let fill = format!(
        "INSERT INTO products SELECT 'p' || n, 'Product ' || n, 'c' || n % 50, 10000 + n * 7919 % 900000, \
             repeat('A thing to measure with. ', 5) FROM generate_series(0, {products} - 1) AS n; \
         INSERT INTO stock SELECT 'p' || n, 'z' || z, {units}, 0 \
             FROM generate_series(0, {products} - 1) AS n, generate_series(0, {zones} - 1) AS z;"
    );
    Ok(filler.batch_execute(&fill).await?)
}

/// A line in the cart of every user.
async fn create_carts(filler: &Connection, sizes: &Sizes) -> Result<()> {
    let line = |user: u64| (format!("u{user}"), vec![user % sizes.products]);
    create(filler, (0..sizes.users).map(line).collect()).await
}

/// Two lines in the cart of every buyer who has none.
async fn create_baskets(filler: &Connection, sizes: &Sizes) -> Result<()> {
    let lines = |buyer: u64| (format!("b{buyer}"), basket(buyer, sizes.products).to_vec());
    create(filler, (0..sizes.buyers).map(lines).collect()).await
}

async fn create(filler: &Connection, carts: Vec<(String, Vec<u64>)>) -> Result<()> {
    let insert = "WITH wanted AS (SELECT * FROM unnest($1::text[], $2::uuid[], $3::text[]) AS w (owner_id, cart_id, product_id)), \
         opened AS (INSERT INTO carts \
             SELECT DISTINCT cart_id, owner_id, 'active', 1, now(), now(), now() + interval '30 days', NULL::uuid FROM wanted \
             ON CONFLICT DO NOTHING RETURNING cart_id) \
         INSERT INTO cart_lines SELECT cart_id, product_id, 1, now() FROM wanted JOIN opened USING (cart_id)";
    let insert = filler.prepare(insert).await?;
    for part in carts.chunks(FILLED_AT_ONCE) {
        let (mut owners, mut ids, mut products) = (Vec::new(), Vec::new(), Vec::new());
        for (owner, lines) in part {
            let id = Uuid::now_v7();
            for product in lines {
                owners.push(owner.as_str());
                ids.push(id);
                products.push(format!("p{product}"));
            }
        }
        filler.execute(&insert, &[&owners, &ids, &products]).await?;
    }
    Ok(())
}

/// Every reserved unit belongs to an order, and every order reserves its units.
async fn check(filler: &Connection) -> Result<()> {
    let sums = "SELECT (SELECT sum(reserved) FROM stock)::bigint, (SELECT sum(quantity) FROM stock_ledger)::bigint, \
         (SELECT sum(quantity) FROM order_lines JOIN orders USING (order_id))::bigint";
    let row = filler.query_one(sums, &[]).await.context("add up the stock")?;
    let (reserved, noted, ordered): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    ensure!(
        reserved == noted && noted == ordered,
        "{reserved} units are reserved, {noted} in the ledger, {ordered} in orders"
    );
    Ok(())
}
