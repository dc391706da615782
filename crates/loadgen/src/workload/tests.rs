//! Files with mistakes are refused with the line and the field.

use super::*;

const FLOW: &str = "[[flow]]\nshare = 1\ncalls = [{ name = 'a', request = 'GET /v1/categories' }]\n";

fn refusal(source: &str) -> String {
    Workload::parse("mine", source).unwrap_err().to_string()
}

#[test]
fn every_built_in_workload_is_sound() {
    for name in builtin_names() {
        let workload = Workload::find(name).unwrap();
        assert!(!workload.about.is_empty(), "{name}");
        filling(&workload).unwrap();
    }
}

#[test]
fn the_mix_of_black_friday_is_that_of_the_day() {
    let (day, friday) = (Workload::find("day").unwrap(), Workload::find("black-friday").unwrap());
    let mix = |workload: &Workload| -> Vec<(f64, Vec<String>)> {
        let names = |flow: &Flow| flow.calls.iter().map(|call| call.name.clone()).collect();
        workload.flows.iter().map(|flow| (flow.share, names(flow))).collect()
    };
    assert_eq!(mix(&day), mix(&friday));
    assert_eq!((friday.data.hits, friday.data.skew), (10, 1.0));
}

#[test]
fn baskets_are_of_users() {
    let message = refusal(&format!("about = 'x'\n[data]\nusers = 5\nbaskets = 6\n{FLOW}"));
    assert!(message.contains("data.baskets: there are fewer users"), "{message}");
}

#[test]
fn an_unknown_workload_is_refused_with_the_known_ones() {
    let message = Workload::find("dya").unwrap_err().to_string();
    assert!(message.starts_with("find workload `dya`: there are day, black-friday, flash-sale"), "{message}");
    assert!(message.ends_with("healthz, or the path of a file"), "{message}");
}

#[test]
fn a_file_is_read_by_its_path() {
    let message = Workload::find("/nowhere/mine.toml").unwrap_err().to_string();
    assert!(message.starts_with("read /nowhere/mine.toml:"), "{message}");
}

#[test]
fn a_syntax_error_is_reported_with_its_line() {
    let message = refusal("about = 'x'\n[data]\nproduct = 5\n");
    assert!(message.contains("line 3") && message.contains("unknown field `product`"), "{message}");
    let message = refusal("about = 'x'\n[[flow]]\nshare = 'much'\n");
    assert!(message.contains("line 3"), "{message}");
}

#[test]
fn an_invalid_value_is_reported_with_its_line_and_field() {
    let call =
        |call: &str| refusal(&format!("about = 'x'\n[[flow]]\nshare = 1\ncalls = [\n  {{ {call} }},\n]\n"));
    let cases = [
        ("name = 'a', request = 'GET'", "line 5: request of `a`: expected a method and a path"),
        ("name = 'a', request = 'TAKE /x'", "line 5: request of `a`: expected GET, PUT"),
        ("name = 'a', request = 'GET x'", "line 5: request of `a`: expected a path"),
        ("name = 'a', request = 'GET /{thing}'", "line 5: request of `a`: there is no variable {thing}"),
        (
            "name = 'a', request = 'PUT /x', body = '{thing}'",
            "line 5: body of `a`: there is no variable {thing}",
        ),
        ("name = 'a', request = 'GET /x', refusals = ['gone']", "line 5: refusals of `a`: expected a status"),
        (
            "name = 'a', request = 'POST /x', places_order = true",
            "line 5: request of `a`: expected key = true",
        ),
    ];
    for (given, wanted) in cases {
        let message = call(given);
        assert!(message.starts_with(&format!("workload mine: {wanted}")), "{message}");
    }
    let message = refusal("about = 'x'\n[[flow]]\nshare = 0\ncalls = []\n");
    assert_eq!(message, "workload mine: line 3: share: expected a number above 0");
    let message = refusal("about = 'x'\n[[flow]]\nshare = 1\ncalls = []\n");
    assert_eq!(message, "workload mine: line 4: calls: expected 1 to 64");
}

#[test]
fn data_out_of_range_is_refused_by_its_name() {
    let message = |data: &str| refusal(&format!("about = 'x'\n[data]\n{data}\n{FLOW}"));
    assert_eq!(message("skew = -1.0"), "workload mine: data.skew: expected 0 to 5");
    assert_eq!(message("hits = 20000"), "workload mine: data.hits: there are fewer products");
    assert_eq!(message("hit_share = 2.0"), "workload mine: data.hit_share: expected 0 to 1");
    assert_eq!(message("units = 0"), "workload mine: data.units: expected 1 to 1000000000");
}

#[test]
fn orders_that_are_read_must_exist() {
    let source = FLOW.replace("/v1/categories", "/v1/orders/{order}");
    let message = refusal(&format!("about = 'x'\n{source}"));
    assert!(message.starts_with("workload mine: data.orders: a flow reads an {order}"), "{message}");
    Workload::parse("mine", &format!("about = 'x'\n[data]\norders = 1\n{source}")).unwrap();
}
