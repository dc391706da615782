//! The report of a run: the form of the JSON file, from which the table, the page and comparisons are rendered.

mod chart;
mod html;
#[cfg(test)]
pub(crate) mod sample;
mod table;

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::error::LoadError;
use crate::numbers::float;
use crate::run::Options;
use crate::schedule::{Arrivals, SECOND};
use crate::stats::{CallStats, Latencies, Second, Stats};
use crate::worker_pool::Measured;
use crate::workload::{Data, Workload};

pub(crate) use table::{grouped, time};

pub(crate) const KIND: &str = "mw-bench";
/// Incremented whenever a field changes its meaning.
pub(crate) const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub kind: String,
    pub version: u32,
    pub settings: Settings,
    /// All calls of all rounds together.
    pub total: Summary,
    /// By name, in the order of the workload.
    pub calls: Vec<CallReport>,
    pub rounds: Vec<Round>,
    /// Flows that were due and never started, since every connection was busy.
    pub unsent: u64,
    /// Retries of requests whose outcome was unknown.
    pub repeated: u64,
    /// The run ended early: stopped, or the server became unreachable.
    pub is_cut_short: bool,
    pub generator: Generator,
    pub check: Option<Check>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub workload: String,
    pub about: String,
    pub started_at: String,
    /// Scheduled requests a second; absent for a closed loop.
    pub rate: Option<f64>,
    pub arrivals: Arrivals,
    pub duration_seconds: f64,
    pub warm_up_seconds: f64,
    pub connections: u64,
    pub depth: u64,
    pub threads: u64,
    pub seed: u64,
    pub data: Data,
    /// The prefix of all ids of the run, for `--reuse`.
    pub prefix: String,
    pub cores: u64,
}

/// Latencies in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Expected responses within the measured time.
    pub answered: u64,
    pub rate: f64,
    pub mean_us: f64,
    pub p50_us: u64,
    pub p90_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
    /// Of the responses, error codes that the workload expects.
    pub refused: BTreeMap<String, u64>,
    pub errors: BTreeMap<String, u64>,
    /// Histogram: (upper bound in µs, count).
    pub steps: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallReport {
    pub name: String,
    pub figures: Summary,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Round {
    pub seconds_measured: f64,
    pub rate: f64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub seconds: Vec<SecondReport>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecondReport {
    pub second: u64,
    pub answered: u64,
    pub errors: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

/// Load of the generator itself: with `busy` near 1 the generator was the bottleneck.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generator {
    /// Share of the time that its threads were busy, 0 to 1.
    pub busy: f64,
    pub cpu_us_per_request: f64,
    /// Scheduling delay of the generator, p99: part of every latency of an open loop.
    pub lag_p99_us: u64,
}

impl Settings {
    pub(crate) fn new(
        options: &Options,
        workload: &Workload,
        rate: Option<f64>,
        prefix: &str,
        began: SystemTime,
    ) -> Self {
        let started_at = jiff::Timestamp::try_from(began).map(|at| at.to_string()).unwrap_or_default();
        Self {
            workload: workload.name.clone(),
            about: workload.about.clone(),
            started_at,
            rate,
            arrivals: options.arrivals,
            duration_seconds: options.duration.as_secs_f64(),
            warm_up_seconds: options.warm_up.as_secs_f64(),
            connections: options.connections as u64,
            depth: options.depth as u64,
            threads: options.threads as u64,
            seed: options.seed,
            data: workload.data.clone(),
            prefix: prefix.to_owned(),
            cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u64),
        }
    }
}

impl Report {
    pub(crate) fn new(
        settings: Settings,
        kinds: &[String],
        rounds: &[Measured],
        check: Option<Check>,
    ) -> Self {
        let mut stats = Stats::new(kinds.len());
        let mut seconds = 0.0;
        for round in rounds {
            stats.add(&round.stats);
            seconds += float(round.duration) / float(SECOND);
        }
        let all = stats.total();
        let planned = settings.duration_seconds * float(rounds.len() as u64);
        let calls = kinds
            .iter()
            .zip(&stats.calls)
            .map(|(name, call)| CallReport { name: name.clone(), figures: Summary::new(call, seconds) });
        Self {
            kind: KIND.to_owned(),
            version: VERSION,
            total: Summary::new(&all, seconds),
            calls: calls.collect(),
            rounds: rounds.iter().map(Round::new).collect(),
            unsent: stats.unsent,
            repeated: all.repeated,
            is_cut_short: rounds.iter().any(|round| round.is_gone) || seconds < planned * 0.999,
            generator: Generator {
                busy: float(stats.busy) / float(stats.watched.max(1)),
                cpu_us_per_request: float(stats.busy) / 1_000.0 / float(all.answered.max(1)),
                lag_p99_us: stats.lag.quantile_us(0.99),
            },
            check,
            settings,
        }
    }

    /// Reads what [`Report::to_json`] wrote; `name` is for the message.
    pub fn from_json(name: &str, json: &str) -> Result<Self, LoadError> {
        let refuse = |why: String| LoadError::Report { file: name.to_owned(), why };
        let value: serde_json::Value =
            serde_json::from_str(json).map_err(|error| refuse(format!("not JSON: {error}")))?;
        if value.get("kind").and_then(serde_json::Value::as_str) != Some(KIND) {
            return Err(refuse("not a report of mw bench".to_owned()));
        }
        let version = value.get("version").and_then(serde_json::Value::as_u64).unwrap_or_default();
        if version != u64::from(VERSION) {
            return Err(refuse(format!(
                "report version {version}, this program reads version {VERSION}: run the benchmark again"
            )));
        }
        serde_json::from_value(value).map_err(|error| refuse(error.to_string()))
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// For a terminal.
    pub fn to_table(&self) -> String {
        table::render(self)
    }

    /// A page in one file without external resources.
    pub fn to_html(&self) -> String {
        html::render(self)
    }

    pub fn error_count(&self) -> u64 {
        self.total.errors.values().sum()
    }
}

impl Summary {
    fn new(call: &CallStats, seconds: f64) -> Self {
        let latencies: &Latencies = &call.latencies;
        Self {
            answered: call.answered,
            rate: float(call.answered) / seconds.max(f64::MIN_POSITIVE),
            mean_us: latencies.mean_us(),
            p50_us: latencies.quantile_us(0.5),
            p90_us: latencies.quantile_us(0.9),
            p99_us: latencies.quantile_us(0.99),
            p999_us: latencies.quantile_us(0.999),
            max_us: latencies.max_us(),
            refused: call.refused.clone(),
            errors: call.errors.clone(),
            steps: latencies.steps(),
        }
    }
}

impl Round {
    fn new(measured: &Measured) -> Self {
        let all = measured.stats.total();
        let seconds = float(measured.duration) / float(SECOND);
        Self {
            seconds_measured: seconds,
            rate: float(all.answered) / seconds.max(f64::MIN_POSITIVE),
            p50_us: all.latencies.quantile_us(0.5),
            p99_us: all.latencies.quantile_us(0.99),
            p999_us: all.latencies.quantile_us(0.999),
            seconds: measured.seconds.iter().map(SecondReport::new).collect(),
        }
    }

    /// Seconds that were measured completely.
    pub(crate) fn whole_seconds(&self) -> impl Iterator<Item = &SecondReport> {
        self.seconds.iter().filter(|it| float(it.second + 1) <= self.seconds_measured + 1e-3)
    }
}

impl SecondReport {
    fn new(second: &Second) -> Self {
        Self {
            second: second.index,
            answered: second.answered,
            errors: second.errors,
            p50_us: second.latencies.quantile_us(0.5),
            p99_us: second.latencies.quantile_us(0.99),
            max_us: second.latencies.max_us(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_as_it_was_written() {
        let report = sample::report(&[1_000, 2_000, 1_500]);
        assert_eq!(Report::from_json("a.json", &report.to_json()).unwrap(), report);
    }

    #[test]
    fn a_report_of_another_version_is_refused() {
        let message = |json: &str| Report::from_json("a.json", json).unwrap_err().to_string();
        assert!(message("nonsense").starts_with("read a.json: not JSON"));
        assert_eq!(message("{}"), "read a.json: not a report of mw bench");
        let newer = sample::report(&[1]).to_json().replace("\"version\": 1", "\"version\": 2");
        assert!(message(&newer).contains("report version 2, this program reads version 1"));
    }

    #[test]
    fn a_table_has_rates_latencies_errors_and_the_check() {
        let mut report = sample::report(&[1_000, 2_000]);
        report.total.errors.insert("503 overloaded".to_owned(), 1_234);
        report.unsent = 7;
        let table = report.to_table();
        for wanted in [
            "p99.9",
            "4.00 ms",
            "errors: 503 overloaded 1 234",
            "7 scheduled flows were never sent",
            "check passed",
            "scheduling delay up to 60 µs",
        ] {
            assert!(table.contains(wanted), "{wanted}: {table}");
        }
        report.generator.busy = 0.99;
        assert!(report.to_table().contains("the generator was busy 99 %"));
    }
}
