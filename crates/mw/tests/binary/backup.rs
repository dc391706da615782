//! `mw backup`, `mw verify` and `mw restore`, and exports and audits of the running shop.

use std::fs;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::client::Call;
use crate::export::{body, export, import_text, populate};
use crate::process::{Ended, Server, run};

fn url(server: &Server) -> String {
    format!("http://{}", server.address)
}

fn succeed(arguments: &[&str]) -> Ended {
    let ended = run(arguments);
    assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
    ended
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = body(text).lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_running_shop_is_exported_and_audited_as_a_stopped_one() {
    let folder = TempDir::new().unwrap();
    let (data, copy) = (folder.path().join("data"), folder.path().join("copy"));
    let server = Server::start(&data, &["--demo"]);
    populate(&mut server.client());
    let running = succeed(&["export", "--url", &url(&server)]).stdout;
    let file = folder.path().join("shop.ndjson");
    let to_file = succeed(&["export", "--url", &url(&server), "--output", text(&file)]);
    assert!(to_file.stderr.contains(" records"), "{to_file:?}");
    assert_eq!(body(&fs::read_to_string(&file).unwrap()), body(&running));
    let audit = succeed(&["stock", "audit", "--url", &url(&server)]);
    server.stop();
    assert_eq!(body(&export(&data)), body(&running));
    assert_eq!(succeed(&["stock", "audit", "--data", text(&data)]).stdout, audit.stdout);
    let imported = import_text(&copy, &running, &[]);
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert_eq!(sorted(&export(&copy)), sorted(&running));
}

#[test]
fn a_running_shop_is_backed_up_verified_and_restored() {
    let folder = TempDir::new().unwrap();
    let (data, backups) = (folder.path().join("data"), folder.path().join("backups"));
    let server = Server::start(&data, &["--demo"]);
    populate(&mut server.client());
    let first = succeed(&["backup", "--url", &url(&server), "--to", text(&backups)]);
    assert!(first.stdout.starts_with("backup 1 of "), "{first:?}");
    server
        .client()
        .done(&Call::new("PUT", "/v1/users/late/cart/lines/phone-a01-0-1").json(json!({"quantity": 3})));
    let running = succeed(&["export", "--url", &url(&server)]).stdout;
    succeed(&["backup", "--url", &url(&server), "--to", text(&backups)]);
    let metrics = server.client().get("/metrics").body;
    let metrics = metrics.as_str().unwrap();
    let line = metrics.lines().find(|line| line.starts_with("mw_embedded_last_backup_timestamp_seconds"));
    let at: f64 = line.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(at > 1.7e9, "{line:?}");
    let audit = server.client().get("/v1/operations/audit").body;
    let actions: Vec<&str> =
        audit["items"].as_array().unwrap().iter().filter_map(|entry| entry["action"].as_str()).collect();
    let expected = format!("start backup to {}, keep 3", backups.display());
    assert_eq!(actions, [expected.as_str(), expected.as_str()], "{audit}");
    // A crash right after: the backup does not need the shop to end well.
    server.kill();
    let verified = succeed(&["verify", text(&backups)]);
    assert!(
        verified.stdout.starts_with("backup 2 of ") && verified.stdout.contains("no drift"),
        "{verified:?}"
    );
    let restored = folder.path().join("restored");
    succeed(&["restore", text(&backups), "--data", text(&restored)]);
    assert_eq!(body(&export(&restored)), body(&running));
    let again = run(&["restore", text(&backups), "--data", text(&restored)]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("not empty"), "{again:?}");
    // The restored shop sells.
    let server = Server::start(&restored, &[]);
    let lines = json!([{"product_id": "phone-a01-0-1", "quantity": 1}]);
    let order = json!({"user_id": "u", "geo_zone": "moscow", "lines": lines});
    server.client().done(&Call::new("POST", "/v1/orders").json(order).key("after"));
    assert_eq!(server.stop().code, Some(0));
    // The stopped one is backed up without a server, and only then.
    let stopped = succeed(&["backup", "--data", text(&data), "--to", text(&backups)]);
    assert!(stopped.stdout.starts_with("backup 3 of "), "{stopped:?}");
}

#[test]
fn an_archive_restores_the_shop_of_a_second() {
    let folder = TempDir::new().unwrap();
    let (data, backups) = (folder.path().join("data"), folder.path().join("backups"));
    let archive = format!("store.embedded.archive={}", folder.path().join("archive").display());
    let server = Server::start(&data, &["--demo", "--set", &archive]);
    succeed(&["backup", "--url", &url(&server), "--to", text(&backups)]);
    let line = |user: &str| {
        Call::new("PUT", format!("/v1/users/{user}/cart/lines/phone-a01-0-1")).json(json!({"quantity": 1}))
    };
    for user in ["before", "at"] {
        server.client().done(&line(user));
    }
    // A commit is archived a little after the time of its command, so the moment is that of a command in between.
    let pause = || std::thread::sleep(std::time::Duration::from_millis(50));
    pause();
    let moment = server.client().done(&line("mark"))["updated_at"].as_str().unwrap().to_owned();
    pause();
    server.client().done(&line("later"));
    server.kill();
    let target = folder.path().join("restored");
    let restored = succeed(&["restore", text(&backups), "--data", text(&target), "--to", &moment]);
    assert!(restored.stdout.contains("from the archive"), "{restored:?}");
    let server = Server::start(&target, &[]);
    let lines = |user: &str| {
        server.client().get(&format!("/v1/users/{user}/cart")).body["lines"].as_array().unwrap().len()
    };
    assert_eq!((lines("before"), lines("at"), lines("later")), (1, 1, 0));
    let refused = Server::try_start(&data, &["--set", "store.embedded.archive=/proc/none"]);
    assert!(refused.is_err_and(|ended| ended.stderr.contains("open archive")));
}

#[test]
fn a_token_without_the_role_or_a_wrong_address_is_a_clear_error() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("mw.toml");
    let token = |role: &str, token: &str| format!("[[tokens]]\nrole = \"{role}\"\ntoken = \"{token}\"\n");
    let tokens = token("operator", "operator-operator") + &token("backoffice", "backoffice-backoffice");
    fs::write(&config, tokens).unwrap();
    let server = Server::start(&folder.path().join("data"), &["--config", text(&config)]);
    let backups = folder.path().join("backups");
    let backup =
        |token: &str| run(&["backup", "--url", &url(&server), "--token", token, "--to", text(&backups)]);
    let refused = backup("backoffice-backoffice");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("403") && refused.stderr.contains("forbidden"), "{refused:?}");
    assert_eq!(backup("operator-operator").code, Some(0));
    let foreign =
        run(&["backup", "--url", &url(&server), "--token", "operator-operator", "--to", text(folder.path())]);
    assert!(foreign.stderr.contains("contains other files"), "{foreign:?}");
    server.stop();
    let gone = run(&["export", "--url", "http://127.0.0.1:1"]);
    assert_eq!(gone.code, Some(1), "{gone:?}");
    assert!(gone.stderr.contains("connect"), "{gone:?}");
    let both = run(&["export", "--url", "http://127.0.0.1:1", "--data", "x"]);
    assert_eq!(both.code, Some(2), "{both:?}");
}

#[test]
fn messages_of_the_lsm_tree_reach_the_log() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &["--set", "log.filter=debug"]);
    let ended = server.stop();
    assert!(ended.stderr.contains("fjall") || ended.stderr.contains("lsm_tree"), "{ended:?}");
}
