//! A sample catalogue: `mw serve --demo`.
//!
//! It is written as an import with a checkpoint, so that the next start finishes an interrupted fill.

mod catalogue;
mod families;

use anyhow::{Context, Result};
use mw_shop::{Seeded, Shop};

/// Names the import; changes with the catalogue.
const IMPORT: &str = "demo-1";

/// The result of filling the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    Products(usize),
    /// From an earlier start.
    Already,
    /// The store holds other data and was not changed.
    NotEmpty,
}

pub(crate) async fn fill(shop: &Shop) -> Result<Filled> {
    let items = catalogue::items();
    let records = |now| items.iter().flat_map(|item| item.records(now)).collect();
    match shop.seed(IMPORT, records).await.context("fill the store with the sample catalogue")? {
        Seeded::Filled => Ok(Filled::Products(items.len())),
        Seeded::Already => Ok(Filled::Already),
        Seeded::NotEmpty => Ok(Filled::NotEmpty),
    }
}

/// Fills a store as a shop whose clock shows `now`.
#[cfg(test)]
pub(crate) async fn fill_store(
    store: &std::sync::Arc<mw_store::model::Model>,
    now: mw_domain::Timestamp,
) -> Result<Filled> {
    let store: mw_store::SharedStore = std::sync::Arc::<mw_store::model::Model>::clone(store);
    fill(&mw_testkit::builders::shop(store, &mw_testkit::FakeClock::at(now))).await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use mw_domain::{Category, GeoZone, Timestamp};
    use mw_store::export::{Checkpoint, Record};
    use mw_store::model::Model;
    use mw_store::products::CategoryQuery;
    use mw_store::{ExportImport, Freshness, PageRequest, Products, Stock};

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    #[tokio::test]
    async fn an_empty_store_is_filled_once_and_its_ledger_adds_up() {
        let store = Arc::new(Model::new());
        let Filled::Products(products) = fill_store(&store, NOW).await.unwrap() else {
            panic!("the store was empty");
        };
        assert!((2_500..4_000).contains(&products), "{products}");
        assert_eq!(fill_store(&store, NOW).await.unwrap(), Filled::Already);
        let categories = store.categories(PageRequest::first(100)).await.unwrap().items;
        assert!(categories.len() >= 8, "{categories:?}");
        assert!(categories.contains(&Category::parse("Кнопочные телефоны").unwrap()));
        let audit = store.audit(&|_| {}).await.unwrap();
        assert!(audit.levels > 3 * products as u64 && audit.drifts.is_empty());
    }

    #[tokio::test]
    async fn an_interrupted_fill_is_finished() {
        let (whole, store) = (Arc::new(Model::new()), Arc::new(Model::new()));
        fill_store(&whole, NOW).await.unwrap();
        let first: Vec<Record> = catalogue::items()[0].records(NOW);
        let checkpoint = Checkpoint { import: IMPORT.to_owned(), done: first.len() as u64 };
        store.import(first, checkpoint).await.unwrap();
        assert!(matches!(fill_store(&store, NOW).await.unwrap(), Filled::Products(_)));
        let all = |store: Arc<Model>| async move {
            let export = store.export().await.unwrap();
            export.page(PageRequest::first(100_000)).await.unwrap().items
        };
        assert_eq!(all(store).await, all(whole).await);
    }

    #[tokio::test]
    async fn a_store_with_data_is_not_changed() {
        let store = Arc::new(Model::new());
        let Record::Product(product) = catalogue::items()[0].records(NOW).swap_remove(0) else {
            panic!("an item begins with its product");
        };
        store.put_product(product).await.unwrap();
        assert_eq!(fill_store(&store, NOW).await.unwrap(), Filled::NotEmpty);
    }

    #[tokio::test]
    async fn categories_have_various_prices_and_stock() {
        let store = Arc::new(Model::new());
        fill_store(&store, NOW).await.unwrap();
        for zone in ["moscow", "spb", "kazan", "novosibirsk"] {
            let query = CategoryQuery {
                category: Category::parse("smartphones").unwrap(),
                min_price: None,
                max_price: None,
                descending: false,
                geo_zone: Some(GeoZone::parse(zone).unwrap()),
                in_stock: true,
            };
            let page = PageRequest::first(1_000);
            let listed = store.category(&query, Freshness::Latest, NOW, page).await.unwrap().items;
            assert!(listed.len() > 300, "{zone}: {}", listed.len());
            let prices: std::collections::BTreeSet<_> = listed.iter().map(|it| it.product.price).collect();
            assert!(prices.len() > 100, "{zone}: {}", prices.len());
        }
    }
}
