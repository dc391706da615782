//! Alternating rounds: each side runs each operation once a round.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::work::Work;

/// Clients, durations and number of rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoundOptions {
    pub(crate) clients: usize,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    pub(crate) rounds: usize,
    /// The length of an unmeasured round before the others, for sides that warm up slowly.
    pub(crate) practice: Option<Duration>,
}

/// A side of the comparison: Mobile World or one that it is compared with.
pub(crate) trait Baseline {
    fn name(&self) -> &'static str;

    /// One round, after a warm-up that is not measured. An error is any request that failed.
    fn round(&mut self, work: Work, options: &RoundOptions) -> Result<Round>;
}

/// The result of a round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Round {
    /// Requests a second.
    pub(crate) rate: f64,
    /// CPU time a request of the measured process; unknown for the processes of a database.
    pub(crate) cpu_us: Option<f64>,
}

/// All rounds of an operation.
#[derive(Debug, Serialize)]
pub(crate) struct OperationRounds {
    work: &'static str,
    sides: Vec<Side>,
}

#[derive(Debug, Serialize)]
struct Side {
    name: &'static str,
    rounds: Vec<Round>,
}

/// Runs all operations on all sides.
pub(crate) fn run(
    sides: &mut [Box<dyn Baseline>],
    works: &[Work],
    options: &RoundOptions,
) -> Result<Vec<OperationRounds>> {
    let mut all = Vec::new();
    for work in works {
        let mut results = OperationRounds {
            work: work.name(),
            sides: sides.iter().map(|side| Side { name: side.name(), rounds: Vec::new() }).collect(),
        };
        for number in usize::from(options.practice.is_none())..=options.rounds {
            let duration = options.practice.filter(|_| number == 0).unwrap_or(options.duration);
            for (side, kept) in sides.iter_mut().zip(&mut results.sides) {
                let round = side
                    .round(*work, &RoundOptions { duration, ..*options })
                    .with_context(|| format!("{}, {}: round {number}", work.name(), side.name()))?;
                let what = if number == 0 { "practice".to_owned() } else { format!("round {number}") };
                eprintln!("{}, {}: {what}, {:.0}/s", work.name(), side.name(), round.rate);
                if number > 0 {
                    kept.rounds.push(round);
                }
            }
        }
        all.push(results);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Recorder(&'static str, Rc<RefCell<Vec<&'static str>>>);

    impl Baseline for Recorder {
        fn name(&self) -> &'static str {
            self.0
        }

        fn round(&mut self, _: Work, _: &RoundOptions) -> Result<Round> {
            self.1.borrow_mut().push(self.0);
            anyhow::ensure!(self.0 != "broken", "a request failed");
            Ok(Round { rate: 1.0, cpu_us: None })
        }
    }

    const OPTIONS: RoundOptions = RoundOptions {
        clients: 1,
        warm_up: Duration::ZERO,
        duration: Duration::ZERO,
        rounds: 2,
        practice: Some(Duration::ZERO),
    };

    #[test]
    fn sides_alternate_and_the_practice_round_does_not_count() {
        let calls = Rc::default();
        let mut sides: Vec<Box<dyn Baseline>> =
            vec![Box::new(Recorder("a", Rc::clone(&calls))), Box::new(Recorder("b", Rc::clone(&calls)))];
        let results = run(&mut sides, &[Work::ProductRead], &OPTIONS).unwrap();
        assert_eq!(*calls.borrow(), ["a", "b", "a", "b", "a", "b"]);
        assert!(results[0].sides.iter().all(|side| side.rounds.len() == 2));
        calls.borrow_mut().clear();
        run(&mut sides, &[Work::ProductRead], &RoundOptions { practice: None, ..OPTIONS }).unwrap();
        assert_eq!(*calls.borrow(), ["a", "b", "a", "b"]);
    }

    #[test]
    fn a_failed_request_ends_the_run() {
        let calls = Rc::default();
        let mut sides: Vec<Box<dyn Baseline>> = vec![Box::new(Recorder("broken", Rc::clone(&calls)))];
        let message = format!("{:#}", run(&mut sides, &[Work::ProductRead], &OPTIONS).unwrap_err());
        assert_eq!(message, "product read, broken: round 0: a request failed");
        assert_eq!(calls.borrow().len(), 1);
    }
}
