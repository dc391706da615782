//! Physical backups: consistent while the shop writes, flushes and compacts; incremental; verified; restored to a moment.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a step that fails is a test that fails"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mw_domain::{Currency, Demand, GeoZone, ProductId, ReservationId, Timestamp};
use mw_store::backup::{BackupState, BackupSummary};
use mw_store::export::Record;
use mw_store::stock::{Reserve, SetOnHand};
use mw_store::{ExportImport, Maintenance, PageRequest, Products, Stock, StoreError};
use mw_store_embedded::{BackupError, EmbeddedStore, Options, back_up_stopped, restore, verify};
use mw_testkit::builders::product;
use uuid::Uuid;

const WRITERS: u64 = 4;
const KEEP: usize = 3;

fn options(folder: &Path) -> Options {
    // Small memtables, so that tables are flushed and compacted all the time.
    Options {
        min_free_bytes: 0,
        memtable_bytes: 32 << 10,
        ..Options::new(folder, Currency::parse("RUB").unwrap())
    }
}

fn open(folder: &Path) -> EmbeddedStore {
    EmbeddedStore::open(options(folder)).unwrap()
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(1_790_000_000_000 + millis)
}

fn zone() -> GeoZone {
    GeoZone::parse("z").unwrap()
}

fn product_id(writer: u64) -> ProductId {
    ProductId::parse(&format!("p{writer}")).unwrap()
}

async fn stock(store: &EmbeddedStore, writer: u64) {
    let id = product_id(writer);
    store.put_product(product(id.as_str()).made_at(at(0)).build()).await.unwrap();
    let set = SetOnHand {
        product_id: id,
        geo_zone: zone(),
        on_hand: 1_000_000,
        expected_on_hand: None,
        op: Uuid::from_u128(u128::from(writer) + 1),
        now: at(0),
    };
    store.set_on_hand(set).await.unwrap();
}

/// The `number`th reservation of a writer: rows of several tables in one commit.
async fn reserve(store: &EmbeddedStore, writer: u64, number: u64) {
    let command = Reserve {
        reservation_id: ReservationId::new(Uuid::from_u64_pair(number + 1, writer)),
        geo_zone: zone(),
        lines: vec![Demand { product_id: product_id(writer), quantity: 1 }],
        expires_at: at(86_400_000),
        now: at(1),
        identity: None,
    };
    store.reserve(command).await.unwrap();
}

/// How many reservations of each writer there are; panics where one is missing before the last.
async fn reserved(store: &EmbeddedStore) -> Vec<u64> {
    let mut numbers = vec![BTreeSet::new(); usize::try_from(WRITERS).unwrap()];
    for record in export(store).await {
        if let Record::Reservation(reservation) = record {
            let (number, writer) = reservation.reservation_id.uuid().as_u64_pair();
            numbers[usize::try_from(writer).unwrap()].insert(number);
        }
    }
    let contiguous = |numbers: &BTreeSet<u64>| {
        let last = numbers.last().copied().unwrap_or_default();
        assert_eq!(numbers.len() as u64, last, "a reservation before the last is missing");
        last
    };
    numbers.iter().map(contiguous).collect()
}

async fn export(store: &EmbeddedStore) -> Vec<Record> {
    let export = store.export().await.unwrap();
    let (mut records, mut request) = (Vec::new(), PageRequest::first(1_000));
    loop {
        let page = export.page(request).await.unwrap();
        records.extend(page.items);
        let Some(next) = page.next else { return records };
        request = PageRequest { limit: 1_000, after: Some(next) };
    }
}

/// Takes a backup of the running store and waits for its end.
async fn back_up(store: &EmbeddedStore, to: &Path) -> BackupSummary {
    store.start_backup(to.to_owned(), KEEP).await.unwrap();
    loop {
        match store.backup_status().await.unwrap().unwrap().state {
            BackupState::Running(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            BackupState::Done(summary) => return summary,
            BackupState::Failed(error) => panic!("{error}"),
        }
    }
}

async fn check_audit(store: &EmbeddedStore) {
    let audit = store.audit(&|_| ()).await.unwrap();
    assert_eq!(audit.drifts, []);
}

fn restore_to(backups: &Path, data: &Path) -> EmbeddedStore {
    restore(backups, data, None, None, &|_| ()).unwrap();
    open(data)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_under_writes_has_all_that_was_acknowledged_before_it_and_no_half_commit() {
    let folder = tempfile::tempdir().unwrap();
    let backups = folder.path().join("backups");
    let store = Arc::new(open(&folder.path().join("data")));
    let (is_over, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    for writer in 0..WRITERS {
        stock(&store, writer).await;
    }
    let counts: Arc<Vec<AtomicU64>> = Arc::new((0..WRITERS).map(|_| AtomicU64::new(0)).collect());
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (store, is_over, counts) = (Arc::clone(&store), Arc::clone(&is_over), Arc::clone(&counts));
        let acknowledged = Arc::clone(&acknowledged);
        writers.spawn(async move {
            let count = &counts[usize::try_from(writer).unwrap()];
            while !is_over.load(Ordering::Relaxed) {
                reserve(&store, writer, count.load(Ordering::SeqCst)).await;
                count.fetch_add(1, Ordering::SeqCst);
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    for round in 1..=6_u64 {
        while acknowledged.load(Ordering::SeqCst) < round * 400 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        let summary = back_up(&store, &backups).await;
        assert_eq!(summary.number, round);
        assert!(summary.progress.tables > 0, "{summary:?}");
        let data = folder.path().join(format!("restored-{round}"));
        let restored = restore_to(&backups, &data);
        for (before, restored) in before.iter().zip(reserved(&restored).await) {
            assert!(restored >= *before, "{restored} of {before} acknowledged reservations");
        }
        check_audit(&restored).await;
        // The restored shop sells.
        stock(&restored, 9).await;
    }
    is_over.store(true, Ordering::Relaxed);
    writers.join_all().await;
    let verified = verify(&backups, &|_| ()).unwrap();
    assert_eq!((verified.backup, verified.audit.drifts), (6, Vec::new()));
}

/// The number of the journal that fjall began last.
fn newest_journal(data: &Path) -> u64 {
    let names = fs::read_dir(data.join("db")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.to_str()?.strip_suffix(".jnl")?.parse().ok()).max().unwrap()
}

/// A change of a description as long as it may be, with bytes that do not compress.
async fn fill_journal(store: &EmbeddedStore, number: u64) {
    let text: String = (0..20_000_u64)
        .map(|place| {
            let mixed = (number * 20_000 + place).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            char::from(b'!' + u8::try_from((mixed >> 40) % 90).unwrap())
        })
        .collect();
    let id = format!("filler{}", number % 50);
    store.put_product(product(&id).description(&text).made_at(at(0)).build()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_while_journals_rotate_lack_no_acknowledged_write() {
    const ROTATIONS: u64 = 2;
    let folder = tempfile::tempdir().unwrap();
    let (data, backups) = (folder.path().join("data"), folder.path().join("backups"));
    // Two rows fill a memtable of the other tests: two journals would become thousands of tables, and compactions slow.
    let options = Options { memtable_bytes: 1 << 20, ..options(&data) };
    let store = Arc::new(EmbeddedStore::open(options).unwrap());
    stock(&store, 0).await;
    let first_journal = newest_journal(&data);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let writer = tokio::spawn({
        let (store, data, acknowledged) = (Arc::clone(&store), data.clone(), Arc::clone(&acknowledged));
        async move {
            let mut number = 0;
            while newest_journal(&data) < first_journal + ROTATIONS {
                for _ in 0..20 {
                    fill_journal(&store, number).await;
                    reserve(&store, 0, number).await;
                    number += 1;
                    acknowledged.store(number, Ordering::SeqCst);
                }
            }
        }
    });
    let (mut rounds, mut journals) = (0, BTreeSet::new());
    while !writer.is_finished() {
        let before = acknowledged.load(Ordering::SeqCst);
        back_up(&store, &backups).await;
        rounds += 1;
        journals.insert(newest_journal(&data));
        let restored_path = folder.path().join("restored");
        let restored = restore_to(&backups, &restored_path);
        let found = reserved(&restored).await[0];
        assert!(found >= before, "backup {rounds}: {found} of {before} acknowledged reservations");
        drop(restored);
        fs::remove_dir_all(&restored_path).unwrap();
    }
    writer.await.unwrap();
    assert!(rounds > 1 && journals.len() > 1, "{rounds} backups, journals {journals:?}");
    assert_eq!(verify(&backups, &|_| ()).unwrap().audit.drifts, []);
}

#[tokio::test]
async fn a_further_backup_adds_only_new_tables_and_old_ones_go() {
    let folder = tempfile::tempdir().unwrap();
    let (data, backups) = (folder.path().join("data"), folder.path().join("backups"));
    let store = open(&data);
    stock(&store, 0).await;
    for number in 0..600 {
        reserve(&store, 0, number).await;
    }
    drop(store);
    // Opening and closing flushes what the journals hold; from then on nothing changes.
    drop(open(&data));
    let first = back_up_stopped(&data, None, &backups, KEEP, &|_| ()).unwrap();
    assert!(first.progress.tables > 0 && first.progress.new_tables > 0, "{first:?}");
    let second = back_up_stopped(&data, None, &backups, KEEP, &|_| ()).unwrap();
    assert_eq!((second.progress.new_tables, second.progress.tables), (0, first.progress.tables));
    for _ in 0..3 {
        let store = open(&data);
        back_up(&store, &backups).await;
    }
    let numbers: Vec<String> = fs::read_dir(&backups)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with('0'))
        .collect::<BTreeSet<String>>()
        .into_iter()
        .collect();
    assert_eq!(numbers, ["00000003", "00000004", "00000005"]);
    assert_eq!(verify(&backups, &|_| ()).unwrap().backup, 5);
    let restored = restore_to(&backups, &folder.path().join("restored"));
    assert_eq!(reserved(&restored).await[0], 600);
}

/// The tables of a folder of backups.
fn tables(backups: &Path) -> Vec<PathBuf> {
    fs::read_dir(backups.join("tables")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn every_damaged_or_missing_file_of_a_backup_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let (data, backups) = (folder.path().join("data"), folder.path().join("backups"));
    let store = open(&data);
    stock(&store, 0).await;
    for number in 0..300 {
        reserve(&store, 0, number).await;
    }
    back_up(&store, &backups).await;
    drop(store);
    verify(&backups, &|_| ()).unwrap();
    let journals = fs::read_dir(backups.join("00000001/db")).unwrap().map(|entry| entry.unwrap().path());
    let journal = journals.filter(|path| path.extension().is_some_and(|it| it == "jnl")).max().unwrap();
    for path in tables(&backups).into_iter().chain([journal, backups.join("00000001/MANIFEST")]) {
        let content = fs::read(&path).unwrap();
        let mut damaged = content.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 0x10;
        // Not in place: the table is a hard link to that of the shop.
        fs::remove_file(&path).unwrap();
        for broken in [Some(&damaged), None] {
            if let Some(bytes) = broken {
                fs::write(&path, bytes).unwrap();
            } else {
                fs::remove_file(&path).unwrap();
            }
            assert!(verify(&backups, &|_| ()).is_err(), "{} is broken", path.display());
            let target = folder.path().join("restored");
            assert!(restore(&backups, &target, None, None, &|_| ()).is_err(), "{}", path.display());
            let refused = EmbeddedStore::open(options(&target)).map(drop);
            assert!(refused.is_err() || fs::read_dir(&target).is_err(), "half a restore is not served");
            let _ = fs::remove_dir_all(&target);
        }
        fs::write(&path, content).unwrap();
    }
    verify(&backups, &|_| ()).unwrap();
}

#[tokio::test]
async fn an_interrupted_backup_leaves_the_one_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (data, backups) = (folder.path().join("data"), folder.path().join("backups"));
    let store = open(&data);
    stock(&store, 0).await;
    reserve(&store, 0, 0).await;
    back_up(&store, &backups).await;
    // What a crash leaves: a folder without a manifest, and a table that no backup names.
    fs::create_dir_all(backups.join("00000002/db")).unwrap();
    fs::write(backups.join("00000002/db/1.jnl"), "half").unwrap();
    fs::write(backups.join("tables/00000000000000000000000000000000.partial"), "half").unwrap();
    let restored = restore_to(&backups, &folder.path().join("restored"));
    assert_eq!(reserved(&restored).await[0], 1);
    assert_eq!(back_up(&store, &backups).await.number, 3);
    assert!(!backups.join("00000002").exists());
    assert!(tables(&backups).iter().all(|path| path.extension().is_none()));
}

#[tokio::test]
async fn only_a_new_or_a_backup_directory_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let allowed = folder.path().join("allowed");
    fs::create_dir_all(&allowed).unwrap();
    let store =
        EmbeddedStore::open(Options { backups_below: Some(allowed.clone()), ..options(&data) }).unwrap();
    let foreign = allowed.join("documents");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("letter.txt"), "dear").unwrap();
    let link = allowed.join("link");
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    for refused in [
        foreign.clone(),
        PathBuf::from("relative"),
        allowed.join("../elsewhere"),
        folder.path().join("elsewhere"),
        link.join("elsewhere"),
    ] {
        let started = store.start_backup(refused.clone(), KEEP).await;
        assert!(matches!(started, Err(StoreError::Refused(_))), "{}: {started:?}", refused.display());
    }
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
    back_up(&store, &allowed.join("shop")).await;
    drop(store);
    let inside = back_up_stopped(&data, None, &data.join("backups"), KEEP, &|_| ());
    assert!(matches!(inside, Err(BackupError::Misplaced(_))), "{inside:?}");
}

#[tokio::test]
async fn a_served_directory_is_backed_up_only_by_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let (data, backups) = (folder.path().join("data"), folder.path().join("backups"));
    let store = open(&data);
    let taken = back_up_stopped(&data, None, &backups, KEEP, &|_| ());
    assert!(matches!(taken, Err(BackupError::InUse(_))), "{taken:?}");
    drop(store);
    back_up_stopped(&data, None, &backups, KEEP, &|_| ()).unwrap();
    let occupied = restore(&backups, &data, None, None, &|_| ());
    assert!(matches!(occupied, Err(BackupError::NotEmpty(_))), "{occupied:?}");
}

/// A moment between two commits.
fn moment() -> Timestamp {
    std::thread::sleep(Duration::from_millis(3));
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let now = Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap());
    std::thread::sleep(Duration::from_millis(3));
    now
}

#[tokio::test]
async fn an_archive_restores_the_shop_of_any_moment_after_a_backup() {
    let folder = tempfile::tempdir().unwrap();
    let (data, archive) = (folder.path().join("data"), folder.path().join("archive"));
    let backups = folder.path().join("backups");
    let open = || EmbeddedStore::open(Options { archive: Some(archive.clone()), ..options(&data) }).unwrap();
    let mut moments = Vec::new();
    let mut store = open();
    stock(&store, 0).await;
    let before_backup = moment();
    for number in 0..60 {
        if number == 20 {
            back_up(&store, &backups).await;
        }
        if number % 15 == 0 {
            // Restarts are no gap.
            drop(store);
            store = open();
        }
        reserve(&store, 0, number).await;
        moments.push(moment());
    }
    let last = export(&store).await;
    for (number, restored) in [(20, 21), (31, 32), (59, 60)] {
        let target = folder.path().join(format!("to-{number}"));
        let outcome = restore(&backups, &target, Some(moments[number]), None, &|_| ()).unwrap();
        let shop = EmbeddedStore::open(options(&target)).unwrap();
        assert_eq!(reserved(&shop).await[0], restored, "{outcome:?}");
        check_audit(&shop).await;
    }
    let whole = EmbeddedStore::open(options(&folder.path().join("to-59"))).unwrap();
    assert_eq!(export(&whole).await, last);
    let early = restore(&backups, &folder.path().join("early"), Some(before_backup), None, &|_| ());
    assert!(matches!(early, Err(BackupError::OutOfReach { .. })), "{early:?}");
    // This archive goes back to the first commit, so it needs no backup.
    let alone = restore(&archive, &folder.path().join("alone"), Some(moments[5]), None, &|_| ()).unwrap();
    assert_eq!((alone.backup, alone.replayed), (0, alone.commit_sequence));
    let shop = EmbeddedStore::open(options(&folder.path().join("alone"))).unwrap();
    assert_eq!(reserved(&shop).await[0], 6);
    drop(shop);
    // A restored shop has another future: it does not write into the archive of the first.
    let restored = Options { archive: Some(archive.clone()), ..options(&folder.path().join("alone")) };
    assert!(EmbeddedStore::open(restored).is_err());
}

#[tokio::test]
async fn a_gap_in_an_archive_is_never_restored_over() {
    let folder = tempfile::tempdir().unwrap();
    let (data, archive) = (folder.path().join("data"), folder.path().join("archive"));
    let backups = folder.path().join("backups");
    let archived =
        || EmbeddedStore::open(Options { archive: Some(archive.clone()), ..options(&data) }).unwrap();
    let store = archived();
    stock(&store, 0).await;
    reserve(&store, 0, 0).await;
    back_up(&store, &backups).await;
    drop(store);
    let store = EmbeddedStore::open(options(&data)).unwrap();
    reserve(&store, 0, 1).await;
    drop(store);
    let store = archived();
    reserve(&store, 0, 2).await;
    let over = restore(&backups, &folder.path().join("over"), Some(moment()), None, &|_| ());
    assert!(matches!(over, Err(BackupError::OutOfReach { .. })), "{over:?}");
    // A backup from after the gap closes it.
    back_up(&store, &backups).await;
    reserve(&store, 0, 3).await;
    let target = folder.path().join("restored");
    restore(&backups, &target, Some(moment()), None, &|_| ()).unwrap();
    assert_eq!(reserved(&EmbeddedStore::open(options(&target)).unwrap()).await[0], 4);
}
