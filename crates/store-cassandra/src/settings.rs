//! Settings that a shop keeps from its first start on, stored beside its data.

use mw_domain::Currency;
use mw_store::{Result, StoreError};
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::connect::StartError;
use crate::driver::statements::Access;
use crate::schema::tables::Table;

const CURRENCY: &str = "currency";
/// The token of the internal listeners, where the configuration has none.
const INTERNAL_TOKEN: &str = "internal_token";

impl CassandraStore {
    /// Refuses another currency than that of the first start: stored amounts carry none.
    pub async fn keep_currency(&self, currency: Currency) -> Result<(), StartError> {
        let stored = self.keep_setting(CURRENCY, currency.as_str()).await?;
        if stored == currency.as_str() {
            return Ok(());
        }
        Err(StartError::OtherCurrency { stored, configured: currency })
    }

    /// The token that the processes share: random, from the first start on.
    pub(crate) async fn shared_internal_token(&self) -> Result<String> {
        let random = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        self.keep_setting(INTERNAL_TOKEN, &random).await
    }

    /// Stores a setting unless it is stored already; returns what is stored.
    async fn keep_setting(&self, name: &str, value: &str) -> Result<String> {
        let table = Table::Settings;
        let insert = "INSERT INTO {} (name, value) VALUES (?, ?) IF NOT EXISTS";
        let insert = self.cql.prepare(table, Access::Cas, insert).await?;
        let read = self.cql.prepare(table, Access::Serial, "SELECT value FROM {} WHERE name = ?").await?;
        let stored = async || {
            let row: Option<(Option<String>,)> = self.cql.first(&read, (name,)).await?;
            Ok::<_, StoreError>(row.and_then(|(value,)| value))
        };
        if let Some(stored) = stored().await? {
            return Ok(stored);
        }
        // Whatever the result: the serial read below shows the stored value. A crash here leaves it stored or not, and the
        // next start writes it again.
        self.cql.cas(&insert, (name, value)).await?;
        let missing = || {
            StoreError::Unavailable(format!("store the setting {name}: the row is missing after the write"))
        };
        stored().await?.ok_or_else(missing)
    }

    /// The name of the cluster in its configuration.
    pub fn cluster_name(&self) -> String {
        self.cql.cluster_name()
    }
}
