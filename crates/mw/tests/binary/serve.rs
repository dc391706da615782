//! `mw serve`: its first line, its signals, its lock, its sample catalogue.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::client::Call;
use crate::mounts::Mounts;
use crate::process::{Server, run, until};

#[test]
fn it_prints_its_address_and_stops_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = TempDir::new().unwrap();
        let server = Server::start(folder.path(), &[]);
        let expected = format!(
            "mw is serving http://{} (embedded store in {})",
            server.address,
            folder.path().display()
        );
        assert_eq!(server.greeting, expected);
        assert_eq!(server.client().get("/healthz").status, 200);
        assert_eq!(server.client().get("/readyz").status, 200);
        server.signal(signal);
        let ended = server.wait();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{ended:?}");
        assert!(ended.stderr.contains("stopped serving"), "{ended:?}");
    }
}

#[test]
fn acknowledged_writes_exist_after_a_clean_stop() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let line = Call::new("PUT", "/v1/users/u/cart/lines/p").json(json!({"quantity": 3}));
    let cart = server.client().done(&line);
    assert_eq!(server.stop().code, Some(0));
    let server = Server::start(folder.path(), &[]);
    assert_eq!(server.client().get("/v1/users/u/cart").body, cart);
}

#[test]
fn requests_in_flight_finish_before_it_stops() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let address = server.address;
    let mut slow = TcpStream::connect(address).unwrap();
    let body = r#"{"quantity":2}"#;
    let head = format!(
        "PUT /v1/users/u/cart/lines/p HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    slow.write_all(head.as_bytes()).unwrap();
    let mut reply = vec![0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    slow.read_exact(&mut reply).unwrap();
    server.signal(Signal::TERM);
    until("it no longer accepts", || TcpStream::connect(address).is_err());
    slow.write_all(body.as_bytes()).unwrap();
    let mut reply = String::new();
    slow.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert_eq!(server.wait().code, Some(0));
}

#[test]
fn a_second_signal_exits_at_once() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let address = server.address;
    let mut hanging = TcpStream::connect(address).unwrap();
    hanging
        .write_all(
            b"PUT /v1/users/u/cart/lines/p HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
              content-type: application/json\r\ncontent-length: 14\r\n\r\n",
        )
        .unwrap();
    hanging.read_exact(&mut [0; 25]).unwrap();
    server.signal(Signal::TERM);
    until("it no longer accepts", || TcpStream::connect(address).is_err());
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code, Some(1));
}

#[test]
fn a_second_process_on_the_same_data_is_refused() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().to_str().unwrap();
    let first = Server::start(folder.path(), &[]);
    let Err(second) = Server::try_start(folder.path(), &[]) else {
        panic!("two processes serve the same data")
    };
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.contains("in use by another process"), "{second:?}");
    for command in [["export"].as_slice(), &["stock", "audit"]] {
        let refused = run(&[command, &["--data", data]].concat());
        assert_eq!(refused.code, Some(1));
        assert!(refused.stderr.contains("in use by another process"), "{refused:?}");
    }
    assert_eq!(first.client().get("/readyz").status, 200);
}

#[test]
fn an_address_in_use_is_a_clear_error() {
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let first = Server::start(one.path(), &[]);
    let address = first.address.to_string();
    let Err(second) = Server::try_start(two.path(), &["--set", &format!("server.listen={address}")]) else {
        panic!("two processes serve on {address}")
    };
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.contains(&format!("listen on {address}: ")), "{second:?}");
}

#[test]
fn a_read_only_directory_is_a_clear_error() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    drop(Server::start(&data, &[]).stop());
    let mounts = Mounts::new();
    mounts.read_only(&data);
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let Err(refused) = Server::spawn(mounts.mw(&arguments)) else { panic!("a read-only store is served") };
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("not writable"), "{refused:?}");
}

#[test]
fn a_directory_with_other_files_is_not_changed() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("letter.txt"), "dear reader").unwrap();
    let Err(refused) = Server::try_start(folder.path(), &[]) else { panic!("a foreign directory is served") };
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("contains other files and no store"), "{refused:?}");
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names, ["letter.txt"]);
}

#[test]
fn the_sample_catalogue_fills_an_empty_store_only() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &["--demo"]);
    let mut client = server.client();
    let categories = client.items("/v1/categories");
    assert!(categories.len() >= 8, "{categories:?}");
    let phones = "/v1/products?category=smartphones&geo_zone=kazan&in_stock=true";
    assert!(client.items(phones).len() > 300);
    let cyrillic = "/v1/products?category=%D0%9A%D0%BD%D0%BE%D0%BF%D0%BE%D1%87%D0%BD%D1%8B%D0%B5%20%D1%82%D0%B5%D0%BB%D0%B5%D1%84%D0%BE%D0%BD%D1%8B";
    assert!(client.items(cyrillic).len() > 100);
    let first = server.stop();
    assert!(first.stderr.contains("filled the empty store with a sample catalogue"), "{first:?}");

    let again = Server::start(folder.path(), &["--demo"]).stop();
    assert!(again.stderr.contains("the store already has the sample catalogue"), "{again:?}");

    let other = TempDir::new().unwrap();
    let server = Server::start(other.path(), &[]);
    server.client().done(&Call::new("PUT", "/v1/users/u/cart/lines/p").json(json!({"quantity": 1})));
    server.stop();
    let server = Server::start(other.path(), &["--demo"]);
    assert_eq!(server.client().items("/v1/categories").len(), 0);
    let ended = server.stop();
    assert!(ended.stderr.contains("the store is not empty: not adding the sample catalogue"), "{ended:?}");
}

#[test]
fn settings_reach_the_service() {
    let folder = TempDir::new().unwrap();
    let token = "0123456789abcdef";
    let tokens = format!("tokens=[{{role=\"storefront\",token=\"{token}\"}}]");
    let server = Server::start(
        folder.path(),
        &["--set", &tokens, "--set", "shop.currency=EUR", "--set", "log.format=json"],
    );
    assert_eq!(server.client().get("/healthz").status, 200);
    assert_eq!(server.client().get("/v1/users/u/cart").status, 401);
    let ended = server.stop();
    let log: serde_json::Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(log["level"], "INFO");
    refused_currency(folder.path());
}

#[test]
fn with_a_certificate_it_serves_https_and_a_bad_one_is_a_clear_error() {
    let folder = TempDir::new().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let [certificate, key, broken] =
        ["tls.crt", "tls.key", "broken.crt"].map(|name| folder.path().join(name));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    fs::write(&broken, "-----BEGIN CERTIFICATE-----\nnonsense\n").unwrap();
    let tls = |certificate: &Path| {
        format!("server.tls={{certificate=\"{}\",key=\"{}\"}}", certificate.display(), key.display())
    };
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--set", &tls(&certificate)]);
    assert!(server.greeting.starts_with("mw is serving https://127.0.0.1:"), "{}", server.greeting);
    assert!(server.client().try_call(&Call::new("GET", "/healthz")).is_err());
    server.stop();
    let Err(refused) = Server::try_start(&data, &["--set", &tls(&broken)]) else {
        panic!("it serves nonsense")
    };
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("read certificate ") && refused.stderr.contains("broken.crt"),
        "{refused:?}"
    );
}

/// A store keeps the currency it was created with.
fn refused_currency(data: &Path) {
    let Err(refused) = Server::try_start(data, &[]) else { panic!("amounts in EUR are served as RUB") };
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("EUR") && refused.stderr.contains("shop.currency"), "{refused:?}");
}

#[test]
fn an_unpaid_order_is_cancelled_in_the_background() {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &["--set", "orders.payment_window=1s"]);
    let mut client = server.client();
    let price = json!({"amount": "10.00", "currency": "RUB"});
    let body = json!({"name": "Phone", "category": "phones", "price": price});
    client.done(&Call::new("PUT", "/v1/products/p").json(body));
    client.done(&Call::new("PUT", "/v1/products/p/stock/moscow").json(json!({"on_hand": 5})));
    let lines = json!([{"product_id": "p", "quantity": 2}]);
    let order = json!({"user_id": "u", "geo_zone": "moscow", "lines": lines});
    let placed = client.done(&Call::new("POST", "/v1/orders").json(order).key("k"));
    let path = format!("/v1/orders/{}", placed["order_id"].as_str().unwrap());
    until("the order is cancelled", || client.get(&path).body["status"] == "cancelled");
    assert_eq!(client.get("/v1/products/p/stock/moscow").body["available"], 5);
}

#[test]
fn sighup_reloads_the_tokens() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("mw.toml");
    let token = |secret: &str| format!("[[tokens]]\nrole = \"operator\"\ntoken = \"{secret}\"\n");
    let [first, second] = ["first-token-0123456", "second-token-012345"];
    fs::write(&file, token(first)).unwrap();
    let server = Server::start(&folder.path().join("data"), &["--config", file.to_str().unwrap()]);
    let status =
        |secret: &str| server.client().call(&Call::new("GET", "/v1/categories").token(secret)).status;
    assert_eq!((status(first), status(second)), (200, 401));
    fs::write(&file, token(second)).unwrap();
    server.signal(Signal::HUP);
    until("the second token is admitted", || status(second) == 200);
    assert_eq!(status(first), 401);
    let ended = server.stop();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("reloaded tokens and certificate"), "{}", ended.stderr);
}
