//! Random choices of a simulated user: flow, product, cart. Also the ids of all of them in requests.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

use crate::numbers::{float, index_at};
use crate::workload::{Data, Flow, Piece, Template, Variable, Workload};
use crate::zipf::Zipf;

/// Products that one user puts into carts, so that no cart reaches its line limit in a long run.
const WISHES: u64 = 8;
const QUANTITY_MAX: u64 = 3;
/// A prime above any number of products: ranks times it, modulo that number, is an order of its own of all products.
const SCATTER: u64 = 2_654_435_761;

/// Values of the variables of one flow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FlowValues {
    pub(crate) product: u64,
    pub(crate) product2: u64,
    pub(crate) wish: u64,
    pub(crate) category: u64,
    pub(crate) zone: u64,
    pub(crate) user: u64,
    pub(crate) buyer: u64,
    pub(crate) session: u64,
    pub(crate) quantity: u64,
    pub(crate) order: Uuid,
    pub(crate) order_user: u64,
}

/// The choices that a workload allows.
#[derive(Debug, Clone)]
pub(crate) struct Choices {
    data: Data,
    zipf: Zipf,
    /// Cumulative shares of the flows, up to 1.0.
    bounds: Vec<f64>,
    /// The variables of each flow, and whether it reads orders of other flows.
    needs: Vec<(u16, bool)>,
    calls_per_flow: f64,
}

impl Choices {
    pub(crate) fn new(workload: &Workload) -> Self {
        let starts = |flow: &Flow| flow.share / float(flow.calls.len() as u64);
        let all: f64 = workload.flows.iter().map(starts).sum();
        let mut bound = 0.0;
        let bounds = workload.flows.iter().map(|flow| {
            bound += starts(flow) / all;
            bound
        });
        Self {
            zipf: Zipf::new(workload.data.products, workload.data.skew),
            bounds: bounds.collect(),
            needs: workload.flows.iter().map(|flow| (flow.variables(), flow.reads_orders())).collect(),
            calls_per_flow: workload.flows.iter().map(|flow| flow.share).sum::<f64>() / all,
            data: workload.data.clone(),
        }
    }

    /// The mean over all flows, weighted by their frequency.
    pub(crate) fn calls_per_flow(&self) -> f64 {
        self.calls_per_flow
    }

    pub(crate) fn flow(&self, random: &mut SmallRng) -> usize {
        let at = random.random::<f64>();
        self.bounds.iter().position(|bound| at < *bound).unwrap_or(self.bounds.len().saturating_sub(1))
    }

    pub(crate) fn reads_orders(&self, flow: usize) -> bool {
        self.needs.get(flow).is_some_and(|(_, reads)| *reads)
    }

    /// Values for the variables that the flow has; buyer, session and order come from the [`WorkerState`].
    pub(crate) fn sample(&self, flow: usize, random: &mut SmallRng) -> FlowValues {
        let needs = self.needs.get(flow).map_or(0, |(variables, _)| *variables);
        let has = |variable: Variable| needs & variable.bit() != 0;
        let mut values = FlowValues::default();
        if has(Variable::Product) {
            values.product = self.product(random);
        }
        if has(Variable::Product2) {
            values.product2 = self.product(random);
        }
        if has(Variable::Category) {
            values.category = random.random_range(0..self.data.categories.max(1));
        }
        if has(Variable::Zone) {
            values.zone = random.random_range(0..self.data.zones.max(1));
        }
        if has(Variable::User) {
            values.user = random.random_range(0..self.data.users.max(1));
        }
        if has(Variable::Wish) {
            values.wish = self.wish(values.user, random);
        }
        if has(Variable::Quantity) {
            values.quantity = random.random_range(1..=QUANTITY_MAX);
        }
        values
    }

    fn product(&self, random: &mut SmallRng) -> u64 {
        let rank = if self.data.hits > 0 && random.random::<f64>() < self.data.hit_share {
            index_at(random.random(), self.data.hits)
        } else {
            self.zipf.sample(random)
        };
        rank * SCATTER % self.data.products.max(1)
    }

    /// One of the products of a user, the same few each time.
    pub(crate) fn wish(&self, user: u64, random: &mut SmallRng) -> u64 {
        let slot = user * WISHES + random.random_range(0..WISHES);
        self.product(&mut SmallRng::seed_from_u64(slot))
    }
}

/// Ids of a run. All begin with the same prefix, so that runs do not share data.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Of products, users and zones, which a later run may use again.
    pub(crate) prefix: String,
    /// Of sessions and keys, which no other run may use.
    pub(crate) run: String,
}

impl Names {
    pub(crate) fn id(&self, kind: char, number: u64) -> String {
        format!("{}-{kind}{number}", self.prefix)
    }

    pub(crate) fn render(&self, template: &Template, values: &FlowValues, out: &mut Vec<u8>) {
        for piece in &template.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Value(variable) => self.write(*variable, values, out),
            }
        }
    }

    fn write(&self, variable: Variable, values: &FlowValues, out: &mut Vec<u8>) {
        match variable {
            Variable::Product => numbered(&self.prefix, b"-p", values.product, out),
            Variable::Product2 => numbered(&self.prefix, b"-p", values.product2, out),
            Variable::Wish => numbered(&self.prefix, b"-p", values.wish, out),
            Variable::Category => numbered(&self.prefix, b"-c", values.category, out),
            Variable::Zone => numbered(&self.prefix, b"-z", values.zone, out),
            Variable::User => numbered(&self.prefix, b"-u", values.user, out),
            Variable::Buyer => numbered(&self.prefix, b"-b", values.buyer, out),
            Variable::OrderUser => numbered(&self.prefix, b"-b", values.order_user, out),
            Variable::Session => numbered(&self.run, b"-s", values.session, out),
            Variable::Quantity => number(values.quantity, out),
            Variable::Order => {
                let mut text = Uuid::encode_buffer();
                out.extend_from_slice(values.order.hyphenated().encode_lower(&mut text).as_bytes());
            }
        }
    }
}

fn numbered(start: &str, kind: &[u8], value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(start.as_bytes());
    out.extend_from_slice(kind);
    number(value, out);
}

pub(crate) fn number(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn workload(data: &str, request: &str) -> Workload {
        let source = format!(
            "about = ''\n[data]\n{data}\n[[flow]]\nshare = 1\ncalls = [{{ name = 'x', request = '{request}' }}]"
        );
        Workload::parse("test", &source).unwrap()
    }

    #[test]
    fn hits_get_their_share_and_the_rest_reaches_every_product() {
        let workload = workload("products = 100\nhits = 10\nhit_share = 0.5", "GET /{product}");
        let choices = Choices::new(&workload);
        let mut random = SmallRng::seed_from_u64(1);
        let mut counts = BTreeMap::new();
        for _ in 0..20_000 {
            *counts.entry(choices.sample(0, &mut random).product).or_insert(0_u32) += 1;
        }
        assert_eq!(counts.len(), 100);
        let mut by_count: Vec<u32> = counts.into_values().collect();
        by_count.sort_unstable();
        let hits: u32 = by_count.iter().rev().take(10).sum();
        assert!((10_500..11_500).contains(&hits), "half of all, and a tenth of the other half: {hits}");
    }

    #[test]
    fn a_user_has_the_same_few_products() {
        let workload = workload("products = 100000", "GET /{user}/{wish}");
        let choices = Choices::new(&workload);
        let mut random = SmallRng::seed_from_u64(1);
        let wishes: BTreeSet<u64> = (0..500).map(|_| choices.wish(7, &mut random)).collect();
        assert!(wishes.len() <= usize::try_from(WISHES).unwrap(), "{wishes:?}");
    }

    #[test]
    fn requests_come_in_the_shares_of_the_file() {
        let day = Workload::find("day").unwrap();
        let choices = Choices::new(&day);
        let mut random = SmallRng::seed_from_u64(5);
        let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
        let mut all = 0.0;
        for _ in 0..100_000 {
            for call in &day.flows[choices.flow(&mut random)].calls {
                *counts.entry(&call.name).or_default() += 1.0;
                all += 1.0;
            }
        }
        let percent = |names: &[&str]| names.iter().map(|name| counts[name]).sum::<f64>() * 100.0 / all;
        let groups = [
            (percent(&["product", "category", "stock"]), 55.0),
            (percent(&["cart read", "cart set", "cart remove"]), 25.0),
            (percent(&["session new", "session read", "session touch"]), 12.0),
            (percent(&["order", "orders of user", "order events"]), 6.0),
            (percent(&["checkout"]), 2.0),
        ];
        for (is, wanted) in groups {
            assert!((is - wanted).abs() < 0.5, "{groups:?}");
        }
        assert!((all / 100_000.0 - choices.calls_per_flow()).abs() < 0.01);
    }
}
