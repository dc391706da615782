//! Settings that a shop keeps from its first start on, stored beside its data.

use mongodb::bson::doc;
use mongodb::options::ReturnDocument;
use mw_domain::Currency;
use mw_store::StoreError;

use crate::driver::certainty;
use crate::{MongoStore, StartError};

const CURRENCY: &str = "currency";

impl MongoStore {
    /// Refuses another currency than that of the first start: stored amounts carry none.
    pub async fn keep_currency(&self, currency: Currency) -> Result<(), StartError> {
        // A crash here leaves the setting stored or not; the next start stores it again.
        let stored = self
            .collections
            .settings
            .find_one_and_update(
                doc! { "_id": CURRENCY },
                doc! { "$setOnInsert": { "value": currency.as_str() } },
            )
            .upsert(true)
            .return_document(ReturnDocument::After)
            .await
            .map_err(|error| certainty::of_read(&error))?;
        let value = stored.as_ref().and_then(|setting| setting.get_str("value").ok());
        match value {
            Some(value) if value == currency.as_str() => Ok(()),
            Some(value) => Err(StartError::OtherCurrency { stored: value.to_owned(), configured: currency }),
            None => Err(StoreError::Corrupt(format!("the setting {CURRENCY} has no value")).into()),
        }
    }
}
