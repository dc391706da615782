//! Export of idempotency keys with their stored outcomes.

use mw_domain::{IdempotencyKey, OrderId};
use mw_store::export::Record;
use mw_store::idempotency::{Outcome, StoredOutcome};
use mw_store::{Fingerprint, RequestIdentity, Result, StoreError};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;
use uuid::Uuid;

use crate::CassandraStore;
use crate::driver::scan::{self, Scan};
use crate::driver::statements::Cql;
use crate::driver::time::from_cql;
use crate::export::Spool;
use crate::schema::tables::Table;

type ScannedKey = (String, Option<Vec<u8>>, Option<Uuid>, Option<CqlTimestamp>, Option<Vec<u8>>);

pub(super) async fn prepare_scan(cql: &Cql) -> Result<PreparedStatement> {
    scan::prepare(cql, Table::IdempotencyKeys, "key, fingerprint, op_id, keep_until, outcome").await
}

impl CassandraStore {
    /// Every key whose request is decided. The claim of a placed order stores no outcome: the order is the outcome.
    pub(crate) async fn export_keys(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, ScannedKey> = Scan::new(&self.cql, &self.export.keys);
        while let Some((key, fingerprint, op_id, keep_until, outcome)) = rows.next().await? {
            let corrupt = || StoreError::Corrupt(format!("idempotency key {key:?}"));
            let (Some(fingerprint), Some(op_id), Some(keep_until)) = (fingerprint, op_id, keep_until) else {
                return Err(corrupt());
            };
            let outcome = match outcome {
                Some(bytes) => mw_codec::idempotency::decode_outcome(&bytes)?,
                None if self.order_status(OrderId::new(op_id)).await?.is_some() => {
                    Outcome::Placed(OrderId::new(op_id))
                }
                None => continue,
            };
            let fingerprint = Fingerprint(fingerprint.try_into().map_err(|_| corrupt())?);
            let key = IdempotencyKey::restore(&key).map_err(|_| corrupt())?;
            let identity = RequestIdentity { key, fingerprint, keep_until: from_cql(keep_until) };
            into.push(&Record::StoredOutcome(StoredOutcome { identity, outcome }))?;
        }
        Ok(())
    }
}
