//! A shop whose programs write to MongoDB, in either shape.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::{Client, Database};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(crate) const ZONES: [&str; 3] = ["moscow", "spb", "kazan"];
pub(crate) const PRODUCTS: u32 = 60;

/// The shape of the documents that the shop's programs write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Customer,
    User,
}

/// A shop at the source.
pub(crate) struct Shop {
    pub(crate) database: Database,
    pub(crate) shape: Shape,
}

impl Shop {
    pub(crate) async fn new(uri: &str, name: &str, shape: Shape) -> Self {
        let client = Client::with_uri_str(uri).await.unwrap();
        Self { database: client.database(name), shape }
    }

    pub(crate) fn collection(&self, name: &str) -> mongodb::Collection<Document> {
        self.database.collection(name)
    }

    pub(crate) fn product(&self, number: u32, quantity: i32) -> Document {
        let id = format!("p-{number}");
        let entry = |zone: &str| match self.shape {
            Shape::Customer => doc! { "geozone": zone, "quantity": quantity },
            Shape::User => doc! { "zone": zone, "quantity": quantity },
        };
        let stock: Vec<Document> = ZONES.iter().map(|zone| entry(zone)).collect();
        let mut product =
            doc! { "_id": id, "name": format!("Product {number}"), "category": "c", "price": 19.99 };
        match self.shape {
            Shape::Customer => product.extend(doc! { "stocks": stock, "attributes": { "colour": "black" } }),
            Shape::User => {
                product
                    .extend(doc! { "stock": stock, "attributes": [{ "key": "colour", "value": "black" }] });
            }
        }
        product
    }

    pub(crate) fn order(&self, random: &mut StdRng, status: &str) -> Document {
        let product = format!("p-{}", random.random_range(0..PRODUCTS));
        let user = format!("user-{}", random.random_range(0..40));
        let zone = ZONES[random.random_range(0..ZONES.len())];
        let at = DateTime::from_millis(1_790_000_000_000 + random.random_range(0..1_000_000_000_i64));
        let units = random.random_range(1..4);
        match self.shape {
            Shape::Customer => {
                doc! { "_id": ObjectId::new(), "customer_id": user, "created_at": at, "status": status,
                "items": [{ "product_id": product, "price": 19.99, "quantity": units }], "total": 19.99 * f64::from(units),
                "geozone": zone }
            }
            Shape::User => {
                let item = doc! { "product_id": product, "category": "c", "price": 19.99 };
                let items: Vec<Document> = (0..units).map(|_| item.clone()).collect();
                doc! { "_id": ObjectId::new(), "user_id": user, "order_date": at, "status": status, "items": items,
                "total_price": 19.99 * f64::from(units), "geo_zone": zone }
            }
        }
    }

    pub(crate) fn cart(random: &mut StdRng) -> Document {
        let now = DateTime::now();
        let user = format!("user-{}", random.random_range(0..200));
        let product = format!("p-{}", random.random_range(0..PRODUCTS));
        doc! { "_id": ObjectId::new(), "user_id": user, "status": "active", "created_at": now, "updated_at": now,
        "items": [{ "product_id": product, "quantity": random.random_range(1..5) }] }
    }

    /// A shop with data of some age.
    pub(crate) async fn fill(&self, random: &mut StdRng, orders: usize, carts: usize) {
        let products: Vec<Document> = (0..PRODUCTS).map(|number| self.product(number, 1_000)).collect();
        self.collection("products").insert_many(products).await.unwrap();
        let statuses = ["new", "paid", "sent", "done", "canceled"];
        let orders: Vec<Document> =
            (0..orders).map(|at| self.order(random, statuses[at % statuses.len()])).collect();
        self.collection("orders").insert_many(orders).await.unwrap();
        let carts: Vec<Document> = (0..carts).map(|_| Self::cart(random)).collect();
        self.collection("carts").insert_many(carts).await.unwrap();
    }
}

/// Programs that write until they are told to stop, or refused.
pub(crate) struct Writers {
    is_over: Arc<AtomicBool>,
    pub(crate) writes: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Writers {
    pub(crate) fn start(shop: &Arc<Shop>, seed: u64, count: u64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let writes = Arc::new(AtomicU64::new(0));
        let tasks = (0..count)
            .map(|number| {
                let (shop, is_over, writes) = (Arc::clone(shop), Arc::clone(&is_over), Arc::clone(&writes));
                tokio::spawn(async move {
                    let mut random = StdRng::seed_from_u64(seed ^ (number + 1));
                    while !is_over.load(Ordering::Relaxed) {
                        match write(&shop, &mut random).await {
                            Ok(()) => writes.fetch_add(1, Ordering::Relaxed),
                            Err(error) if is_blocked(&error) => return,
                            Err(error) => panic!("{error}"),
                        };
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                })
            })
            .collect();
        Self { is_over, writes, tasks }
    }

    pub(crate) async fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

fn is_blocked(error: &mongodb::error::Error) -> bool {
    error.to_string().contains("User writes blocked")
}

/// One change of a program; documents with `keep` are left alone.
async fn write(shop: &Shop, random: &mut StdRng) -> mongodb::error::Result<()> {
    let orders = shop.collection("orders");
    let any = [
        doc! { "$match": { "keep": { "$ne": true } } },
        doc! { "$sample": { "size": 1 } },
        doc! { "$project": { "_id": 1 } },
    ];
    let pick = async |name: &str| -> mongodb::error::Result<Option<Bson>> {
        let mut found = shop.collection(name).aggregate(any.clone()).await?;
        Ok(if found.advance().await? { found.deserialize_current()?.get("_id").cloned() } else { None })
    };
    match random.random_range(0..10) {
        0..3 => drop(orders.insert_one(shop.order(random, "new")).await?),
        3..5 => {
            let status = ["paid", "sent", "canceled", "pending"][random.random_range(0..4)];
            if let Some(id) = pick("orders").await? {
                orders.update_one(doc! { "_id": id }, doc! { "$set": { "status": status } }).await?;
            }
        }
        5 => {
            if let Some(id) = pick("orders").await? {
                orders.delete_one(doc! { "_id": id }).await?;
            }
        }
        6..8 => {
            let number = random.random_range(0..PRODUCTS);
            let product = shop.product(number, random.random_range(0..2_000));
            shop.collection("products")
                .replace_one(doc! { "_id": format!("p-{number}") }, product)
                .upsert(true)
                .await?;
        }
        8 => drop(shop.collection("carts").insert_one(Shop::cart(random)).await?),
        _ => {
            if let Some(id) = pick("carts").await? {
                let status = ["ordered", "abandoned", "active"][random.random_range(0..3)];
                let set = doc! { "status": status, "updated_at": DateTime::now() };
                shop.collection("carts").update_one(doc! { "_id": id }, doc! { "$set": set }).await?;
            }
        }
    }
    Ok(())
}

/// Documents that no migration can take: collection and id.
pub(crate) async fn add_unacceptable(shop: &Shop, random: &mut StdRng) -> BTreeSet<(String, String)> {
    let mut added = BTreeSet::new();
    let mut lost = shop.order(random, "lost in the post");
    let mut precise = shop.order(random, "new");
    precise.insert(if shop.shape == Shape::Customer { "total" } else { "total_price" }, 19.995);
    let mut far = shop.order(random, "new");
    far.insert(if shop.shape == Shape::Customer { "geozone" } else { "geo_zone" }, "Нижний Новгород");
    for order in [&mut lost, &mut precise, &mut far] {
        order.insert("keep", true);
        added.insert(("orders".to_owned(), order.get_object_id("_id").unwrap().to_hex()));
        shop.collection("orders").insert_one(order.clone()).await.unwrap();
    }
    let mut spaced = shop.product(1, 5);
    spaced.insert("_id", "a product");
    let mut negative = shop.product(2, -1);
    negative.insert("_id", "negative");
    for product in [spaced, negative] {
        added.insert(("products".to_owned(), product.get_str("_id").unwrap().to_owned()));
        shop.collection("products").insert_one(product).await.unwrap();
    }
    let mut cart = Shop::cart(random);
    cart.insert("keep", true);
    cart.insert("items", vec![doc! { "product_id": "p-1", "quantity": 1.5 }]);
    added.insert(("carts".to_owned(), cart.get_object_id("_id").unwrap().to_hex()));
    shop.collection("carts").insert_one(cart).await.unwrap();
    added
}
