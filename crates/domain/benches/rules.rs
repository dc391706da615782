//! Benchmarks of the rules alone: merging carts, and finding the partition of a row.
//! `cargo bench -p mw-domain`.

#![expect(clippy::unwrap_used, reason = "a value that is spelled wrongly is a bench that fails")]

use divan::{Bencher, black_box};
use mw_domain::buckets::{Band, MonthBucket, Plan, shard};
use mw_domain::carts::{MergeMode, merge_changes};
use mw_domain::{CartLine, Money, OrderId, ProductId, Timestamp};
use uuid::Uuid;

const NOW_MS: i64 = 1_790_000_000_000;
const HOUR_MS: i64 = 3_600_000;

fn main() {
    divan::main();
}

/// `count` lines by product id, every second of them in both carts.
fn lines(count: u32, start: u32) -> Vec<CartLine> {
    let line = |number: u32| CartLine {
        product_id: ProductId::parse(&format!("product-{:05}", start + number * 2)).unwrap(),
        quantity: number % 5 + 1,
        updated_at: Timestamp::from_millis(NOW_MS + i64::from(number)),
    };
    (0..count).map(line).collect()
}

#[divan::bench(args = [1, 5, 50, 100])]
fn merge(bencher: Bencher<'_, '_>, count: u32) {
    let (user, guest) = (lines(count, 0), lines(count, count / 2 * 2));
    bencher.bench(|| merge_changes(black_box(&user), black_box(&guest), MergeMode::Sum));
}

fn plans(count: i64) -> Vec<Plan> {
    let plan = |number: i64| Plan {
        starts_at: Timestamp::from_millis(NOW_MS - number * 1_000 * HOUR_MS),
        buckets: u32::try_from(8 - number % 8).unwrap(),
    };
    (0..count).rev().map(plan).collect()
}

/// The month bucket of a user's orders that an order is written to.
#[divan::bench(args = [1, 4, 16])]
fn month_bucket(bencher: Bencher<'_, '_>, count: i64) {
    let plans = plans(count);
    let at = Timestamp::from_millis(NOW_MS - 1_500 * HOUR_MS);
    bencher.bench(|| MonthBucket::of(black_box(at), Plan::at(black_box(&plans), at)));
}

#[divan::bench]
fn day_shard(bencher: Bencher<'_, '_>) {
    let order_id = OrderId::new(Uuid::from_u128(0x0190_0000_0000_7000_8000_1234_5678_9abc));
    bencher.bench(|| shard(black_box(order_id), black_box(16)));
}

#[divan::bench(args = [50, 19_990, 999_999_999])]
fn price_band(bencher: Bencher<'_, '_>, units: i64) {
    let price = Money::from_minor(units * 100);
    bencher.bench(|| (Band::of(black_box(price)), Band::slice(black_box(price), 4)));
}
