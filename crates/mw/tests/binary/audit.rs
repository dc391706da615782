//! `mw stock audit` and its exit codes.

use serde_json::json;
use tempfile::TempDir;

use crate::client::Call;
use crate::export::{export, import_text};
use crate::process::{Server, run};

#[test]
fn a_consistent_store_passes() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().to_str().unwrap();
    let server = Server::start(folder.path(), &["--demo"]);
    let lines = json!([{"product_id": "phone-a01-0-1", "quantity": 2}]);
    let order = json!({"user_id": "u", "geo_zone": "moscow", "lines": lines});
    server.client().done(&Call::new("POST", "/v1/orders").json(order).key("k"));
    server.stop();
    let audit = run(&["stock", "audit", "--data", data]);
    assert_eq!(audit.code, Some(0), "{audit:?}");
    assert!(
        audit.stdout.starts_with("audited ") && audit.stdout.ends_with(" movements: no drift\n"),
        "{audit:?}"
    );
}

#[test]
fn drift_is_listed_and_ends_with_1() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(&folder.path().join("good"), &["--demo"]);
    server.stop();
    let text = export(&folder.path().join("good"));
    let wrong: Vec<String> = text
        .lines()
        .map(|line| {
            if line.contains("\"phone-a01-0-1\",\"geo_zone\":\"moscow\"") {
                line.replacen("\"on_hand\":", "\"on_hand\":1", 1)
            } else {
                line.to_owned()
            }
        })
        .collect();
    let bad = folder.path().join("bad");
    let imported = import_text(&bad, &(wrong.join("\n") + "\n"), &[]);
    assert_eq!(imported.code, Some(0), "{imported:?}");
    let audit = run(&["stock", "audit", "--data", bad.to_str().unwrap()]);
    assert_eq!(audit.code, Some(1), "{audit:?}");
    assert!(
        audit.stdout.contains(": 1 stock level drifted\n  phone-a01-0-1 in moscow: recorded"),
        "{audit:?}"
    );
}

#[test]
fn an_audit_without_a_store_fails_and_creates_nothing() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let audit = run(&["stock", "audit", "--data", data.to_str().unwrap()]);
    assert_eq!(audit.code, Some(1));
    assert!(audit.stderr.contains("there is no store in it"), "{audit:?}");
    assert!(!data.exists());
}
