//! Damaged files, or files of a newer release: a clear error, never silent loss.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use crate::client::Call;
use crate::process::{Ended, Server, run};

/// A store with the sample catalogue and an order, stopped.
fn stopped_store(more: &[&str]) -> TempDir {
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[&["--demo"], more].concat());
    let lines = json!([{"product_id": "phone-a01-0-1", "quantity": 2}]);
    let order = json!({"user_id": "u", "geo_zone": "moscow", "lines": lines});
    server.client().done(&Call::new("POST", "/v1/orders").json(order).key("k"));
    assert_eq!(server.stop().code, Some(0));
    folder
}

fn refused(data: &Path) -> Ended {
    let Err(ended) = Server::try_start(data, &[]) else { panic!("it serves {}", data.display()) };
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.stdout, "");
    ended
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0xff;
    fs::write(path, bytes).unwrap();
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, into);
        } else {
            into.push(path);
        }
    }
}

/// The largest file that matches.
fn largest(data: &Path, is_wanted: impl Fn(&Path) -> bool) -> (PathBuf, usize) {
    let mut all = Vec::new();
    files(data, &mut all);
    let sized = all.into_iter().filter(|path| is_wanted(path));
    let sized = sized.map(|path| (fs::metadata(&path).unwrap().len(), path));
    let (bytes, path) = sized.max().expect("there is such a file");
    (path, usize::try_from(bytes).unwrap())
}

#[test]
fn a_store_of_a_newer_release_is_refused_and_unchanged() {
    let folder = stopped_store(&[]);
    fs::write(folder.path().join("FORMAT"), "mobile-world 99\n").unwrap();
    let ended = refused(folder.path());
    assert!(
        ended.stderr.contains("format 99 is newer") && ended.stderr.contains("use a newer release"),
        "{ended:?}"
    );
}

#[test]
fn a_malformed_or_missing_marker_is_damage() {
    let folder = stopped_store(&[]);
    fs::write(folder.path().join("FORMAT"), "\0\0\0").unwrap();
    assert!(refused(folder.path()).stderr.contains("damaged: "));
    fs::remove_file(folder.path().join("FORMAT")).unwrap();
    assert!(refused(folder.path()).stderr.contains("damaged: "));
}

/// The journal and its used length; the rest is preallocated.
fn journal(data: &Path) -> (PathBuf, usize) {
    let (journal, _) = largest(data, |path| path.extension().is_some_and(|it| it == "jnl"));
    let bytes = fs::read(&journal).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("something was written") + 1;
    (journal, used)
}

#[test]
fn a_journal_with_a_flipped_byte_is_refused() {
    for part in [2, 10] {
        let folder = stopped_store(&[]);
        let (journal, used) = journal(folder.path());
        flip(&journal, used - used / part);
        for _ in 0..2 {
            let ended = refused(folder.path());
            assert!(ended.stderr.contains("damaged: "), "{ended:?}");
        }
    }
}

#[test]
fn a_truncated_journal_is_refused() {
    let folder = stopped_store(&[]);
    let (journal, used) = journal(folder.path());
    let whole = fs::read(&journal).unwrap();
    fs::write(&journal, &whole[..used - 200]).unwrap();
    let ended = refused(folder.path());
    assert!(ended.stderr.contains("damaged: "), "{ended:?}");
}

/// The export of the store without its header, or `None` where it reports damage.
fn readable(data: &Path) -> Option<String> {
    let exported = run(&["export", "--data", data.to_str().unwrap()]);
    if exported.code == Some(0) {
        return Some(exported.stdout.split_once('\n').unwrap().1.to_owned());
    }
    assert_eq!(exported.code, Some(1), "{exported:?}");
    assert!(exported.stderr.contains("damaged"), "{exported:?}");
    None
}

#[test]
fn a_table_file_with_a_flipped_byte_is_never_read_as_valid() {
    let folder = stopped_store(&["--set", "store.embedded.memtable=1MiB"]);
    let whole = readable(folder.path());
    assert!(whole.is_some());
    let (table, bytes) = largest(folder.path(), |path| path.parent().unwrap().ends_with("tables"));
    let mut noticed = 0;
    for at in [bytes / 10, bytes / 2, bytes - 20] {
        flip(&table, at);
        match readable(folder.path()) {
            Some(read) => assert_eq!(Some(read), whole, "byte {at}"),
            None => noticed += 1,
        }
        flip(&table, at);
    }
    assert!(noticed > 0, "no damage was noticed in {}", table.display());
    assert_eq!(readable(folder.path()), whole);
}

#[test]
fn a_server_survives_a_damaged_table_or_does_not_start() {
    let folder = stopped_store(&["--set", "store.embedded.memtable=1MiB"]);
    let (table, bytes) = largest(folder.path(), |path| path.parent().unwrap().ends_with("tables"));
    flip(&table, bytes / 2);
    match Server::try_start(folder.path(), &[]) {
        Err(ended) => assert!(ended.code == Some(1) && ended.stderr.contains("damaged: "), "{ended:?}"),
        Ok(mut server) => {
            let mut client = server.client();
            for category in ["smartphones", "cases", "laptops", "cables"] {
                let page = client.get(&format!("/v1/products?category={category}&limit=100"));
                assert!([200, 500].contains(&page.status), "{page:?}");
            }
            assert_eq!(client.get("/healthz").status, 200);
            assert!(server.is_running());
            assert_eq!(server.stop().code, Some(0));
        }
    }
}
