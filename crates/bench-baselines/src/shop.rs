//! Mobile World's side: its server over HTTP, with the load generator of `mw bench`.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mw_loadgen::{Event, Options, Report, Target, Workload, run};

use crate::processor;
use crate::rounds::{Baseline, Round, RoundOptions};
use crate::work::{Sizes, Work};

const FILLING: &str = include_str!("../workloads/filling.toml");
/// The length of the run that creates the data; its own requests do not count.
const MOMENT: Duration = Duration::from_millis(200);

pub(crate) struct Shop {
    name: &'static str,
    target: Target,
    pid: u32,
    sizes: Sizes,
    prefix: String,
}

impl Shop {
    /// Creates products, stock and carts.
    pub(crate) fn fill(
        name: &'static str,
        (url, pid): (&str, u32),
        sizes: &Sizes,
        clients: usize,
    ) -> Result<Self> {
        let target = Target::new(url, None)?;
        let mut workload = Workload::parse("filling", FILLING)?;
        workload.data.products = sizes.products;
        workload.data.zones = sizes.zones;
        workload.data.units = sizes.units;
        workload.data.users = sizes.users.max(sizes.buyers);
        workload.data.carts = sizes.users;
        workload.data.baskets = sizes.buyers;
        eprintln!("{name}: creating the data");
        let options =
            Options { connections: clients, warm_up: Duration::ZERO, duration: MOMENT, ..Options::default() };
        let report = observed(&target, &workload, &options, &mut |_| {})?;
        Ok(Self { name, target, pid, sizes: *sizes, prefix: report.settings.prefix })
    }

    /// The prefix of the ids of its products, users and buyers.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn workload(&self, work: Work) -> Result<Workload> {
        let source = match work {
            Work::CartRead => include_str!("../workloads/cart-read.toml"),
            Work::CartWrite => include_str!("../workloads/cart-write.toml"),
            Work::Checkout => include_str!("../workloads/checkout.toml"),
            Work::HotOrder => include_str!("../workloads/hot-order.toml"),
            Work::ProductRead => include_str!("../workloads/product-read.toml"),
        };
        let mut workload = Workload::parse(work.name(), source)?;
        let data = &mut workload.data;
        (data.products, data.zones) = (self.sizes.products, self.sizes.zones);
        data.users = if work == Work::CartWrite { self.sizes.users } else { self.sizes.buyers };
        match work {
            // Checked out carts are filled again, before the round.
            Work::Checkout => data.baskets = self.sizes.buyers,
            Work::HotOrder => (data.products, data.zones) = (1, 1),
            Work::CartRead | Work::CartWrite | Work::ProductRead => {}
        }
        Ok(workload)
    }
}

impl Baseline for Shop {
    fn name(&self) -> &'static str {
        self.name
    }

    fn round(&mut self, work: Work, options: &RoundOptions) -> Result<Round> {
        let options = Options {
            connections: options.clients,
            warm_up: options.warm_up,
            duration: options.duration,
            reuse: Some(self.prefix.clone()),
            ..Options::default()
        };
        let mut spent = Spent::new(self.pid);
        let report = observed(&self.target, &self.workload(work)?, &options, &mut |event| spent.see(event))?;
        Ok(Round { rate: report.total.rate, cpu_us: spent.us_for_each() })
    }
}

/// A run without errors.
fn observed(
    target: &Target,
    workload: &Workload,
    options: &Options,
    observe: &mut dyn FnMut(&Event),
) -> Result<Report> {
    let report = run(target, workload, options, &AtomicBool::new(false), observe)?;
    ensure!(report.error_count() == 0, "requests failed: {}", listed(&report.total.errors));
    if let Some(check) = &report.check {
        ensure!(check.passed, "the check of the orders failed: {}", check.findings.join("; "));
    }
    Ok(report)
}

fn listed(errors: &BTreeMap<String, u64>) -> String {
    errors.iter().map(|(name, count)| format!("{count} × {name}")).collect::<Vec<_>>().join(", ")
}

/// CPU time of the server over the seconds of a round, from the end of its first to the end of its last.
struct Spent {
    pid: u32,
    first: Option<Duration>,
    last: Duration,
    answered: u64,
}

impl Spent {
    fn new(pid: u32) -> Self {
        Self { pid, first: None, last: Duration::ZERO, answered: 0 }
    }

    fn see(&mut self, event: &Event) {
        let Event::Second(second) = event else { return };
        if second.is_warm_up {
            return;
        }
        let Ok(time) = processor::time_of(self.pid).context("read the server's CPU time") else { return };
        if self.first.is_none() {
            self.first = Some(time);
        } else {
            self.last = time;
            self.answered += second.rate;
        }
    }

    fn us_for_each(&self) -> Option<f64> {
        processor::us_for_each(self.last.saturating_sub(self.first?), self.answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{ON_CASSANDRA, ON_ONE_MACHINE};

    #[test]
    fn every_work_has_a_sound_workload() {
        let target = Target::new("http://127.0.0.1:1", None).unwrap();
        for (sizes, works) in [(Sizes::ON_ONE_MACHINE, ON_ONE_MACHINE), (Sizes::ON_CASSANDRA, ON_CASSANDRA)] {
            let shop = Shop { name: "mw", target: target.clone(), pid: 0, sizes, prefix: "p".to_owned() };
            for work in works {
                shop.workload(*work).unwrap().check().unwrap();
            }
        }
        Workload::parse("filling", FILLING).unwrap();
    }

    #[test]
    fn errors_are_listed_with_their_counts() {
        let errors = BTreeMap::from([("409 cart_empty".to_owned(), 3), ("503".to_owned(), 1)]);
        assert_eq!(listed(&errors), "3 × 409 cart_empty, 1 × 503");
    }
}
