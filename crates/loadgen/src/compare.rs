//! Compares two reports, with the spread of each, so that noise does not pass for an improvement.
//!
//! A run is divided into parts: its rounds where there are three or more, else ten batches of seconds. The confidence
//! interval is Welch's, at 95 %, over the means of the parts. Batches are used because neighbouring seconds are correlated
//! and would make the interval too narrow. Variation between runs (other load on the machine, the state of a disk) does
//! not show within a single run, so small changes between single runs stay undecided.

use std::fmt::Write;

use crate::error::LoadError;
use crate::numbers::{float, whole};
use crate::report::{Report, Round, Settings, grouped, time};

/// With at least so many rounds, each round is a part.
const ROUNDS_MIN: usize = 3;
/// Parts of a single run.
const BATCHES: usize = 10;
/// Shorter runs are not compared.
const SECONDS_MIN: usize = 10;
/// Single runs on the same machine differ by up to this share without a change of the code.
const SINGLE_RUN_DOUBT: f64 = 0.10;

/// Student's t for 97.5 %, by degrees of freedom from 1 on.
const T_975: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Whether a change is significant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assessment {
    Better,
    Worse,
    /// The interval holds 0.
    Noise,
    /// Beyond the spread within the runs, but not beyond that between runs.
    Undecided,
    /// The runs are too short.
    TooShort,
}

/// One metric of both runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub name: &'static str,
    pub before: f64,
    pub after: f64,
    /// After against before: 0.1 is a tenth more.
    pub change: f64,
    /// 95 % interval of it.
    pub interval: Option<(f64, f64)>,
    pub verdict: Assessment,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub changes: Vec<Change>,
    text: String,
}

impl Comparison {
    /// For a terminal.
    pub fn to_table(&self) -> &str {
        &self.text
    }
}

/// Compares `b` with `a`; the names are for messages. Runs of different workloads or schedules are refused.
pub fn compare(a_name: &str, a: &Report, b_name: &str, b: &Report) -> Result<Comparison, LoadError> {
    let refuse = |why: String| LoadError::Compare { a: a_name.to_owned(), b: b_name.to_owned(), why };
    if a.settings.workload != b.settings.workload {
        let (a, b) = (&a.settings.workload, &b.settings.workload);
        return Err(refuse(format!("they are different workloads, {a} and {b}")));
    }
    if a.settings.rate.is_some() != b.settings.rate.is_some() {
        return Err(refuse("one ran by a schedule (--rate) and the other in a closed loop".to_owned()));
    }
    let is_single = a.rounds.len() < ROUNDS_MIN || b.rounds.len() < ROUNDS_MIN;
    let of_second: [(&'static str, bool, Pick, PickRound); 3] = [
        ("rate/s", true, |it| it.0, |it| it.rate),
        ("p50", false, |it| it.1, |it| float(it.p50_us)),
        ("p99", false, |it| it.2, |it| float(it.p99_us)),
    ];
    let changes: Vec<Change> = of_second
        .into_iter()
        .map(|(name, more_is_better, pick, pick_round)| {
            let parts = |report: &Report| parts(report, is_single, pick, pick_round);
            change(name, more_is_better, is_single, &parts(a), &parts(b))
        })
        .collect();
    let text = render(a_name, a, b_name, b, &changes, is_single);
    Ok(Comparison { changes, text })
}

/// Rate, p50 and p99 of a second.
type Sample = (f64, f64, f64);
type Pick = fn(&Sample) -> f64;
type PickRound = fn(&Round) -> f64;

fn samples(report: &Report) -> Vec<Sample> {
    let seconds = report.rounds.iter().flat_map(Round::whole_seconds);
    seconds.map(|it| (float(it.answered), float(it.p50_us), float(it.p99_us))).collect()
}

fn parts(report: &Report, is_single: bool, pick: Pick, pick_round: PickRound) -> Vec<f64> {
    if !is_single {
        return report.rounds.iter().map(pick_round).collect();
    }
    let seconds: Vec<f64> = samples(report).iter().map(pick).collect();
    if seconds.len() < SECONDS_MIN {
        return seconds;
    }
    // Batches of nearly the same length that cover the whole run.
    let cut = |index: usize| index * seconds.len() / BATCHES;
    (0..BATCHES).filter_map(|index| seconds.get(cut(index)..cut(index + 1))).map(mean).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / float(values.len().max(1) as u64)
}

/// The square of the standard error of the mean.
fn squared_error(values: &[f64]) -> f64 {
    let (mean, count) = (mean(values), float(values.len() as u64));
    values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0) / count
}

fn change(name: &'static str, more_is_better: bool, is_single: bool, a: &[f64], b: &[f64]) -> Change {
    let (before, after) = (mean(a), mean(b));
    let change = if before > 0.0 { after / before - 1.0 } else { 0.0 };
    let enough = if is_single { SECONDS_MIN.min(BATCHES) } else { ROUNDS_MIN };
    let mut message = Change { name, before, after, change, interval: None, verdict: Assessment::TooShort };
    if a.len() < enough || b.len() < enough || before <= 0.0 {
        return message;
    }
    let half = welch(a, b) / before;
    let (low, high) = (change - half, change + half);
    message.interval = Some((low, high));
    message.verdict = if low <= 0.0 && high >= 0.0 {
        Assessment::Noise
    } else if is_single && change.abs() < SINGLE_RUN_DOUBT {
        Assessment::Undecided
    } else if (change > 0.0) == more_is_better {
        Assessment::Better
    } else {
        Assessment::Worse
    };
    message
}

/// Half the width of the 95 % interval of the difference of the means.
fn welch(a: &[f64], b: &[f64]) -> f64 {
    let (error_a, error_b) = (squared_error(a), squared_error(b));
    let both = error_a + error_b;
    if both <= 0.0 {
        return 0.0;
    }
    let freedom = both.powi(2)
        / (error_a.powi(2) / float(a.len() as u64 - 1) + error_b.powi(2) / float(b.len() as u64 - 1));
    student(freedom) * both.sqrt()
}

fn student(freedom: f64) -> f64 {
    let index = usize::try_from(whole(freedom.floor())).unwrap_or(usize::MAX).max(1);
    T_975.get(index - 1).copied().unwrap_or(1.96 + 2.5 / freedom)
}

fn render(a_name: &str, a: &Report, b_name: &str, b: &Report, changes: &[Change], is_single: bool) -> String {
    let mut text = format!("{}: {a_name} → {b_name}\n\n", a.settings.workload);
    // Writing to a string cannot fail; so below.
    let _ = writeln!(
        text,
        "{:<8} {:>10} {:>10} {:>9}  {:<20} verdict",
        "", "before", "after", "change", "95 % interval"
    );
    for change in changes {
        let value =
            |value: f64| if change.name == "rate/s" { grouped(whole(value)) } else { time(whole(value)) };
        let interval = change
            .interval
            .map_or_else(|| "-".to_owned(), |(low, high)| format!("{} … {}", percent(low), percent(high)));
        let _ = writeln!(
            text,
            "{:<8} {:>10} {:>10} {:>9}  {interval:<20} {}",
            change.name,
            value(change.before),
            value(change.after),
            percent(change.change),
            words(change.verdict)
        );
    }
    let errors = (grouped(a.error_count()), grouped(b.error_count()));
    let _ = writeln!(text, "{:<8} {:>10} {:>10}", "errors", errors.0, errors.1);
    let (one, other) = (spread(a), spread(b));
    let _ = writeln!(text, "\nrate of single seconds, lowest tenth to highest: {one} before, {other} after");
    text.push_str(if is_single {
        "one run each, divided into batches: variation between runs is not in the interval; use --repeat 5 for both\n"
    } else {
        "each round is one value\n"
    });
    for difference in differences(&a.settings, &b.settings) {
        let _ = writeln!(text, "note: the runs differ in {difference}");
    }
    for (name, report) in [(a_name, a), (b_name, b)] {
        if report.check.as_ref().is_some_and(|check| !check.passed) {
            let _ = writeln!(text, "note: the check of {name} failed: do not use its results");
        }
    }
    text
}

fn percent(change: f64) -> String {
    format!("{:+.1} %", change * 100.0)
}

fn words(verdict: Assessment) -> &'static str {
    match verdict {
        Assessment::Better => "better",
        Assessment::Worse => "WORSE",
        Assessment::Noise => "no difference beyond noise",
        Assessment::Undecided => "undecided: single runs differ by as much",
        Assessment::TooShort => "run too short",
    }
}

fn spread(report: &Report) -> String {
    let mut rates: Vec<u64> =
        report.rounds.iter().flat_map(Round::whole_seconds).map(|it| it.answered).collect();
    rates.sort_unstable();
    let at = |part: usize| rates.get(rates.len().saturating_sub(1) * part / 10).copied().unwrap_or_default();
    format!("{} … {}", grouped(at(1)), grouped(at(9)))
}

/// Settings that differ and may explain a change.
fn differences(a: &Settings, b: &Settings) -> Vec<String> {
    let pairs = [
        ("rate", format!("{:?}", a.rate.map(whole)), format!("{:?}", b.rate.map(whole))),
        ("connections", a.connections.to_string(), b.connections.to_string()),
        ("depth", a.depth.to_string(), b.depth.to_string()),
        ("threads", a.threads.to_string(), b.threads.to_string()),
        ("products", a.data.products.to_string(), b.data.products.to_string()),
        ("users", a.data.users.to_string(), b.data.users.to_string()),
        ("carts", a.data.carts.to_string(), b.data.carts.to_string()),
        ("baskets", a.data.baskets.to_string(), b.data.baskets.to_string()),
        ("orders", a.data.orders.to_string(), b.data.orders.to_string()),
        ("skew", a.data.skew.to_string(), b.data.skew.to_string()),
        ("cores", a.cores.to_string(), b.cores.to_string()),
    ];
    let differ = pairs.into_iter().filter(|(_, a, b)| a != b);
    differ.map(|(name, a, b)| format!("{name}: {a} before, {b} after")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    /// Seconds around a rate, each off by up to a tenth.
    fn noisy(rate: u64, seconds: usize, seed: u64) -> Vec<u64> {
        let mut random = SmallRng::seed_from_u64(seed);
        (0..seconds).map(|_| rate * random.random_range(90..=110) / 100).collect()
    }

    fn verdict(a: &Report, b: &Report, name: &str) -> Assessment {
        let compared = compare("a", a, "b", b).unwrap();
        compared.changes.iter().find(|change| change.name == name).unwrap().verdict
    }

    #[test]
    fn noise_is_not_significant() {
        let mut found = Vec::new();
        for seed in 0..40 {
            let (a, b) = (noisy(10_000, 30, seed), noisy(10_000, 30, seed + 1_000));
            found.push(verdict(&sample::report(&a), &sample::report(&b), "rate/s"));
        }
        assert!(found.iter().all(|it| matches!(it, Assessment::Noise | Assessment::Undecided)), "{found:?}");
        let noise = found.iter().filter(|it| **it == Assessment::Noise).count();
        assert!(noise >= 34, "an interval of 95 % is wrong one time in twenty: {noise} of 40");
    }

    #[test]
    fn a_large_change_is_significant() {
        let before = sample::report(&noisy(10_000, 30, 1));
        let faster = sample::report(&noisy(12_500, 30, 2));
        assert_eq!(verdict(&before, &faster, "rate/s"), Assessment::Better);
        assert_eq!(verdict(&faster, &before, "rate/s"), Assessment::Worse);
        assert_eq!(verdict(&before, &faster, "p99"), Assessment::Better);
        let text = compare("a.json", &before, "b.json", &faster).unwrap().text;
        assert!(text.contains("day: a.json → b.json") && text.contains("better"), "{text}");
    }

    #[test]
    fn a_small_change_between_single_runs_is_undecided_and_between_rounds_is_not() {
        let mut before = sample::report(&[10_000; 30]);
        let mut after = sample::report(&[10_400; 30]);
        assert_eq!(verdict(&before, &after, "rate/s"), Assessment::Undecided);
        before.rounds = [10_000, 10_020, 9_980, 10_010].map(|rate| sample::round(&[rate; 10])).to_vec();
        after.rounds = [10_400, 10_420, 10_380, 10_410].map(|rate| sample::round(&[rate; 10])).to_vec();
        assert_eq!(verdict(&before, &after, "rate/s"), Assessment::Better);
    }

    #[test]
    fn short_runs_are_not_compared() {
        let short = sample::report(&[10_000, 10_000, 10_000]);
        assert_eq!(verdict(&short, &sample::report(&[20_000; 30]), "rate/s"), Assessment::TooShort);
        assert_eq!(verdict(&sample::report(&[]), &short, "rate/s"), Assessment::TooShort);
    }

    #[test]
    fn different_workloads_or_schedules_are_refused() {
        let a = sample::report(&[1_000; 30]);
        let mut b = a.clone();
        b.settings.workload = "cart".to_owned();
        let message = compare("a", &a, "b", &b).unwrap_err().to_string();
        assert_eq!(message, "compare a with b: they are different workloads, day and cart");
        let mut b = a.clone();
        b.settings.rate = Some(500.0);
        assert!(compare("a", &a, "b", &b).unwrap_err().to_string().contains("by a schedule"));
    }

    #[test]
    fn other_settings_and_failed_checks_are_noted() {
        let a = sample::report(&[1_000; 30]);
        let mut b = a.clone();
        b.settings.connections = 128;
        b.check.as_mut().unwrap().passed = false;
        let text = compare("a", &a, "b", &b).unwrap().text;
        assert!(text.contains("note: the runs differ in connections: 64 before, 128 after"), "{text}");
        assert!(text.contains("note: the check of b failed"), "{text}");
    }
}
