//! What the shop was set up with, kept beside its data.

use mw_domain::Currency;
use mw_store::StoreError;

use crate::CassandraStore;
use crate::connect::StartError;
use crate::cql::Access;
use crate::tables::Table;

const CURRENCY: &str = "currency";

impl CassandraStore {
    /// Amounts carry no currency, so a shop keeps the one that it was first opened with.
    pub async fn keep_currency(&self, currency: Currency) -> Result<(), StartError> {
        let table = Table::Settings;
        let insert = "INSERT INTO {} (name, value) VALUES (?, ?) IF NOT EXISTS";
        let insert = self.cql.prepare(table, Access::Cas, insert).await?;
        let read = self.cql.prepare(table, Access::Serial, "SELECT value FROM {} WHERE name = ?").await?;
        // Whatever became of it, the row tells.
        self.cql.cas(&insert, (CURRENCY, currency.as_str())).await?;
        let kept: Option<(Option<String>,)> = self.cql.first(&read, (CURRENCY,)).await?;
        match kept.and_then(|(value,)| value) {
            Some(kept) if kept == currency.as_str() => Ok(()),
            Some(stored) => Err(StartError::OtherCurrency { stored, configured: currency }),
            None => {
                Err(StoreError::Unavailable("the shop's currency could not be written".to_owned()).into())
            }
        }
    }

    /// As the cluster calls itself.
    pub fn cluster_name(&self) -> String {
        self.cql.cluster_name()
    }
}
