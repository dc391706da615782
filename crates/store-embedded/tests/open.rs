//! Opening a data directory: which directories are refused, and the message for the operator.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use mw_domain::Currency;
use mw_store::ExportImport;
use mw_store::export::Checkpoint;
use mw_store_embedded::{EmbeddedStore, OpenError, Options};

fn options(path: &Path) -> Options {
    Options { min_free_bytes: 0, ..Options::new(path, Currency::parse("RUB").unwrap()) }
}

fn refusal(path: &Path) -> String {
    EmbeddedStore::open(options(path)).map(drop).unwrap_err().to_string()
}

#[tokio::test]
async fn a_new_directory_is_created_and_opens_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/data");
    for _ in 0..2 {
        let store = EmbeddedStore::open(options(&path)).unwrap();
        assert!(store.is_empty().await.unwrap());
    }
}

#[test]
fn a_directory_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let _store = EmbeddedStore::open(options(folder.path())).unwrap();
    let refused = EmbeddedStore::open(options(folder.path())).map(drop);
    assert!(matches!(refused, Err(OpenError::Locked(_))), "{refused:?}");
}

#[test]
fn a_directory_of_a_newer_release_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(EmbeddedStore::open(options(folder.path())).unwrap());
    fs::write(folder.path().join("FORMAT"), "mobile-world 3\n").unwrap();
    assert!(refusal(folder.path()).contains("format 3 is newer than format 2 of this release"));
}

#[test]
fn a_directory_without_a_readable_format_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    drop(EmbeddedStore::open(options(folder.path())).unwrap());
    fs::write(folder.path().join("FORMAT"), "something else").unwrap();
    assert!(refusal(folder.path()).contains("damaged: "));
    fs::remove_file(folder.path().join("FORMAT")).unwrap();
    assert!(refusal(folder.path()).contains("file FORMAT is missing"));
}

#[test]
fn a_directory_with_other_files_is_refused_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.txt"), "precious").unwrap();
    assert!(refusal(folder.path()).contains("contains other files and no store"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_store_keeps_its_currency() {
    let folder = tempfile::tempdir().unwrap();
    drop(EmbeddedStore::open(options(folder.path())).unwrap());
    let euro = Options { currency: Currency::parse("EUR").unwrap(), ..options(folder.path()) };
    let refused = EmbeddedStore::open(euro).map(drop).unwrap_err().to_string();
    assert!(refused.contains("amounts are stored in RUB, shop.currency is EUR"), "{refused}");
}

#[test]
fn a_path_that_is_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    assert!(refusal(&path).contains("open data directory"));
}

#[test]
fn a_directory_that_may_not_be_written_is_refused() {
    // Root may write everywhere except to a file system without regular files.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("closed");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o500)).unwrap();
    let path = if rustix::process::geteuid().is_root() { Path::new("/proc/mw-data") } else { path.as_path() };
    let refused = EmbeddedStore::open(options(path)).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::NotWritable { .. } | OpenError::Io { .. }), "{refused}");
}

#[test]
fn a_damaged_version_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(EmbeddedStore::open(options(folder.path())).unwrap());
    let version = folder.path().join("db/version");
    assert!(version.exists(), "fjall stores its version in this file");
    fs::write(&version, "nonsense").unwrap();
    assert!(refusal(folder.path()).contains("damaged: "));
}

#[tokio::test]
async fn a_journal_that_lost_synced_batches_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(options(folder.path())).unwrap();
    let checkpoint = |done| Checkpoint { import: "x".into(), done };
    for done in 0..5 {
        store.import(Vec::new(), checkpoint(done)).await.unwrap();
    }
    store.close();
    drop(store);

    let journal = fs::read_dir(folder.path().join("db"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "jnl"))
        .unwrap();
    let bytes = fs::read(&journal).unwrap();
    let key = b"commit_sequence";
    let last_batch = bytes.windows(key.len()).rposition(|window| window == key).unwrap();
    fs::write(&journal, &bytes[..last_batch]).unwrap();
    let refused = refusal(folder.path());
    assert!(
        refused.contains("commit sequence number is 4, was 5: acknowledged writes are lost"),
        "{refused}"
    );
}
