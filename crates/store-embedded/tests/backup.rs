//! A backup of an old shop: bounded records, and a restore that is the same shop.

#![expect(clippy::unwrap_used, reason = "a step that fails is a test that fails")]

use mw_domain::stock::{Cause, Delta, Movement};
use mw_domain::{Currency, GeoZone, Level, ProductId, Timestamp, ZoneStock};
use mw_store::export::{Checkpoint, LEDGER_PART_WEIGHT, Record, ledger_weight};
use mw_store::{ExportImport, PageRequest, Stock};
use mw_store_embedded::{EmbeddedStore, Options};
use uuid::Uuid;

fn open(folder: &std::path::Path) -> EmbeddedStore {
    let options = Options { min_free_bytes: 0, ..Options::new(folder, Currency::parse("RUB").unwrap()) };
    EmbeddedStore::open(options).unwrap()
}

/// A stock level whose ledger has so many movements of one unit each.
fn busy_stock(name: &str, movements: u32) -> Record {
    let at = |number: u32| Timestamp::from_millis(1_790_000_000_000 + i64::from(number));
    let ledger = (0..movements).map(|number| Movement {
        at: at(number),
        op: Uuid::from_u128(u128::from(number) + 1),
        cause: Cause::Adjust,
        delta: Delta { on_hand: 1, reserved: 0 },
        note: Some("delivery".to_owned()),
    });
    let stock = ZoneStock {
        product_id: ProductId::parse(name).unwrap(),
        geo_zone: GeoZone::parse("z").unwrap(),
        level: Level { on_hand: u64::from(movements), reserved: 0 },
        updated_at: at(movements),
    };
    Record::Stock { stock, ledger: ledger.collect() }
}

async fn import(store: &EmbeddedStore, records: Vec<Record>) {
    store.import(records, Checkpoint { import: "x".into(), done: 1 }).await.unwrap();
}

async fn export(store: &EmbeddedStore, limit: usize) -> Vec<Record> {
    let export = store.export().await.unwrap();
    let (mut records, mut request) = (Vec::new(), PageRequest::first(limit));
    loop {
        let page = export.page(request).await.unwrap();
        records.extend(page.items);
        let Some(next) = page.next else { return records };
        request = PageRequest { limit, after: Some(next) };
    }
}

fn weight(record: &Record) -> usize {
    match record {
        Record::Stock { ledger, .. } | Record::Ledger { ledger, .. } => {
            ledger.iter().map(ledger_weight).sum()
        }
        _ => 0,
    }
}

#[tokio::test]
async fn a_long_ledger_is_exported_in_bounded_parts_and_restores() {
    let folder = tempfile::tempdir().unwrap();
    let from = open(&folder.path().join("from"));
    import(&from, vec![busy_stock("a", 3), busy_stock("b", 40_000), busy_stock("c", 2)]).await;
    let records = export(&from, 500).await;
    assert!(records.len() > 4, "{} records", records.len());
    for record in &records {
        assert!(weight(record) < 2 * LEDGER_PART_WEIGHT);
    }
    for limit in [1, 2] {
        assert_eq!(export(&from, limit).await, records, "in pages of {limit}");
    }

    let to = open(&folder.path().join("to"));
    for record in records.clone() {
        import(&to, vec![record]).await;
    }
    assert_eq!(export(&to, 500).await, records);
    let audit = to.audit(&|_| ()).await.unwrap();
    assert_eq!((audit.levels, audit.movements, audit.drifts), (3, 40_005, Vec::new()));
}
