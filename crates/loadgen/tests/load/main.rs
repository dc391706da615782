//! Whole runs: against the real server, and against servers that stall, break guarantees and disconnect.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking, also in the functions that tests share"
)]

mod faulty_server;
mod real_server;
mod shop;
mod stalls;
mod stub;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mw_loadgen::{LoadError, Options, Report, Target, Workload, run};

/// A short run of a small shop.
fn options() -> Options {
    Options {
        duration: Duration::from_millis(1_500),
        warm_up: Duration::from_millis(300),
        connections: 16,
        ..Options::default()
    }
}

/// A built-in workload on little data.
fn small(name: &str) -> Workload {
    let mut workload = Workload::find(name).unwrap();
    let data = &mut workload.data;
    data.products = data.products.min(200);
    data.categories = data.categories.min(10);
    data.users = data.users.min(500);
    data.carts = data.carts.min(50);
    data.orders = data.orders.min(20);
    workload
}

fn try_load(url: &str, workload: &Workload, options: &Options) -> Result<Report, LoadError> {
    let target = Target::new(url, None)?;
    run(&target, workload, options, &AtomicBool::new(false), &mut |_| {})
}

fn load(url: &str, workload: &Workload, options: &Options) -> Report {
    try_load(url, workload, options).unwrap_or_else(|error| panic!("{error}"))
}
