//! `mw export` and `mw import`: round trip, truncated files, kill during an import.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::json;
use tempfile::TempDir;

use crate::client::{Call, Client};
use crate::process::{Ended, Server, ended, mw, run};

/// What the store holds, as `mw export` writes it to standard output.
pub(crate) fn export(data: &Path) -> String {
    let exported = run(&["export", "--data", data.to_str().unwrap()]);
    assert_eq!(exported.code, Some(0), "{exported:?}");
    exported.stdout
}

/// Imports from standard input.
pub(crate) fn import_text(data: &Path, text: &str, more: &[&str]) -> Ended {
    let mut command = mw(&["import", "-", "--data", data.to_str().unwrap()]);
    command.args(more).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A refusal may end the process before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    ended(child.wait_with_output().unwrap())
}

/// All but the header.
pub(crate) fn body(text: &str) -> &str {
    text.split_once('\n').unwrap().1
}

/// Something of every kind.
pub(crate) fn populate(client: &mut Client) {
    let put = |path: &str, body| Call::new("PUT", path).json(body);
    let post = |path: &str, key: &str, body| Call::new("POST", path).json(body).key(key);
    let line = json!([{"product_id": "phone-a01-0-1", "quantity": 2}]);
    client.done(&put("/v1/users/u1/cart/lines/phone-a01-0-1", json!({"quantity": 2})));
    client.done(&put("/v1/sessions/s1/cart/lines/phone-a01-0-2", json!({"quantity": 1})));
    client.done(&post("/v1/sessions", "k1", json!({"session_id": "s1", "data": {"тема": "тёмная"}})));
    client.done(&post("/v1/sessions/s1/login", "k2", json!({"user_id": "u1"})));
    client.done(&post("/v1/users/u1/cart/checkout", "k3", json!({"geo_zone": "moscow"})));
    let order = json!({"user_id": "u2", "geo_zone": "spb", "lines": line, "delivery_address": "дом 1"});
    let order = client.done(&post("/v1/orders", "k4", order));
    let status = format!("/v1/orders/{}/status", order["order_id"].as_str().unwrap());
    client.done(&post(&status, "k5", json!({"status": "paid", "note": "card"})));
    let hold = json!({"geo_zone": "kazan", "lines": line});
    let hold = client.done(&post("/v1/reservations", "k6", hold));
    let confirm = format!("/v1/reservations/{}/confirm", hold["reservation_id"].as_str().unwrap());
    client.done(&Call::new("POST", confirm));
    let adjust = "/v1/products/phone-a01-0-1/stock/kazan/adjust";
    client.done(&post(adjust, "k7", json!({"delta": 7, "reason": "found"})));
    client.done(&put("/v1/users/u3/cart/lines/phone-a01-0-3", json!({"quantity": 9})));
    client.done(&Call::new("POST", "/v1/users/u3/cart/abandon"));
}

#[test]
fn a_round_trip_preserves_everything() {
    let folder = TempDir::new().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let server = Server::start(&from, &["--demo"]);
    populate(&mut server.client());
    server.stop();
    let file = folder.path().join("shop.ndjson");
    let (from_text, file_text) = (from.to_str().unwrap(), file.to_str().unwrap());
    let exported = run(&["export", "--data", from_text, "--output", file_text]);
    assert_eq!(exported.code, Some(0), "{exported:?}");
    for kind in
        ["products", "stock levels", "carts", "cart changes", "sessions", "reservations", "orders", "keys"]
    {
        assert!(exported.stderr.contains(kind), "{kind} is not in {exported:?}");
    }
    assert!(!folder.path().join("shop.ndjson.partial").exists());

    let imported = run(&["import", file_text, "--data", to.to_str().unwrap()]);
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert_eq!(body(&export(&to)), body(&fs::read_to_string(&file).unwrap()));
    assert_eq!(run(&["stock", "audit", "--data", to.to_str().unwrap()]).code, Some(0));

    let server = Server::start(&to, &[]);
    let mut client = server.client();
    assert_eq!(client.items("/v1/users/u1/orders").len(), 1);
    assert_eq!(client.get("/v1/sessions/s1").body["data"]["тема"], "тёмная");
    let again = Call::new("POST", "/v1/sessions")
        .json(json!({"session_id": "s1", "data": {"тема": "тёмная"}}))
        .key("k1");
    let again = client.call(&again);
    assert!(again.is_success() && again.is_replay, "{again:?}");
}

#[test]
fn a_killed_import_resumes_where_it_stopped() {
    let folder = TempDir::new().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    Server::start(&from, &["--demo"]).stop();
    let text = export(&from);
    let half = text.len() / 2;

    let mut command = mw(&["import", "-", "--data", to.to_str().unwrap()]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&text.as_bytes()[..half]).unwrap();
    // It reads on only after it has written a batch, so all but the contents of a pipe and a batch is imported.
    child.kill().unwrap();
    child.wait().unwrap();

    let resumed = import_text(&to, &text, &[]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    assert!(resumed.stderr.contains("resuming after "), "{resumed:?}");
    assert_eq!(body(&export(&to)), body(&text));
    let again = import_text(&to, &text, &[]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.stderr.contains("imported 0 records"), "{again:?}");
}

#[test]
fn a_bad_line_is_named_and_nothing_of_its_batch_is_applied() {
    let folder = TempDir::new().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    Server::start(&from, &["--demo"]).stop();
    let text = export(&from);
    let bad: Vec<&str> =
        text.lines().enumerate().map(|(at, line)| if at == 9 { "{oops" } else { line }).collect();
    let file = folder.path().join("bad.ndjson");
    fs::write(&file, bad.join("\n")).unwrap();
    let refused = run(&["import", file.to_str().unwrap(), "--data", to.to_str().unwrap()]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("bad.ndjson: line 10: "), "{refused:?}");
    assert_eq!(body(&export(&to)), "{\"end\":{\"records\":0}}\n");
}

#[test]
fn a_truncated_newer_or_unwanted_file_is_refused() {
    let folder = TempDir::new().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    Server::start(&from, &["--demo"]).stop();
    let text = export(&from);

    let cut = import_text(&to, text.trim_end().rsplit_once('\n').unwrap().0, &[]);
    assert_eq!(cut.code, Some(1));
    assert!(cut.stderr.contains("it was cut short"), "{cut:?}");

    let newer =
        import_text(&folder.path().join("new"), &text.replacen("\"version\":1", "\"version\":2", 1), &[]);
    assert_eq!(newer.code, Some(1));
    assert!(newer.stderr.contains("import it with a newer mw"), "{newer:?}");
    assert!(!folder.path().join("new").exists());

    let other = export(&from);
    let refused = import_text(&to, &other, &[]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("--into-non-empty"), "{refused:?}");
    assert_eq!(import_text(&to, &other, &["--into-non-empty"]).code, Some(0));

    let missing = run(&["import", "/no/such/file"]);
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("open /no/such/file: "), "{missing:?}");
}

#[test]
fn a_device_is_written_and_not_replaced() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().to_str().unwrap();
    Server::start(folder.path(), &[]).stop();
    let exported = run(&["export", "--data", data, "--output", "/dev/null"]);
    assert_eq!(exported.code, Some(0), "{exported:?}");
    assert!(!fs::metadata("/dev/null").unwrap().is_file() && !Path::new("/dev/null.partial").exists());
}

#[test]
fn a_failed_export_leaves_the_old_file() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    Server::start(&data, &[]).stop();
    let target = folder.path().join("target");
    fs::create_dir(&target).unwrap();
    let failed = run(&["export", "--data", data.to_str().unwrap(), "--output", target.to_str().unwrap()]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.stderr.contains("rename "), "{failed:?}");
    assert!(!folder.path().join("target.partial").exists());
    let nowhere = folder.path().join("no/such/folder/x.ndjson");
    let failed = run(&["export", "--data", data.to_str().unwrap(), "--output", nowhere.to_str().unwrap()]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.stderr.contains("x.ndjson.partial: No such file"), "{failed:?}");
}
