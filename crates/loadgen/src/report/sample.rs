//! A report to test with.

use std::collections::BTreeMap;

use super::{CallReport, Generator, KIND, Report, Round, SecondReport, Settings, Summary, VERSION};
use crate::check::Check;
use crate::numbers::float;
use crate::schedule::Arrivals;
use crate::workload::Data;

/// One round with the given number of responses in each second.
pub(crate) fn report(rates: &[u64]) -> Report {
    let figures = Summary {
        answered: rates.iter().sum(),
        rate: float(rates.iter().sum()) / float(rates.len().max(1) as u64),
        mean_us: 1_100.0,
        p50_us: 1_000,
        p90_us: 1_500,
        p99_us: 4_000,
        p999_us: 9_000,
        max_us: 12_000,
        refused: BTreeMap::new(),
        errors: BTreeMap::new(),
        steps: if rates.is_empty() {
            Vec::new()
        } else {
            vec![(900, 10), (1_000, 50), (1_100, 40), (12_000, 1)]
        },
    };
    Report {
        kind: KIND.to_owned(),
        version: VERSION,
        settings: Settings {
            workload: "day".to_owned(),
            about: "an ordinary day".to_owned(),
            started_at: "2026-11-15T10:00:00Z".to_owned(),
            rate: None,
            arrivals: Arrivals::Poisson,
            duration_seconds: float(rates.len() as u64),
            warm_up_seconds: 5.0,
            connections: 64,
            depth: 1,
            threads: 1,
            seed: 1,
            data: Data::default(),
            prefix: "bench-r1".to_owned(),
            cores: 2,
        },
        calls: vec![CallReport { name: "product".to_owned(), figures: figures.clone() }],
        total: figures,
        rounds: vec![round(rates)],
        unsent: 0,
        repeated: 0,
        is_cut_short: false,
        generator: Generator { busy: 0.3, cpu_us_per_request: 3.2, lag_p99_us: 60 },
        check: Some(Check { passed: true, orders: 20, figures: 5, ..Check::default() }),
    }
}

pub(crate) fn round(rates: &[u64]) -> Round {
    let second = |(index, rate): (usize, &u64)| SecondReport {
        second: index as u64,
        answered: *rate,
        errors: 0,
        p50_us: 1_000_000 / rate.max(&1),
        p99_us: 4_000_000 / rate.max(&1),
        max_us: 12_000_000 / rate.max(&1),
    };
    Round {
        seconds_measured: float(rates.len() as u64),
        rate: float(rates.iter().sum()) / float(rates.len().max(1) as u64),
        p50_us: 1_000,
        p99_us: 4_000,
        p999_us: 9_000,
        seconds: rates.iter().enumerate().map(second).collect(),
    }
}
