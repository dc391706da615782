//! A sample shop to try things on: `mw serve --demo`.
//!
//! It goes in as an import with a checkpoint, so that a fill that was interrupted is finished by the next one.

mod catalogue;
mod families;

use anyhow::{Context, Result};
use mw_domain::Timestamp;
use mw_store::Records;
use mw_store::records::Checkpoint;

/// Names the import; changes with the catalogue.
const IMPORT: &str = "demo-1";
/// Records written together.
const BATCH: usize = 500;

/// What became of the wish for a sample catalogue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    Products(usize),
    /// From an earlier start.
    Already,
    /// The store holds something else and was left as it is.
    NotEmpty,
}

pub(crate) async fn fill(store: &dyn Records, now: Timestamp) -> Result<Filled> {
    let done = store.import_progress(IMPORT).await.context("look for a sample catalogue")?;
    if done == 0 && !store.is_empty().await.context("look whether the store is empty")? {
        return Ok(Filled::NotEmpty);
    }
    let items = catalogue::items();
    let records: Vec<_> = items.iter().flat_map(|item| item.records(now)).collect();
    let mut done = usize::try_from(done).unwrap_or(usize::MAX);
    if done >= records.len() {
        return Ok(Filled::Already);
    }
    for batch in records.get(done..).unwrap_or_default().chunks(BATCH) {
        done += batch.len();
        let checkpoint = Checkpoint { import: IMPORT.to_owned(), done: done as u64 };
        store.import(batch.to_vec(), checkpoint).await.context("write the sample catalogue")?;
    }
    Ok(Filled::Products(items.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_domain::{Category, GeoZone};
    use mw_store::model::Model;
    use mw_store::products::CategoryQuery;
    use mw_store::records::Record;
    use mw_store::{Freshness, PageRequest, Products, Stock};

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    #[tokio::test]
    async fn an_empty_store_is_filled_once_and_adds_up() {
        let store = Model::new();
        let Filled::Products(products) = fill(&store, NOW).await.unwrap() else {
            panic!("the store was empty");
        };
        assert!((2_500..4_000).contains(&products), "{products}");
        assert_eq!(fill(&store, NOW).await.unwrap(), Filled::Already);
        let categories = store.categories(PageRequest::first(100)).await.unwrap().items;
        assert!(categories.len() >= 8, "{categories:?}");
        assert!(categories.contains(&Category::parse("Кнопочные телефоны").unwrap()));
        let audit = store.audit(&|_| {}).await.unwrap();
        assert!(audit.figures > 3 * products as u64 && audit.drifts.is_empty());
    }

    #[tokio::test]
    async fn an_interrupted_fill_is_finished() {
        let (whole, store) = (Model::new(), Model::new());
        fill(&whole, NOW).await.unwrap();
        let first: Vec<Record> = catalogue::items()[0].records(NOW);
        let checkpoint = Checkpoint { import: IMPORT.to_owned(), done: first.len() as u64 };
        store.import(first, checkpoint).await.unwrap();
        assert!(matches!(fill(&store, NOW).await.unwrap(), Filled::Products(_)));
        let all = |store: Model| async move {
            let export = store.export().await.unwrap();
            export.page(PageRequest::first(100_000)).await.unwrap().items
        };
        assert_eq!(all(store).await, all(whole).await);
    }

    #[tokio::test]
    async fn a_store_with_something_in_it_is_left_alone() {
        let store = Model::new();
        let Record::Product(product) = catalogue::items()[0].records(NOW).swap_remove(0) else {
            panic!("an item begins with its card");
        };
        store.put_product(product).await.unwrap();
        assert_eq!(fill(&store, NOW).await.unwrap(), Filled::NotEmpty);
    }

    #[tokio::test]
    async fn shelves_have_prices_and_stock_to_choose_from() {
        let store = Model::new();
        fill(&store, NOW).await.unwrap();
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
            let listed = store.category(&query, Freshness::Full, NOW, page).await.unwrap().items;
            assert!(listed.len() > 300, "{zone}: {}", listed.len());
            let prices: std::collections::BTreeSet<_> = listed.iter().map(|it| it.product.price).collect();
            assert!(prices.len() > 100, "{zone}: {}", prices.len());
        }
    }
}
