//! A server that stalls: an open loop shows it, a closed loop hides it.

use std::time::Duration;

use mw_loadgen::{Arrivals, Options, Rate, Workload};

use crate::load;
use crate::stub::{Flaw, Stub};

const STALL: Duration = Duration::from_millis(1_500);
/// A third of the stall: far above any ordinary latency.
const LONG_US: u64 = 500_000;

fn stalled(rate: Rate) -> mw_loadgen::Report {
    let stub = Stub::open(Flaw::Stalls(STALL));
    let options = Options {
        rate,
        arrivals: Arrivals::Uniform,
        duration: Duration::from_secs(4),
        warm_up: Duration::ZERO,
        connections: 4,
        ..Options::default()
    };
    load(&stub.url, &Workload::find("healthz").unwrap(), &options)
}

#[test]
fn an_open_loop_counts_latency_from_the_scheduled_instant() {
    let report = stalled(Rate::PerSecond(200.0));
    // Requests that were due in the first second of the stall waited half a second or more: a quarter of all.
    assert!(report.total.p90_us > LONG_US, "{}", report.to_table());
    assert!(report.total.answered > 400, "{}", report.to_table());
}

#[test]
fn a_schedule_lasts_its_time_when_nothing_more_is_due() {
    let stub = Stub::open(Flaw::None);
    let options = Options {
        rate: Rate::PerSecond(2.0),
        arrivals: Arrivals::Uniform,
        duration: Duration::from_millis(900),
        warm_up: Duration::ZERO,
        connections: 1,
        ..Options::default()
    };
    let report = load(&stub.url, &Workload::find("healthz").unwrap(), &options);
    assert!(!report.is_cut_short, "{}", report.to_table());
}

#[test]
fn in_a_closed_loop_a_stall_is_a_few_slow_responses() {
    let report = stalled(Rate::Max);
    assert!(report.total.max_us > LONG_US, "{}", report.to_table());
    assert!(report.total.p90_us < LONG_US, "{}", report.to_table());
}

#[test]
fn unsent_flows_are_counted_and_reported() {
    let stub = Stub::open(Flaw::Stalls(Duration::from_secs(4)));
    let options = Options {
        rate: Rate::PerSecond(200.0),
        duration: Duration::from_secs(2),
        warm_up: Duration::ZERO,
        connections: 2,
        ..Options::default()
    };
    let report = load(&stub.url, &Workload::find("healthz").unwrap(), &options);
    assert!(report.unsent > 50, "{}", report.to_table());
    assert!(report.to_table().contains("were never sent, latencies are lower bounds"));
    assert!(report.total.p90_us > LONG_US, "{}", report.to_table());
}
