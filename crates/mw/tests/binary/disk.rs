//! A full disk: writes are refused, reads continue, no acknowledged write is lost.

use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use crate::client::{Call, Client, Reply};
use crate::mounts::Mounts;
use crate::process::{Server, until};

struct SmallDisk {
    mounts: Mounts,
    folder: TempDir,
}

impl SmallDisk {
    fn new(mib: u32) -> Self {
        let disk = Self { mounts: Mounts::new(), folder: TempDir::new().unwrap() };
        disk.mounts.small(disk.folder.path(), mib);
        disk
    }

    fn ballast(&self) -> PathBuf {
        self.folder.path().join("ballast")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn serve(&self, min_free_space: &str) -> Server {
        let set = format!("store.embedded.min_free_space={min_free_space}");
        let data = self.data();
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--data", path(&data), "--set", &set];
        Server::spawn(self.mounts.mw(&arguments)).unwrap_or_else(|ended| panic!("{ended:?}"))
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Carts of many lines, so that a disk fills fast.
fn put_line(client: &mut Client, at: usize) -> Reply {
    let product = "p".repeat(100);
    let path = format!("/v1/users/u{}/cart/lines/{product}{at}", at / 90);
    client.call(&Call::new("PUT", path).json(json!({"quantity": 1 + at % 9_000})))
}

/// Whether the cart has exactly what was acknowledged for these lines.
fn assert_lines(client: &mut Client, acknowledged: usize) {
    for user in 0..=acknowledged.saturating_sub(1) / 90 {
        let cart = client.get(&format!("/v1/users/u{user}/cart")).body;
        let lines = cart["lines"].as_array().unwrap();
        let expected = (user * 90..acknowledged).take(90);
        for at in expected {
            let product = format!("{}{at}", "p".repeat(100));
            let line = lines.iter().find(|line| line["product_id"] == product.as_str());
            let line = line.unwrap_or_else(|| panic!("acknowledged line {at} is gone"));
            assert_eq!(line["quantity"], 1 + at % 9_000);
        }
    }
}

/// Writes until it is refused; returns the number of acknowledged lines, from `from` on, and the refusal.
fn write_until_refused(client: &mut Client, from: usize) -> (usize, Reply) {
    for at in from..100_000 {
        let reply = put_line(client, at);
        if !reply.is_success() {
            return (at, reply);
        }
    }
    panic!("the disk is not as small as it should be");
}

#[test]
fn writes_are_refused_while_free_space_is_low() {
    let disk = SmallDisk::new(128);
    let mut server = disk.serve("64MiB");
    let mut client = server.client();
    assert_eq!(put_line(&mut client, 0).status, 200);
    disk.mounts.fill(&disk.ballast(), 32);
    let (acknowledged, refusal) = write_until_refused(&mut client, 1);
    assert_eq!((refusal.status, refusal.code()), (503, "store_unavailable"), "{refusal:?}");
    assert_eq!(client.get("/readyz").status, 503);
    assert_eq!(client.get("/healthz").status, 200);
    assert_lines(&mut client, acknowledged);
    disk.mounts.remove(&disk.ballast());
    until("writes are taken again", || put_line(&mut client, acknowledged).is_success());
    assert_eq!(client.get("/readyz").status, 200);
    assert!(server.is_running());
    assert_eq!(server.stop().code, Some(0));
}

#[test]
fn a_full_disk_loses_no_acknowledged_write() {
    let disk = SmallDisk::new(128);
    let mut server = disk.serve("0B");
    let mut client = server.client();
    assert_eq!(put_line(&mut client, 0).status, 200);
    disk.mounts.fill(&disk.ballast(), 1);
    let (acknowledged, failure) = write_until_refused(&mut client, 1);
    let expected = [(503, "store_unavailable"), (504, "outcome_unknown")];
    assert!(expected.contains(&(failure.status, failure.code())), "{failure:?}");
    assert!(server.is_running());
    assert_eq!(client.get("/healthz").status, 200);
    assert_lines(&mut client, acknowledged);
    let next = put_line(&mut client, acknowledged);
    assert_eq!((next.status, next.code()), (503, "store_unavailable"), "{next:?}");
    let ended = server.stop();
    assert!(ended.code.is_some(), "it must end by itself: {ended:?}");

    disk.mounts.remove(&disk.ballast());
    let server = disk.serve("0B");
    let mut client = server.client();
    assert_lines(&mut client, acknowledged);
    assert_eq!(put_line(&mut client, acknowledged).status, 200);
    assert_eq!(server.stop().code, Some(0));
}
