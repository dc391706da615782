//! Runs against the real server: no errors, and every check passes.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use mw_http::Role;
use mw_loadgen::workload::builtin_names;
use mw_loadgen::{Event, Options, Rate, Report, Target, Workload, run};

use crate::shop::RealShop;
use crate::{load, options, small, try_load};

/// Workloads whose run is mostly about the check.
const WITH_ORDERS: [&str; 3] = ["day", "checkout", "flash-sale"];

fn assert_flawless(report: &Report) {
    let table = report.to_table();
    assert!(report.total.answered > 0, "{table}");
    assert_eq!(report.error_count(), 0, "{table}");
    assert!(report.check.as_ref().is_none_or(|check| check.passed), "{table}");
    assert!(!report.is_cut_short, "{table}");
    assert!(!table.contains("FAILED"), "{table}");
}

#[test]
fn every_other_workload_runs_without_errors_and_passes_its_check() {
    let shop = RealShop::open();
    let others = builtin_names().filter(|name| !WITH_ORDERS.contains(name));
    for name in others {
        let report = load(&shop.url, &small(name), &options());
        assert_flawless(&report);
        assert!(report.calls.iter().all(|call| call.figures.answered > 0), "{}", report.to_table());
    }
}

#[test]
fn orders_are_placed_and_read_back() {
    let shop = RealShop::open();
    for name in WITH_ORDERS {
        let report = load(&shop.url, &small(name), &options());
        assert_flawless(&report);
        let check = report.check.unwrap();
        assert!(check.orders > 0 && check.figures > 0, "{name}: {check:?}");
        assert_eq!(
            (check.orders_missing, check.units_oversold, check.orders_unresolved),
            (0, 0, 0),
            "{name}"
        );
        let sold = if name == "checkout" { check.units_sold } else { check.units_reserved };
        assert!(sold >= check.orders, "{name}: {check:?}");
    }
}

#[test]
fn every_buyer_with_a_basket_checks_out_once() {
    let shop = RealShop::open();
    let mut workload = Workload::parse(
        "baskets",
        r#"about = "carts of two lines become orders"
        [[flow]]
        share = 1
        calls = [{ name = "checkout", request = "POST /v1/users/{buyer}/cart/checkout", body = '{"geo_zone":"{zone}"}', key = true, places_order = true }]"#,
    )
    .unwrap();
    (workload.data.products, workload.data.users, workload.data.baskets) = (200, 300, 300);
    let options = Options { warm_up: Duration::ZERO, threads: 2, ..options() };
    let report = load(&shop.url, &workload, &options);
    let table = report.to_table();
    assert_eq!(report.error_count(), 0, "{table}");
    assert!(report.is_cut_short, "it ends when the baskets are empty: {table}");
    let check = report.check.unwrap();
    assert!(check.passed && check.orders == 300, "{check:?}");
    // The same buyers again, with carts that are filled again.
    let again = Options { reuse: Some(report.settings.prefix), ..options };
    assert_eq!(load(&shop.url, &workload, &again).error_count(), 0);
}

#[test]
fn a_flash_sale_that_sells_out_sells_exactly_what_was_there() {
    let shop = RealShop::open();
    let mut workload = small("flash-sale");
    workload.data.units = 50;
    let report = load(&shop.url, &workload, &options());
    assert_flawless(&report);
    let check = report.check.unwrap();
    assert_eq!((check.orders, check.units_reserved, check.figures), (50, 50, 1));
    assert!(report.total.refused["409 out_of_stock"] > 0);
}

#[test]
fn a_schedule_keeps_its_rate_over_threads_and_rounds() {
    let shop = RealShop::open();
    let scheduled = Options { rate: Rate::PerSecond(400.0), threads: 2, rounds: 2, ..options() };
    let report = load(&shop.url, &small("day"), &scheduled);
    assert_flawless(&report);
    assert_eq!(report.rounds.len(), 2);
    assert!((200.0..500.0).contains(&report.total.rate), "{}", report.to_table());
}

#[test]
fn a_rate_in_percent_measures_the_maximum_first() {
    let shop = RealShop::open();
    let mut probed = None;
    let target = Target::new(&shop.url, None).unwrap();
    let options = Options { rate: Rate::OfMax(0.25), ..options() };
    let mut observe = |event: &Event| {
        if let Event::Probed { rate } = event {
            probed = Some(*rate);
        }
    };
    let report = run(&target, &small("browse"), &options, &AtomicBool::new(false), &mut observe).unwrap();
    assert_flawless(&report);
    let rate = report.settings.rate.unwrap();
    assert!((rate / probed.unwrap() - 0.25).abs() < 1e-6);
}

#[test]
fn data_of_an_earlier_run_is_reused() {
    let shop = RealShop::open();
    let workload = small("checkout");
    let first = load(&shop.url, &workload, &options());
    let reuse = Some(first.settings.prefix.clone());
    let second = load(&shop.url, &workload, &Options { reuse: reuse.clone(), ..options() });
    assert_flawless(&second);
    let mut more = workload;
    more.data.products += 1;
    let message = try_load(&shop.url, &more, &Options { reuse, ..options() }).unwrap_err().to_string();
    assert!(message.contains("not found; pass the --products"), "{message}");
}

#[test]
fn a_stopped_run_still_reports_and_checks() {
    let shop = RealShop::open();
    let is_enough = AtomicBool::new(false);
    let target = Target::new(&shop.url, None).unwrap();
    let long = Options { duration: Duration::from_mins(10), ..options() };
    let mut seconds = 0;
    let mut observe = |event: &Event| {
        if let Event::Second(progress) = event {
            seconds += u32::from(!progress.is_warm_up);
            is_enough.store(seconds == 2, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let report = run(&target, &small("day"), &long, &is_enough, &mut observe).unwrap();
    assert!(report.is_cut_short && report.to_table().contains("ended early"));
    assert_eq!(report.error_count(), 0);
    assert!(report.check.unwrap().passed);
}

#[test]
fn an_unreachable_server_ends_the_run() {
    let mut shop = Some(RealShop::open());
    let url = shop.as_ref().unwrap().url.clone();
    let long = Options {
        rate: Rate::PerSecond(500.0),
        duration: Duration::from_mins(10),
        timeout: Duration::from_secs(1),
        ..options()
    };
    let mut observe = |event: &Event| {
        if matches!(event, Event::Second(progress) if !progress.is_warm_up) {
            shop = None;
        }
    };
    let target = Target::new(&url, None).unwrap();
    let report = run(&target, &small("day"), &long, &AtomicBool::new(false), &mut observe).unwrap();
    let table = report.to_table();
    assert!(report.is_cut_short && report.total.answered > 0, "{table}");
    assert!(report.unsent > 0 && report.total.max_us > 500_000, "{table}");
    assert!(table.contains("the server is unreachable, nothing could be read back"), "{table}");
    assert!(!report.check.unwrap().passed);
}

#[test]
fn a_missing_token_is_requested_and_a_given_one_is_used() {
    let shop = RealShop::guarded(Role::Backoffice, "a-token-of-the-office");
    let message = try_load(&shop.url, &small("day"), &options()).unwrap_err().to_string();
    assert!(
        message.contains("the server wants a token; give one of role backoffice with --token"),
        "{message}"
    );
    let target = Target::new(&shop.url, Some("a-token-of-the-office")).unwrap();
    let report = run(&target, &small("day"), &options(), &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_flawless(&report);
    let shop = RealShop::guarded(Role::Storefront, "a-token-of-the-front");
    let target = Target::new(&shop.url, Some("a-token-of-the-front")).unwrap();
    let message = run(&target, &small("day"), &options(), &AtomicBool::new(false), &mut |_| {});
    assert!(message.unwrap_err().to_string().contains("a token with more rights"));
}

#[test]
fn a_currency_mismatch_is_reported() {
    let shop = RealShop::open();
    let foreign = Options { currency: "EUR".to_owned(), ..options() };
    let message = try_load(&shop.url, &small("browse"), &foreign).unwrap_err().to_string();
    assert!(message.contains("another currency: name it with --currency"), "{message}");
}

#[test]
fn a_custom_workload_runs_and_its_errors_are_counted_by_code() {
    let shop = RealShop::open();
    let source = "about = 'mine'\n[data]\nproducts = 5\ncategories = 1\n\
        [[flow]]\nshare = 1\ncalls = [{ name = 'good', request = 'GET /v1/products/{product}' }]\n\
        [[flow]]\nshare = 1\ncalls = [{ name = 'bad', request = 'GET /v1/products/nothing' }]\n";
    let report = load(&shop.url, &Workload::parse("mine", source).unwrap(), &options());
    let [good, bad] = report.calls.as_slice() else { panic!("two calls: {report:?}") };
    assert!(good.figures.answered > 0 && good.figures.errors.is_empty());
    assert!(bad.figures.answered == 0 && bad.figures.errors["404 product_not_found"] > 0);
}

#[test]
fn an_unreachable_server_is_reported_before_the_run() {
    let message = try_load("http://127.0.0.1:1", &small("day"), &options()).unwrap_err().to_string();
    assert!(
        message.starts_with("connect to http://127.0.0.1:1:") && message.ends_with("is the server running?")
    );
}

#[test]
fn too_few_users_for_the_connections_are_refused() {
    let mut workload = small("checkout");
    workload.data.users = 20;
    let message = try_load("http://127.0.0.1:1", &workload, &options());
    // Options are checked before the server is probed.
    assert!(message.unwrap_err().to_string().starts_with("users: 20 are too few for 16 requests at once"));
}
