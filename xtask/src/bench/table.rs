//! Compares the results: ratios with their spread, and whether each reaches its target.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The minimum of Mobile World's rate divided by the baseline's.
const TARGETS: &[(&str, &str, f64)] = &[
    ("cart read", "postgres", 1.0),
    ("cart write", "postgres", 1.0),
    ("checkout", "postgres", 3.0),
    ("order of one hot product", "postgres", 5.0),
    ("product read", "bare driver", 0.8),
    ("cart read", "bare driver", 0.8),
    ("cart write", "bare driver", 0.8),
    ("cart write", "earlier mw", 3.0),
];

/// All rounds of an operation, Mobile World's first.
#[derive(Debug, Deserialize)]
pub(super) struct OperationRounds {
    work: String,
    sides: Vec<Side>,
}

#[derive(Debug, Deserialize)]
struct Side {
    name: String,
    rounds: Vec<Round>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Round {
    rate: f64,
    cpu_us: Option<f64>,
}

/// Mobile World and one baseline on one operation. Rates are medians of the rounds.
#[derive(Debug, PartialEq, Serialize)]
struct Comparison {
    work: String,
    baseline: String,
    mw_rate: f64,
    baseline_rate: f64,
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    target: Option<f64>,
    reached: Option<bool>,
    mw_cpu_us: Option<f64>,
    baseline_cpu_us: Option<f64>,
    mw_rates: Vec<f64>,
    baseline_rates: Vec<f64>,
}

pub(super) struct Comparisons(Vec<Comparison>);

impl Comparisons {
    pub(super) fn of(results: &[OperationRounds]) -> Result<Self> {
        let mut all = Vec::new();
        for results in results {
            let (mw, baselines) = results
                .sides
                .split_first()
                .with_context(|| format!("compare {}: no side ran it", results.work))?;
            for baseline in baselines {
                let comparison = Comparison::of(&results.work, mw, baseline);
                all.push(comparison.with_context(|| format!("compare {}: no rounds", results.work))?);
            }
        }
        Ok(Self(all))
    }

    pub(super) fn targets(&self) -> usize {
        self.0.iter().filter(|comparison| comparison.reached.is_some()).count()
    }

    pub(super) fn missed(&self) -> usize {
        self.0.iter().filter(|comparison| comparison.reached == Some(false)).count()
    }

    pub(super) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(&self.0).context("write the results as JSON")? + "\n")
    }

    pub(super) fn table(&self) -> String {
        let mut rows = vec![format!(
            "{:<24} {:<15} {:>9} {:>9} {:>7} {:>13}  {:<7} {:<7} {:>16}",
            "operation", "baseline", "mw/s", "base/s", "ratio", "of rounds", "target", "", "µs CPU mw / base"
        )];
        rows.extend(self.0.iter().map(Comparison::row));
        rows.iter().map(|row| row.trim_end()).collect::<Vec<_>>().join("\n")
    }
}

impl Comparison {
    /// `None` where there are no rounds to compare.
    fn of(work: &str, mw: &Side, baseline: &Side) -> Option<Self> {
        let rates = |side: &Side| side.rounds.iter().map(|round| round.rate).collect::<Vec<f64>>();
        let cpu = |side: &Side| median(side.rounds.iter().filter_map(|round| round.cpu_us).collect());
        let (mw_rates, baseline_rates) = (rates(mw), rates(baseline));
        let ratios: Vec<f64> =
            mw_rates.iter().zip(&baseline_rates).map(|(mw, baseline)| mw / baseline).collect();
        let ratio = median(ratios.clone())?;
        let target = TARGETS
            .iter()
            .find(|(of_work, of_baseline, _)| *of_work == work && *of_baseline == baseline.name)
            .map(|(_, _, target)| *target);
        let baseline_cpu_us = cpu(baseline);
        Some(Self {
            work: work.to_owned(),
            baseline: baseline.name.clone(),
            mw_rate: median(mw_rates.clone())?,
            baseline_rate: median(baseline_rates.clone())?,
            ratio,
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(0.0, f64::max),
            target,
            reached: target.map(|target| ratio >= target),
            // Shown only where the baseline's CPU time is known too.
            mw_cpu_us: cpu(mw).filter(|_| baseline_cpu_us.is_some()),
            baseline_cpu_us,
            mw_rates,
            baseline_rates,
        })
    }

    fn row(&self) -> String {
        let target = self.target.map_or_else(|| "-".to_owned(), |target| format!("≥ {target:.2}"));
        let reached = match self.reached {
            None => "",
            Some(true) => "ok",
            Some(false) => "missed",
        };
        let cpu = match (self.mw_cpu_us, self.baseline_cpu_us) {
            (Some(mw), Some(baseline)) => format!("{mw:.0} / {baseline:.0}"),
            _ => String::new(),
        };
        let spread = format!("{:.2} to {:.2}", self.ratio_min, self.ratio_max);
        format!(
            "{:<24} {:<15} {:>9.0} {:>9.0} {:>7.2} {spread:>13}  {target:<7} {reached:<7} {cpu:>16}",
            self.work, self.baseline, self.mw_rate, self.baseline_rate, self.ratio
        )
    }
}

/// The middle one, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *values.get(middle.checked_sub(1)?)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(work: &str, sides: &[(&str, &[f64], Option<f64>)]) -> OperationRounds {
        let side = |(name, rates, cpu_us): &(&str, &[f64], Option<f64>)| Side {
            name: (*name).to_owned(),
            rounds: rates.iter().map(|rate| Round { rate: *rate, cpu_us: *cpu_us }).collect(),
        };
        OperationRounds { work: work.to_owned(), sides: sides.iter().map(side).collect() }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![5.0]), Some(5.0));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn ratios_are_of_rounds_that_stood_side_by_side() {
        let slow_second = results(
            "checkout",
            &[("mw", &[300.0, 150.0, 400.0], None), ("postgres", &[100.0, 50.0, 100.0], None)],
        );
        let Comparisons(all) = Comparisons::of(&[slow_second]).unwrap();
        let comparison = &all[0];
        assert_eq!((comparison.ratio, comparison.ratio_min, comparison.ratio_max), (3.0, 3.0, 4.0));
        assert_eq!((comparison.mw_rate, comparison.baseline_rate), (300.0, 100.0));
        assert_eq!(comparison.reached, Some(true));
    }

    #[test]
    fn every_peer_has_its_row_and_targets_are_counted() {
        let all = [
            results(
                "cart read",
                &[("mw", &[90.0], None), ("postgres", &[100.0], None), ("redis always", &[10.0], None)],
            ),
            results("cart read", &[("mw", &[90.0], Some(30.0)), ("bare driver", &[100.0], Some(20.4))]),
        ];
        let comparisons = Comparisons::of(&all).unwrap();
        assert_eq!((comparisons.0.len(), comparisons.targets(), comparisons.missed()), (3, 2, 1));
        let table = comparisons.table();
        let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(
            rows[1][2..],
            ["postgres", "90", "100", "0.90", "0.90", "to", "0.90", "≥", "1.00", "missed"]
        );
        assert_eq!(rows[2][3..], ["always", "90", "10", "9.00", "9.00", "to", "9.00", "-"]);
        assert_eq!(rows[3][10..], ["≥", "0.80", "ok", "30", "/", "20"]);
    }

    #[test]
    fn a_work_without_rounds_is_an_error() {
        assert!(Comparisons::of(&[results("checkout", &[])]).is_err());
        assert!(
            Comparisons::of(&[results("checkout", &[("mw", &[], None), ("postgres", &[], None)])]).is_err()
        );
    }

    #[test]
    fn what_mw_peers_writes_is_read() {
        let json = r#"[{"work":"cart read","sides":[{"name":"mw","rounds":[{"rate":5.0,"cpu_us":null}]},
            {"name":"postgres","rounds":[{"rate":2.0,"cpu_us":null}]}]}]"#;
        let results: Vec<OperationRounds> = serde_json::from_str(json).unwrap();
        assert_eq!(Comparisons::of(&results).unwrap().0[0].mw_rates, [5.0]);
    }
}
