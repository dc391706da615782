//! Redis' side: a hash a cart, a script for every atomic change, a connection for each client.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Pipeline, Script, cmd};
use anyhow::{Context, Result, ensure};
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::clients::{self, Client};
use crate::rounds::{Baseline, Round, RoundOptions};
use crate::work::{Sizes, Work, basket, wish, zone};

const SET_LINE: &str = include_str!("redis/set_line.lua");
const PLACE_ORDER: &str = include_str!("redis/place_order.lua");
/// Commands of one pipeline during setup.
const FILLED_AT_ONCE: u64 = 2_000;
/// The length of a request fingerprint in Mobile World.
const FINGERPRINT: [u8; 32] = [7; 32];
/// The payment deadline of an order.
const PAYMENT_WINDOW_MS: u64 = 30 * 60 * 1_000;

pub(crate) struct Redis {
    name: &'static str,
    runtime: Handle,
    /// For the setup alone.
    filler: MultiplexedConnection,
    clients: Vec<RedisClient>,
    sizes: Sizes,
    sequences: Arc<AtomicU64>,
}

struct RedisClient {
    connection: MultiplexedConnection,
    set_line: Script,
    place_order: Script,
    sizes: Sizes,
}

impl Redis {
    /// Creates the same data as Mobile World's side.
    pub(crate) fn fill(
        runtime: &Handle,
        name: &'static str,
        url: &str,
        sizes: &Sizes,
        clients: usize,
    ) -> Result<Self> {
        eprintln!("{name}: creating the data");
        runtime.block_on(async {
            let mut filler = connect(url).await?;
            create_products(&mut filler, sizes).await.context("create products")?;
            create_carts(&mut filler, sizes).await.context("create carts")?;
            create_baskets(&mut filler, sizes).await.context("create baskets")?;
            let (set_line, place_order) = (Script::new(SET_LINE), Script::new(PLACE_ORDER));
            set_line.load_async(&mut filler).await.context("load a script")?;
            place_order.load_async(&mut filler).await.context("load a script")?;
            let mut all = Vec::with_capacity(clients);
            for _ in 0..clients {
                all.push(RedisClient {
                    connection: connect(url).await?,
                    set_line: set_line.clone(),
                    place_order: place_order.clone(),
                    sizes: *sizes,
                });
            }
            let sequences = Arc::default();
            Ok(Self { name, runtime: runtime.clone(), filler, clients: all, sizes: *sizes, sequences })
        })
    }
}

impl Baseline for Redis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn round(&mut self, work: Work, options: &RoundOptions) -> Result<Round> {
        self.runtime.block_on(async {
            let (sequences, limit) = if work == Work::Checkout {
                create_baskets(&mut self.filler, &self.sizes).await.context("fill the carts again")?;
                (&Arc::default(), self.sizes.buyers)
            } else {
                (&self.sequences, u64::MAX)
            };
            let round = clients::round(&mut self.clients, work, options, sequences, limit).await?;
            Ok(Round { cpu_us: None, ..round })
        })
    }
}

async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let client = ::redis::Client::open(url).context("connect to Redis")?;
    // A slow disk is part of the measurement, not an error.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.context("connect to Redis")
}

impl Client for RedisClient {
    async fn work(&mut self, work: Work, sequence: u64) -> Result<()> {
        let buyer = sequence % self.sizes.buyers;
        match work {
            Work::CartRead => {
                let cart: Vec<(String, String)> =
                    cmd("HGETALL").arg(format!("cart:b{buyer}")).query_async(&mut self.connection).await?;
                ensure!(!cart.is_empty(), "read cart b{buyer}: not found");
            }
            Work::CartWrite => {
                let (user, product) = wish(sequence, &self.sizes);
                let version: u64 = self
                    .set_line
                    .key(format!("cart:u{user}"))
                    .key(format!("changes:u{user}"))
                    .arg(format!("p{product}"))
                    .arg(1 + sequence % 3)
                    .arg(now_ms())
                    .invoke_async(&mut self.connection)
                    .await?;
                ensure!(version > 0, "read cart u{user}: no version");
            }
            Work::Checkout => {
                let zone = zone(sequence, self.sizes.zones);
                self.order(buyer, zone, &format!("cart:b{buyer}"), None).await?;
            }
            Work::HotOrder => self.order(buyer, 0, "", Some("p0")).await?,
            Work::ProductRead => anyhow::bail!("product reads are compared on Cassandra only"),
        }
        Ok(())
    }
}

impl RedisClient {
    async fn order(&mut self, buyer: u64, zone: u64, cart: &str, product: Option<&str>) -> Result<()> {
        let (order, now) = (Uuid::now_v7().to_string(), now_ms());
        let mut call = self.place_order.prepare_invoke();
        call.key(format!("key:{order}"))
            .key(cart)
            .arg(&FINGERPRINT[..])
            .arg(&order)
            .arg(format!("b{buyer}"))
            .arg(format!("z{zone}"))
            .arg(now)
            .arg(now + PAYMENT_WINDOW_MS);
        if let Some(product) = product {
            call.arg(product).arg(1);
        }
        let placed: String = call.invoke_async(&mut self.connection).await?;
        ensure!(placed == order, "place order {order}: the script returned {placed}");
        Ok(())
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Sends the commands of all items in pipelines.
async fn create(
    filler: &mut MultiplexedConnection,
    items: u64,
    commands: impl Fn(&mut Pipeline, u64),
) -> Result<()> {
    let mut from = 0;
    while from < items {
        let to = (from + FILLED_AT_ONCE).min(items);
        let mut pipeline = Pipeline::new();
        for item in from..to {
            commands(&mut pipeline, item);
        }
        pipeline.exec_async(filler).await?;
        from = to;
    }
    Ok(())
}

async fn create_products(filler: &mut MultiplexedConnection, sizes: &Sizes) -> Result<()> {
    create(filler, sizes.products, |pipeline, product| {
        let price = 10_000 + product * 7_919 % 900_000;
        pipeline.cmd("HSET").arg(format!("product:p{product}")).arg(&[
            "name",
            &format!("Product {product}"),
            "price",
            &price.to_string(),
        ]);
        for zone in 0..sizes.zones {
            pipeline.cmd("HSET").arg(format!("stock:p{product}:z{zone}")).arg(&[
                "on_hand",
                &sizes.units.to_string(),
                "reserved",
                "0",
            ]);
        }
    })
    .await
}

async fn create_carts(filler: &mut MultiplexedConnection, sizes: &Sizes) -> Result<()> {
    create(filler, sizes.users, |pipeline, user| {
        let product = format!("p{}", user % sizes.products);
        pipeline.cmd("HSET").arg(format!("cart:u{user}")).arg(&[&product, "1", "_version", "1"]);
    })
    .await
}

/// Two lines in the cart of every buyer.
async fn create_baskets(filler: &mut MultiplexedConnection, sizes: &Sizes) -> Result<()> {
    create(filler, sizes.buyers, |pipeline, buyer| {
        let [first, second] = basket(buyer, sizes.products).map(|product| format!("p{product}"));
        pipeline.cmd("HSET").arg(format!("cart:b{buyer}")).arg(&[&first, "1", &second, "1", "_version", "2"]);
    })
    .await
}
