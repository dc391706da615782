//! Runs against faulty servers: a broken guarantee is found, a mere disconnect or unknown outcome is no violation.

use std::time::Duration;

use mw_loadgen::{Options, Report};

use crate::stub::{Flaw, Stub};
use crate::{load, options, small};

fn sale(stub: &Stub, units: u64, options: &Options) -> Report {
    let mut workload = small("flash-sale");
    workload.data.units = units;
    load(&stub.url, &workload, options)
}

#[test]
fn a_correct_server_passes() {
    let stub = Stub::open(Flaw::None);
    let report = sale(&stub, 100, &options());
    let check = report.check.as_ref().unwrap();
    assert!(check.passed, "{}", report.to_table());
    assert_eq!((check.orders, check.units_reserved), (100, 100));
}

#[test]
fn overselling_is_found() {
    let stub = Stub::open(Flaw::Oversells);
    let report = sale(&stub, 100, &options());
    let check = report.check.as_ref().unwrap();
    assert!(!check.passed && check.orders > 100, "{}", report.to_table());
    assert_eq!(check.units_oversold, check.orders - 100);
    assert!(
        report.to_table().contains("check FAILED")
            && report.to_table().contains("units oversold: 100 imported")
    );
}

#[test]
fn a_lost_order_is_found() {
    let stub = Stub::open(Flaw::LosesOrders);
    let report = sale(&stub, 100, &options());
    let check = report.check.as_ref().unwrap();
    assert!(!check.passed, "{}", report.to_table());
    assert_eq!((check.orders, check.orders_missing), (100, 10));
    assert!(check.findings[0].contains("was acknowledged and cannot be read: the server returned 404"));
}

#[test]
fn reserved_units_without_an_order_are_found() {
    let stub = Stub::open(Flaw::HoldsTwice);
    let report = sale(&stub, 1_000_000, &options());
    let check = report.check.as_ref().unwrap();
    assert!(!check.passed && check.figures_wrong == 1, "{}", report.to_table());
    assert!(check.findings[0].contains(" reserved, "), "{:?}", check.findings);
}

#[test]
fn unknown_outcomes_are_retried_with_the_same_key() {
    let stub = Stub::open(Flaw::IsNotSure);
    let report = sale(&stub, 1_000_000, &options());
    let check = report.check.as_ref().unwrap();
    assert!(check.passed, "{}", report.to_table());
    assert_eq!(report.error_count(), 0, "{}", report.to_table());
    assert!(report.repeated > 0);
    assert_eq!(check.orders, stub.placed(), "each key is one order");
}

#[test]
fn a_broken_connection_is_reopened_and_the_order_retried() {
    let stub = Stub::open(Flaw::HangsUp);
    let report = sale(&stub, 1_000_000, &options());
    let check = report.check.as_ref().unwrap();
    assert!(check.passed, "{}", report.to_table());
    assert_eq!(report.error_count(), 0, "{}", report.to_table());
    assert!(report.repeated > 0);
    assert_eq!(check.orders, stub.placed());
}

#[test]
fn a_server_may_close_the_connection_after_each_response() {
    let stub = Stub::open(Flaw::ClosesEach);
    let report = sale(&stub, 1_000_000, &options());
    assert!(report.check.as_ref().unwrap().passed && report.total.answered > 0, "{}", report.to_table());
    assert_eq!((report.error_count(), report.repeated), (0, 0), "{}", report.to_table());
}

#[test]
fn a_missing_response_is_an_error_and_never_a_success() {
    let stub = Stub::open(Flaw::IsSilent);
    let impatient =
        Options { timeout: Duration::from_millis(200), warm_up: Duration::ZERO, connections: 4, ..options() };
    let report = sale(&stub, 100, &impatient);
    assert_eq!(report.total.answered, 0);
    assert!(report.total.errors["timed out"] > 0, "{}", report.to_table());
    let check = report.check.as_ref().unwrap();
    assert!(check.orders == 0 && check.orders_unresolved > 0, "{check:?}");
}
