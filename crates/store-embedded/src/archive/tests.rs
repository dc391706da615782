//! What a crash between the archive and the journal leaves.

use std::path::Path;

use fjall::Slice;

use super::*;

const STORE: &str = "store-1";

fn append(archive: &mut Archive, sequence: u64) {
    archive.add(Table::Products, &Slice::from(b"key"), Some(&Slice::from(b"value")));
    archive.append(sequence).unwrap();
}

fn sequences(path: &Path) -> Vec<u64> {
    let mut found = Vec::new();
    for (_, segment) in segments(path).unwrap() {
        let mut groups = GroupReader::open(&segment).unwrap();
        while let Some(group) = groups.next_group().unwrap() {
            found.push(group.sequence);
        }
    }
    found
}

#[test]
fn a_group_that_was_never_committed_is_removed_by_the_next_open() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = Archive::open(folder.path(), STORE, 0).unwrap();
    for sequence in 1..=3 {
        append(&mut archive, sequence);
    }
    drop(archive);
    let mut archive = Archive::open(folder.path(), STORE, 2).unwrap();
    append(&mut archive, 3);
    drop(archive);
    assert_eq!(sequences(folder.path()), [1, 2, 3]);
}

#[test]
fn a_half_written_group_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = Archive::open(folder.path(), STORE, 0).unwrap();
    append(&mut archive, 1);
    append(&mut archive, 2);
    drop(archive);
    let (_, segment) = segments(folder.path()).unwrap().pop().unwrap();
    let length = segment.metadata().unwrap().len();
    File::options().write(true).open(&segment).unwrap().set_len(length - 3).unwrap();
    let mut archive = Archive::open(folder.path(), STORE, 1).unwrap();
    append(&mut archive, 2);
    drop(archive);
    assert_eq!(sequences(folder.path()), [1, 2]);
}

#[test]
fn a_store_that_went_back_in_time_does_not_overwrite_its_archive() {
    let folder = tempfile::tempdir().unwrap();
    let mut archive = Archive::open(folder.path(), STORE, 0).unwrap();
    for sequence in 1..=4 {
        append(&mut archive, sequence);
    }
    drop(archive);
    let refused = Archive::open(folder.path(), STORE, 2).map(drop).unwrap_err();
    assert!(refused.contains("older copy"), "{refused}");
    assert_eq!(sequences(folder.path()), [1, 2, 3, 4]);
}

#[test]
fn an_archive_belongs_to_one_store_and_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::open(folder.path(), STORE, 0).unwrap();
    assert!(Archive::open(folder.path(), STORE, 0).is_err(), "it is locked");
    drop(archive);
    assert!(Archive::open(folder.path(), "store-2", 0).is_err());
    Archive::open(folder.path(), STORE, 0).map(drop).unwrap();
    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("letter.txt"), "dear").unwrap();
    assert!(Archive::open(foreign.path(), STORE, 0).is_err());
}
