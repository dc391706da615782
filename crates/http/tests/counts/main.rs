//! The cost of a request: allocations on every hot route, from the socket to the disk and back, compared with
//! `counts.toml`. Under callgrind, as `cargo xtask counts` runs it, it compares nothing: the instructions of a route are
//! those between two calls of [`boundary`].

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking, and this one prints its counts"
)]

mod client;
mod routes;
mod seed;

use std::alloc::System;
use std::fmt::Write as _;
use std::hint::black_box;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use client::{Client, Request};
use routes::HOT;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Requests before the first that counts: buffers grow, caches fill.
const WARM_UP: usize = 40;
const REQUESTS: usize = 400;
/// Names the file for the counts, which `cargo xtask counts` compares.
const REPORT: &str = "MW_COUNTS_REPORT";

struct Usage {
    route: &'static str,
    allocations: usize,
    bytes: usize,
}

fn main() {
    // One thread for all of HTTP, so that a request takes the same path each time.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let usages = runtime.block_on(count());
    match std::env::var_os(REPORT) {
        Some(path) => std::fs::write(path, report(&usages)).expect("write the report"),
        None => compare(&usages),
    }
}

async fn count() -> Vec<Usage> {
    let (mut client, seeded) = seed::serve().await;
    let mut usages = Vec::with_capacity(HOT.len());
    for (route, make) in HOT {
        let requests: Vec<Request> = (0..WARM_UP + REQUESTS).map(|number| make(number, &seeded)).collect();
        let (warm_up, counted) = requests.split_at(WARM_UP);
        send(&mut client, warm_up).await;
        let region = Region::new(ALLOCATOR);
        boundary(route);
        send(&mut client, counted).await;
        boundary(route);
        let change = region.change();
        let allocations = change.allocations + change.reallocations;
        usages.push(Usage { route, allocations, bytes: change.bytes_allocated });
    }
    usages
}

async fn send(client: &mut Client, requests: &[Request]) {
    for request in requests {
        client.send(request).await;
    }
}

/// Where callgrind starts a new count.
#[inline(never)]
fn boundary(route: &str) {
    black_box(route);
}

fn report(usages: &[Usage]) -> String {
    let mut text = String::new();
    for Usage { route, allocations, bytes } in usages {
        writeln!(text, "{route}\t{REQUESTS}\t{allocations}\t{bytes}")
            .expect("writing to a string never fails");
    }
    text
}

/// The growth over the file that is tolerated: writes have some allocations at random.
const GROWTH_MAX: f64 = 1.01;
const SLACK: f64 = 0.5;

#[expect(clippy::cast_precision_loss, reason = "a few thousand allocations are far below 2^52")]
fn compare(usages: &[Usage]) {
    let kept: toml::Table = include_str!("../../counts.toml").parse().expect("counts.toml is TOML");
    let mut worse = Vec::new();
    for Usage { route, allocations, .. } in usages {
        let now = *allocations as f64 / REQUESTS as f64;
        let before = kept.get(*route).and_then(|cost| cost.get("allocations"));
        let before =
            before.and_then(|value| value.as_float().or_else(|| value.as_integer().map(|it| it as f64)));
        println!("{route:<17} {now:>7.1} allocations, {:>7.1} in the file", before.unwrap_or(f64::NAN));
        if !before.is_some_and(|before| now <= (before * GROWTH_MAX).max(before + SLACK)) {
            worse.push(*route);
        }
    }
    assert!(
        worse.is_empty(),
        "more allocations a request than counts.toml says: {}; do without them, or accept them with \
         `cargo xtask counts --write`",
        worse.join(", ")
    );
}
