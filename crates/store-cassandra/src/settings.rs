//! Settings that a shop keeps from its first start on, stored beside its data.

use mw_domain::Currency;
use mw_store::StoreError;

use crate::CassandraStore;
use crate::driver::connect::StartError;
use crate::driver::statements::Access;
use crate::schema::tables::Table;

const CURRENCY: &str = "currency";

impl CassandraStore {
    /// Refuses another currency than that of the first start: stored amounts carry none.
    pub async fn keep_currency(&self, currency: Currency) -> Result<(), StartError> {
        let table = Table::Settings;
        let insert = "INSERT INTO {} (name, value) VALUES (?, ?) IF NOT EXISTS";
        let insert = self.cql.prepare(table, Access::Cas, insert).await?;
        let read = self.cql.prepare(table, Access::Serial, "SELECT value FROM {} WHERE name = ?").await?;
        // Whatever the result: the serial read below shows the stored currency. A crash here leaves it stored or not, and the
        // next start writes it again.
        self.cql.cas(&insert, (CURRENCY, currency.as_str())).await?;
        let kept: Option<(Option<String>,)> = self.cql.first(&read, (CURRENCY,)).await?;
        match kept.and_then(|(value,)| value) {
            Some(kept) if kept == currency.as_str() => Ok(()),
            Some(stored) => Err(StartError::OtherCurrency { stored, configured: currency }),
            None => Err(StoreError::Unavailable(
                "store the currency of the shop: the row is missing after the write".to_owned(),
            )
            .into()),
        }
    }

    /// The name of the cluster in its configuration.
    pub fn cluster_name(&self) -> String {
        self.cql.cluster_name()
    }
}
