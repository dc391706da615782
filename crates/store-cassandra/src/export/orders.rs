//! Export of orders with their events.

use mw_domain::OrderId;
use mw_store::Result;
use mw_store::export::Record;
use mw_store::idempotency::{Outcome, StoredOutcome};

use crate::CassandraStore;
use crate::driver::scan::{Group, Scan};
use crate::export::Spool;
use crate::orders::{OrderRow, ScannedOrder, read_scanned};

impl CassandraStore {
    /// Every order, with its events oldest first, and the keys of its status changes while they are kept.
    pub(crate) async fn export_orders(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, OrderRow> = Scan::new(&self.cql, self.order_scan());
        while let Some(Group { mut rows, is_torn }) = rows.group(|a, b| a.order_id == b.order_id).await? {
            if is_torn && let Some(row) = rows.first() {
                rows = self.order_rows(OrderId::new(row.order_id)).await?;
            }
            let Some(ScannedOrder { order, events, keyed_changes }) = read_scanned(rows)? else { continue };
            into.push(&Record::Order { order, events })?;
            for change in keyed_changes {
                if let Some(identity) = self.claims.undecided(&self.cql, &change.key, change.op_id).await? {
                    let outcome = Outcome::Order(change.changed);
                    into.push(&Record::StoredOutcome(StoredOutcome { identity, outcome }))?;
                }
            }
        }
        Ok(())
    }
}
