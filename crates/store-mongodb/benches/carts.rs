//! Cart reads and line changes of many users, on the replica set that `MW_TEST_MONGODB` names.
//!
//! The baseline is a bare loop on the driver: one `find` per read, one `findAndModify` per change, on documents of the same
//! form and size. Rounds alternate within one run; the ratio is the result.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark panics on errors and prints its results"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use mongodb::Collection;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::{CollectionOptions, ReadConcern, ReturnDocument, WriteConcern};
use mw_domain::carts::CartLifetime;
use mw_domain::{CartId, Owner, ProductId, Timestamp, UserId};
use mw_store::Carts;
use mw_store::carts::SetLine;
use mw_store_mongodb::MongoStore;
use mw_testkit::mongodb::fresh;
use uuid::Uuid;

const CLIENTS: usize = 16;
const LINES: u64 = 5;
const ROUNDS: usize = 4;
const MEASURED: Duration = Duration::from_secs(3);
const LIFETIME: CartLifetime = CartLifetime { user_ms: 2_592_000_000, guest_ms: 86_400_000 };
/// Line changes in a document of the baseline, about as many as a cart of the engine has on average.
const HISTORY: i32 = 32;

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap())
}

#[derive(Debug, Clone, Copy)]
enum Case {
    Read,
    Change,
    BareRead,
    BareChange,
}

#[derive(Debug)]
struct Bench {
    store: Arc<MongoStore>,
    bare: Collection<Document>,
}

impl Bench {
    async fn step(&self, case: Case, client: usize, number: u64) {
        let user = format!("user-{client}");
        let product = format!("product-{}", number % LINES);
        match case {
            Case::Read => {
                let owner = Owner::User(UserId::parse(&user).unwrap());
                assert!(self.store.active_cart(&owner, now()).await.unwrap().is_some());
            }
            Case::Change => self.change(&user, &product).await,
            Case::BareRead => {
                let filter = doc! { "owner": format!("u:{user}"), "status": "active" };
                let find = self.bare.find_one(filter).projection(doc! { "history": 0 });
                assert!(find.await.unwrap().is_some());
            }
            Case::BareChange => self.bare_change(&user, &product).await,
        }
    }

    async fn change(&self, user: &str, product: &str) {
        let command = SetLine {
            owner: Owner::User(UserId::parse(user).unwrap()),
            product_id: ProductId::parse(product).unwrap(),
            quantity: 3,
            new_cart_id: CartId::new(Uuid::now_v7()),
            expected_version: None,
            lifetime: LIFETIME,
            now: now(),
        };
        self.store.set_line(command).await.unwrap();
    }

    async fn bare_change(&self, user: &str, product: &str) {
        let at = DateTime::from_millis(now().as_millis());
        let entry = doc! { "at": at, "product_id": product, "quantity": 3 };
        let update = doc! {
            "$set": { "items.$[line].quantity": 3, "items.$[line].updated_at": at, "updated_at": at },
            "$inc": { "version": 1 },
            "$push": { "history": { "$each": [entry], "$slice": -HISTORY } },
        };
        let filter = doc! { "owner": format!("u:{user}"), "status": "active" };
        let changed = self
            .bare
            .find_one_and_update(filter, update)
            .array_filters(vec![doc! { "line.product_id": product }])
            .projection(doc! { "history": 0 })
            .return_document(ReturnDocument::After);
        assert!(changed.await.unwrap().is_some());
    }

    /// Steps per second of all clients.
    async fn rate(self: &Arc<Self>, case: Case) -> f64 {
        let (steps, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let started = Instant::now();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (bench, steps, stop) = (Arc::clone(self), Arc::clone(&steps), Arc::clone(&stop));
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let number = steps.fetch_add(1, Ordering::Relaxed);
                        bench.step(case, client, number).await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(MEASURED).await;
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        let steps = u32::try_from(steps.load(Ordering::Relaxed)).unwrap();
        f64::from(steps) / started.elapsed().as_secs_f64()
    }
}

#[tokio::main]
async fn main() {
    let (store, lease) = fresh().await;
    let options = CollectionOptions::builder()
        .read_concern(ReadConcern::majority())
        .write_concern(WriteConcern::majority())
        .build();
    let bare = lease.database().await.collection_with_options("bare_carts", options);
    bare.create_index(mongodb::IndexModel::builder().keys(doc! { "owner": 1, "status": 1 }).build())
        .await
        .unwrap();
    let bench = Arc::new(Bench { store, bare });
    for client in 0..CLIENTS {
        let user = format!("user-{client}");
        for line in 0..LINES {
            bench.change(&user, &format!("product-{line}")).await;
        }
        let at = DateTime::from_millis(now().as_millis());
        let items: Vec<Document> = (0..LINES)
            .map(|line| doc! { "product_id": format!("product-{line}"), "quantity": 1, "updated_at": at })
            .collect();
        let cart = doc! {
            "_id": Uuid::now_v7().to_string(), "owner": format!("u:{user}"), "user_id": &user, "status": "active",
            "items": items, "created_at": at, "updated_at": at, "expires_at": at, "version": 1_i64,
        };
        bench.bare.insert_one(cart).await.unwrap();
    }
    for (name, own, baseline) in
        [("reads", Case::Read, Case::BareRead), ("changes", Case::Change, Case::BareChange)]
    {
        let (mut ours, mut bare) = (0.0, 0.0);
        for _ in 0..ROUNDS {
            ours += bench.rate(own).await;
            bare += bench.rate(baseline).await;
        }
        let rounds = f64::from(u32::try_from(ROUNDS).unwrap());
        println!(
            "{name}: {:.0}/s, bare loop {:.0}/s, ratio {:.2}",
            ours / rounds,
            bare / rounds,
            ours / bare
        );
    }
}
