//! Redis' side: a hash a cart, what must happen together in a script, a connection for each client.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Pipeline, Script, cmd};
use anyhow::{Context, Result, ensure};
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::clients::{self, Client};
use crate::contest::{Contender, Pace, Round};
use crate::work::{Sizes, Work, basket, wish, zone};

const SET_LINE: &str = include_str!("redis/set_line.lua");
const PLACE_ORDER: &str = include_str!("redis/place_order.lua");
/// Commands of a pipeline that fills.
const FILLED_AT_ONCE: u64 = 2_000;
/// As long as the fingerprint of a request is in Mobile World.
const FINGERPRINT: [u8; 32] = [7; 32];
/// For an order to be paid.
const PAYMENT_WINDOW_MS: u64 = 30 * 60 * 1_000;

pub(crate) struct Redis {
    name: &'static str,
    runtime: Handle,
    /// Fills, and does no work.
    filler: MultiplexedConnection,
    clients: Vec<RedisClient>,
    sizes: Sizes,
    turns: Arc<AtomicU64>,
}

struct RedisClient {
    connection: MultiplexedConnection,
    set_line: Script,
    place_order: Script,
    sizes: Sizes,
}

impl Redis {
    /// Puts in what Mobile World has too.
    pub(crate) fn fill(
        runtime: &Handle,
        name: &'static str,
        url: &str,
        sizes: &Sizes,
        clients: usize,
    ) -> Result<Self> {
        eprintln!("{name}: filling the shop");
        runtime.block_on(async {
            let mut filler = connect(url).await?;
            put_products(&mut filler, sizes).await.context("put in products")?;
            put_carts(&mut filler, sizes).await.context("put in carts")?;
            put_baskets(&mut filler, sizes).await.context("put in baskets")?;
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
            let turns = Arc::default();
            Ok(Self { name, runtime: runtime.clone(), filler, clients: all, sizes: *sizes, turns })
        })
    }
}

impl Contender for Redis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn round(&mut self, work: Work, pace: &Pace) -> Result<Round> {
        self.runtime.block_on(async {
            let (turns, limit) = if work == Work::Checkout {
                put_baskets(&mut self.filler, &self.sizes).await.context("fill the carts again")?;
                (&Arc::default(), self.sizes.buyers)
            } else {
                (&self.turns, u64::MAX)
            };
            let round = clients::round(&mut self.clients, work, pace, turns, limit).await?;
            Ok(Round { cpu_us: None, ..round })
        })
    }
}

async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let client = ::redis::Client::open(url).context("connect to Redis")?;
    // A slow disk is what is measured, and no error.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.context("connect to Redis")
}

impl Client for RedisClient {
    async fn work(&mut self, work: Work, turn: u64) -> Result<()> {
        let buyer = turn % self.sizes.buyers;
        match work {
            Work::CartRead => {
                let cart: Vec<(String, String)> =
                    cmd("HGETALL").arg(format!("cart:b{buyer}")).query_async(&mut self.connection).await?;
                ensure!(!cart.is_empty(), "the cart of b{buyer} is gone");
            }
            Work::CartWrite => {
                let (user, product) = wish(turn, &self.sizes);
                let version: u64 = self
                    .set_line
                    .key(format!("cart:u{user}"))
                    .key(format!("changes:u{user}"))
                    .arg(format!("p{product}"))
                    .arg(1 + turn % 3)
                    .arg(now_ms())
                    .invoke_async(&mut self.connection)
                    .await?;
                ensure!(version > 0, "the cart of u{user} has no version");
            }
            Work::Checkout => {
                let zone = zone(turn, self.sizes.zones);
                self.order(buyer, zone, &format!("cart:b{buyer}"), None).await?;
            }
            Work::HotOrder => self.order(buyer, 0, "", Some("p0")).await?,
            Work::Card => anyhow::bail!("product cards are compared on Cassandra only"),
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
        ensure!(placed == order, "order {order} was answered with {placed}");
        Ok(())
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Sends the commands of so many items, a few at a time.
async fn put(
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

async fn put_products(filler: &mut MultiplexedConnection, sizes: &Sizes) -> Result<()> {
    put(filler, sizes.products, |pipeline, product| {
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

async fn put_carts(filler: &mut MultiplexedConnection, sizes: &Sizes) -> Result<()> {
    put(filler, sizes.users, |pipeline, user| {
        let product = format!("p{}", user % sizes.products);
        pipeline.cmd("HSET").arg(format!("cart:u{user}")).arg(&[&product, "1", "_version", "1"]);
    })
    .await
}

/// Two lines in the cart of every buyer.
async fn put_baskets(filler: &mut MultiplexedConnection, sizes: &Sizes) -> Result<()> {
    put(filler, sizes.buyers, |pipeline, buyer| {
        let [first, second] = basket(buyer, sizes.products).map(|product| format!("p{product}"));
        pipeline.cmd("HSET").arg(format!("cart:b{buyer}")).arg(&[&first, "1", &second, "1", "_version", "2"]);
    })
    .await
}
