//! How many shards the engine's calls ask under every shard key, as mongos counts them. The table is a part of
//! docs/mongodb.md; `MW_BLESS=1` writes it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mw_domain::{MergeMode, OrderId, OrderStatus, Period, Timestamp};
use mw_shop::{KeyedRequest, OrderDraft, Shop};
use mw_store::changes::Topics;
use mw_store::products::CategoryQuery;
use mw_store::{Carts as _, Freshness, PageRequest};
use mw_store_mongodb::MongoStore;
use mw_store_mongodb::connect::connect;
use mw_store_mongodb::shard_keys::{ShardKey, ShardKeys};
use mw_store_mongodb::shards::{Action, KeyValues};
use mw_testkit::FakeClock;
use mw_testkit::builders::{
    category, demand, guest, identity, product, product_id, session_id, shop, user, user_id, zone,
};
use mw_testkit::mongodb::{Cluster, Lease, start_sharded};

/// The table stands between these lines.
const BEGIN: &str = "<!-- targeting: measured -->";
const END: &str = "<!-- targeting: end -->";

const CALLS: [&str; 15] = [
    "order",
    "user_orders",
    "orders of a period",
    "sales",
    "place_order",
    "set_status",
    "product",
    "category",
    "categories",
    "product_stock",
    "adjust stock",
    "cart of a user",
    "cart of a guest",
    "set_line",
    "merge",
];

fn collection_of(call: &str) -> &'static str {
    match CALLS.iter().position(|it| *it == call).unwrap() {
        0..6 => "orders",
        6..11 => "products",
        _ => "carts",
    }
}

/// What mongos counted, by how many shards it asked: one, some or all.
async fn counted(client: &Client) -> [i64; 3] {
    let status = client.database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let statistics = status.get_document("shardingStatistics").unwrap();
    let targeted = statistics.get_document("numHostsTargeted").unwrap();
    let sum = |field: &str| -> i64 {
        ["find", "insert", "update", "delete", "aggregate"]
            .iter()
            .map(|operation| number(targeted.get_document(operation).unwrap(), field))
            .sum()
    };
    // findAndModify has counters of its own: with the whole shard key, or by a question to all shards before.
    let modified = status.get_document("metrics").unwrap().get_document("query").unwrap();
    [
        sum("oneShard") + number(modified, "findAndModifyTargetedShardedCount"),
        sum("manyShards"),
        sum("allShards") + number(modified, "findAndModifyNonTargetedShardedCount"),
    ]
}

fn number(counters: &Document, field: &str) -> i64 {
    let value = counters.get(field).unwrap();
    value.as_i64().or(value.as_i32().map(i64::from)).unwrap()
}

struct Buyer {
    shop: Shop,
    store: Arc<MongoStore>,
    order_id: OrderId,
    number: u32,
}

impl Buyer {
    fn request(&mut self) -> KeyedRequest {
        self.number += 1;
        let identity = identity(&format!("key-{}", self.number), "request", FakeClock::START);
        KeyedRequest { key: identity.key, fingerprint: identity.fingerprint }
    }

    async fn order(&mut self) -> OrderId {
        let draft = OrderDraft {
            user_id: user_id("anna"),
            geo_zone: zone("moscow"),
            expected_total: None,
            delivery_address: None,
            payment_method: None,
        };
        let request = self.request();
        self.shop.place_order(draft, vec![demand("p1", 1)], request).await.unwrap().value.order_id
    }

    async fn fill(store: Arc<MongoStore>) -> Self {
        let shop = shop(Arc::clone(&store) as _, &FakeClock::new());
        let mut buyer = Self { shop, store, order_id: mw_testkit::builders::order_id(1), number: 0 };
        for (id, name) in [("p1", "phones"), ("p2", "cables")] {
            let product = product(id).category(name).build();
            mw_store::Products::put_product(&*buyer.store, product).await.unwrap();
            buyer.shop.set_on_hand(product_id(id), zone("moscow"), 1_000, None).await.unwrap();
        }
        for owner in [user("anna"), guest("g1"), guest("g2")] {
            buyer.shop.set_line(owner, product_id("p1"), 1, None).await.unwrap();
        }
        buyer.order_id = buyer.order().await;
        buyer
    }

    async fn run(&mut self, call: &str) {
        let page = || PageRequest::first(10);
        let period = Period { from: Timestamp::from_millis(0), to: Timestamp::MAX };
        match call {
            "order" => drop(self.shop.order(self.order_id).await.unwrap().unwrap()),
            "user_orders" => drop(self.shop.user_orders(&user_id("anna"), period, page()).await.unwrap()),
            "orders of a period" => drop(self.shop.orders(None, period, page()).await.unwrap()),
            "sales" => drop(mw_store::Orders::sales(&*self.store, None, period).await.unwrap()),
            "place_order" => drop(self.order().await),
            "set_status" => {
                let paid = self.shop.set_order_status(self.order_id, OrderStatus::Paid, None, None, None);
                drop(paid.await.unwrap());
            }
            "product" => {
                drop(self.shop.product(&product_id("p1"), Freshness::Latest).await.unwrap().unwrap());
            }
            "category" => {
                let query = CategoryQuery {
                    category: category("phones"),
                    min_price: None,
                    max_price: None,
                    descending: false,
                    geo_zone: None,
                    in_stock: false,
                };
                let found = self.shop.category(&query, Freshness::Latest, page()).await.unwrap();
                assert_eq!(found.items.len(), 1);
            }
            "categories" => drop(self.shop.categories(page()).await.unwrap()),
            "product_stock" => drop(self.shop.product_stock(&product_id("p1")).await.unwrap().unwrap()),
            "adjust stock" => {
                let adjust =
                    self.shop.adjust_stock(product_id("p1"), zone("moscow"), 1, "count".to_owned(), None);
                drop(adjust.await.unwrap());
            }
            "cart of a user" => drop(self.active(&user("anna")).await),
            "cart of a guest" => drop(self.active(&guest("g1")).await),
            "set_line" => drop(self.shop.set_line(user("anna"), product_id("p2"), 2, None).await.unwrap()),
            "merge" => {
                let merging =
                    self.shop.merge_carts(user_id("anna"), session_id("g2"), MergeMode::Sum, None, None);
                drop(merging.await.unwrap());
            }
            other => panic!("no call {other}"),
        }
    }

    async fn active(&self, owner: &mw_domain::Owner) -> mw_domain::Cart {
        self.store.active_cart(owner, FakeClock::START).await.unwrap().unwrap()
    }
}

/// Both shards have a part of every collection, also of one with a range key.
async fn spread(client: &Client, lease: &Lease) {
    let keys = &lease.options().shard_keys;
    for (collection, key) in [("orders", &keys.orders), ("products", &keys.products)] {
        let at = match key.to_string().as_str() {
            "customer_id: 1" => "customer_id: m",
            "category: 1, _id: 1" => "category: m, _id: MinKey",
            _ => continue,
        };
        let at = KeyValues::parse(at).unwrap();
        let parts = mw_store_mongodb::shards::report(client, lease.options()).await.unwrap().collections;
        let parts = parts.into_iter().find(|it| it.name == collection).unwrap().parts;
        let empty = parts.iter().find(|part| part.ranges == 0).unwrap().shard.clone();
        let split = Action::Split { collection: collection.to_owned(), at: at.clone(), in_the_middle: false };
        let moving = Action::Move { collection: collection.to_owned(), min: at, max: None, to: empty };
        for action in [split, moving] {
            action.run(client, lease.options(), "tester").await.unwrap();
        }
    }
}

/// For every call of the collection, how many shards its statements asked: `1`, or `1, all`.
async fn measure(cluster: &Cluster, collection: &str, key: &ShardKey) -> Vec<(&'static str, String)> {
    let lease = Lease::on(&cluster.uri(), |options| {
        let keys: &mut ShardKeys = &mut options.shard_keys;
        let of = match collection {
            "orders" => &mut keys.orders,
            "products" => &mut keys.products,
            _ => &mut keys.carts,
        };
        *of = key.clone();
        // Its numbering asks all shards for pending changes, at any moment, and mongos counts that too.
        options.feed.topics = Topics::NONE;
    })
    .await;
    let client = connect(lease.options()).await.unwrap();
    spread(&client, &lease).await;
    let mut buyer = Buyer::fill(lease.open().await).await;
    let mut rows = Vec::new();
    for call in CALLS.into_iter().filter(|call| collection_of(call) == collection) {
        // The first call may learn what later ones know, such as where a product lies.
        let before = counted(&client).await;
        buyer.run(call).await;
        let after = counted(&client).await;
        let asked: BTreeSet<usize> = (0..3).filter(|at| after[*at] > before[*at]).collect();
        let names: Vec<&str> = asked.into_iter().map(|at| ["1", "some", "all"][at]).collect();
        assert!(!names.is_empty(), "mongos counted no statement of {call}");
        rows.push((call, names.join(", ")));
    }
    buyer.store.close().await;
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_asks_as_many_shards_as_the_documents_say() {
    let cluster = start_sharded("targeting").await;
    let mut table = String::from("| call | shard key | shards asked |\n|---|---|---|\n");
    for collection in ["orders", "products", "carts"] {
        let shape = mw_store_mongodb::Shape::Customer;
        for key in ShardKeys::accepted(collection, shape) {
            for (call, asked) in measure(&cluster, collection, &ShardKey::parse(key).unwrap()).await {
                table.extend(["| ", call, " | ", collection, " by `", key, "` | ", asked.as_str(), " |\n"]);
            }
        }
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/mongodb.md");
    let page = fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(BEGIN).unwrap();
    let (documented, tail) = rest.split_once(END).unwrap();
    if std::env::var_os("MW_BLESS").is_some() {
        fs::write(&path, format!("{head}{BEGIN}\n\n{table}\n{END}{tail}")).unwrap();
        return;
    }
    assert_eq!(documented.trim(), table.trim(), "MW_BLESS=1 writes the table");
}
