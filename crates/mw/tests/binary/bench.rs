//! `mw bench`: with its own server and with a running one, its files, its signals, its messages.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Ended, Server, mw, run};

/// A run of a second on little data.
const SHORT: [&str; 12] = [
    "--duration",
    "1s",
    "--warm-up",
    "0s",
    "--products",
    "50",
    "--users",
    "300",
    "--connections",
    "8",
    "--carts",
    "10",
];

fn bench(arguments: &[&str]) -> Ended {
    let short = SHORT.iter().filter(|_| arguments.first() != Some(&"compare"));
    run(&["bench"].iter().chain(short).chain(arguments).copied().collect::<Vec<_>>())
}

#[test]
fn it_starts_its_own_server_and_writes_the_reports() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for name in ["a", "b"] {
        let (json, html) = (path(&format!("{name}.json")), path(&format!("{name}.html")));
        let ended = bench(&["day", "--quiet", "--json", &json, "--html", &html]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        assert!(ended.stdout.contains("check passed"), "{ended:?}");
        let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        assert_eq!((&report["kind"], &report["version"]), (&"mw-bench".into(), &1.into()));
        assert_eq!(report["total"]["errors"], serde_json::json!({}));
        assert!(fs::read_to_string(&html).unwrap().contains("<svg"));
    }
    let ended = bench(&["compare", &path("a.json"), &path("b.json")]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("run too short"), "{ended:?}");
    let ended = bench(&["compare", &path("a.json"), &path("a.html")]);
    assert!(ended.code == Some(1) && ended.stderr.contains("not JSON"), "{ended:?}");
}

#[test]
fn it_loads_a_running_server_and_leaves_it_running() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let url = format!("http://{}", server.address);
    let ended = bench(&["checkout", "--rate", "200", "--url", &url]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.starts_with("checkout: 200 requests/s by schedule"), "{ended:?}");
    assert_eq!(server.client().get("/readyz").status, 200);
    let ended = bench(&["checkout", "--url", &url, "--", "--demo"]);
    assert!(ended.code == Some(1) && ended.stderr.contains("options after --"), "{ended:?}");
}

#[test]
fn options_after_the_dashes_reach_the_server() {
    let ended = bench(&["healthz", "--", "--set", "server.nonsense=1"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("server.nonsense"), "{ended:?}");
    assert!(ended.stderr.contains("it ended before it served"), "{ended:?}");
}

#[test]
fn a_signal_ends_the_run_early_with_a_report_and_no_server_left() {
    let mut command =
        mw(&["bench", "day", "--duration", "10m", "--warm-up", "0s", "--products", "50", "--carts", "0"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("measuring")), "it reports progress");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut message = String::new();
    child.stdout.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{message}");
    assert!(message.contains("the run ended early") && message.contains("check passed"), "{message}");
}

#[test]
fn mistakes_are_reported_before_a_server_is_started() {
    let message = |arguments: &[&str]| {
        let ended = bench(arguments);
        assert_ne!(ended.code, Some(0), "{ended:?}");
        ended.stderr
    };
    assert!(message(&["dya"]).contains("find workload `dya`: there are day, black-friday"));
    assert!(message(&["day", "--rate", "fast"]).contains("a percentage like 80%, or max"));
    assert!(message(&["day", "--skew", "9"]).contains("data.skew: expected 0 to 5"));
    assert!(message(&["day", "--json", "/nowhere/a.json"]).contains("write /nowhere/a.json"));
    assert!(message(&["day", "--url", "http://127.0.0.1:1"]).contains("is the server running?"));
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("mine.toml");
    fs::write(&file, "about = 'x'\n[[flow]]\nshare = 1\ncalls = [{ name = 'a', request = 'GET /{x}' }]\n")
        .unwrap();
    let message = message(&[file.to_str().unwrap()]);
    assert!(message.contains("workload mine: line 4: request of `a`: there is no variable {x}"), "{message}");
}

#[test]
fn a_built_in_workload_can_be_printed_and_changed() {
    let ended = run(&["bench", "show", "day"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("mine.toml");
    fs::write(&file, ended.stdout.replace("orders = 2_000", "orders = 30")).unwrap();
    let ended = bench(&[file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.starts_with("mine: closed loop"), "{ended:?}");
}
