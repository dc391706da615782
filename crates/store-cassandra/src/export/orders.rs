//! Export of orders with their events.

use mw_domain::OrderId;
use mw_store::Result;
use mw_store::export::Record;

use crate::CassandraStore;
use crate::driver::scan::{Group, Scan};
use crate::export::Spool;
use crate::orders::{OrderRow, read_scanned};

impl CassandraStore {
    /// Every order, with its events oldest first.
    pub(crate) async fn export_orders(&self, into: &mut Spool) -> Result<()> {
        let mut rows: Scan<'_, OrderRow> = Scan::new(&self.cql, self.order_scan());
        while let Some(Group { mut rows, is_torn }) = rows.group(|a, b| a.order_id == b.order_id).await? {
            if is_torn && let Some(row) = rows.first() {
                rows = self.order_rows(OrderId::new(row.order_id)).await?;
            }
            if let Some((order, events)) = read_scanned(rows)? {
                into.push(&Record::Order { order, events })?;
            }
        }
        Ok(())
    }
}
