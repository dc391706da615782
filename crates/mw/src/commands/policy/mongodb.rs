//! `mw policy --store mongodb`: where each call reads, with which read concern, and how stale it may be.

use anyhow::{Context, Result};
use mw_store_mongodb::Options;
use mw_store_mongodb::policy::Call;
use serde::Serialize;

use crate::terminal::{self, columns};

#[derive(Debug, Serialize)]
struct Report {
    calls: Vec<CallRow>,
}

#[derive(Debug, Serialize)]
struct CallRow {
    collection: &'static str,
    call: &'static str,
    about: &'static str,
    read_preference: &'static str,
    read_concern: &'static str,
    /// 0: the response reflects every acknowledged write.
    max_staleness_seconds: u64,
    /// Whether the configuration may change it.
    configurable: bool,
    reason: &'static str,
}

pub(super) fn run(options: &Options, json: bool) -> Result<()> {
    let report = Report::of(options);
    if json {
        let json = serde_json::to_string_pretty(&report).context("write the policy as JSON")?;
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&report.text())
}

impl Report {
    fn of(options: &Options) -> Self {
        let row = |call: Call| {
            let policy = options.policy.of(call);
            CallRow {
                collection: call.collection(),
                call: call.name(),
                about: about(call),
                read_preference: policy.preference.name(),
                read_concern: call.concern(),
                max_staleness_seconds: policy.max_staleness.as_secs(),
                configurable: call.primary_only().is_none(),
                reason: call.primary_only().unwrap_or(STALE),
            }
        };
        Self { calls: Call::ALL.into_iter().map(row).collect() }
    }

    fn text(&self) -> String {
        let heads = ["collection", "call", "read preference", "read concern", "max staleness", "reads"];
        let mut lines = vec![heads.map(str::to_owned).to_vec()];
        lines.extend(self.calls.iter().map(|row| {
            let staleness = match row.max_staleness_seconds {
                0 => "none".to_owned(),
                seconds => format!("{seconds} s"),
            };
            let texts =
                [row.collection, row.call, row.read_preference, row.read_concern, &staleness, row.about];
            texts.map(str::to_owned).to_vec()
        }));
        let reasons = self.calls.iter().map(|row| vec![row.call.to_owned(), row.reason.to_owned()]);
        format!(
            "Where each call reads (store.mongodb.policy). Writes wait for the majority.\n\n{}\nA secondary is asked where its \
             measured lag is within the staleness, and this process has not written the same data within that time; otherwise \
             the primary.\n\nReasons.\n\n{}",
            columns(&lines),
            columns(&reasons.collect::<Vec<_>>())
        )
    }
}

const STALE: &str = "shows, and decides nothing: a secondary relieves the primary";

const fn about(call: Call) -> &'static str {
    match call {
        Call::Catalogue => "products by category and price; categories",
        Call::Product => "one product",
        Call::StockLevel => "stock that is shown",
        Call::Checkout => "stock and price when an order or a reservation is made",
        Call::OrderArchive => "orders of a period",
        Call::OrderHistory => "orders of a user",
        Call::OrderStatus => "one order and its events",
        Call::OrderReports => "sums of sales",
        Call::Cart => "active cart, carts of an owner",
        Call::CartMerge => "guest's cart into the user's",
        Call::CartScan => "idle carts",
        Call::Session => "sessions, idempotency keys",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_store_mongodb::policy::Preference;

    #[test]
    fn the_table_has_every_call_with_its_preference() {
        let mut options = Options::new("mongodb://127.0.0.1");
        options.policy.set_preference("cart_scan", Preference::Primary.name()).unwrap();
        let report = Report::of(&options);
        let row = |name: &str| report.calls.iter().find(|row| row.call == name).unwrap();
        assert_eq!(
            (row("catalogue").read_preference, row("catalogue").max_staleness_seconds),
            ("secondaryPreferred", 30)
        );
        assert_eq!((row("checkout").read_preference, row("checkout").read_concern), ("primary", "snapshot"));
        assert_eq!((row("cart_scan").max_staleness_seconds, row("cart_scan").configurable), (0, true));
        assert_eq!(report.calls.len(), Call::ALL.len());
        let text = report.text();
        assert!(text.contains("order_reports") && text.contains("30 s"), "{text}");
    }
}
