//! The workloads that are compiled in.

use super::Workload;
use crate::error::LoadError;

const BUILTIN: [(&str, &str); 8] = [
    ("day", include_str!("../../workloads/day.toml")),
    ("black-friday", include_str!("../../workloads/black-friday.toml")),
    ("flash-sale", include_str!("../../workloads/flash-sale.toml")),
    ("browse", include_str!("../../workloads/browse.toml")),
    ("cart", include_str!("../../workloads/cart.toml")),
    ("checkout", include_str!("../../workloads/checkout.toml")),
    ("sessions", include_str!("../../workloads/sessions.toml")),
    ("healthz", include_str!("../../workloads/healthz.toml")),
];

/// The data before a run: the first flow fills a cart, the second places an order, the third fills a basket.
const FILLING: &str = include_str!("../../workloads/filling.toml");

pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

/// The file of a built-in workload, as a template for a custom one.
pub fn builtin_source(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}

/// The workload that fills the shop, over the same data as `workload`.
pub(crate) fn filling(workload: &Workload) -> Result<Workload, LoadError> {
    let filling = Workload::parse("filling", FILLING)?;
    Ok(Workload { data: workload.data.clone(), ..filling })
}
