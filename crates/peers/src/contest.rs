//! The rounds: each work is done by each side in turn, as often as there are rounds.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::work::Work;

/// How many clients, for how long, how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) clients: usize,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    pub(crate) rounds: usize,
    /// How long a round is that goes before them and does not count, for those who are slow at first.
    pub(crate) practice: Option<Duration>,
}

/// Whoever does the work.
pub(crate) trait Contender {
    fn name(&self) -> &'static str;

    /// One round, after a warm-up that is not measured. An error is any request that failed.
    fn round(&mut self, work: Work, pace: &Pace) -> Result<Round>;
}

/// What a round brought.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Round {
    /// Requests a second.
    pub(crate) rate: f64,
    /// Processor time of the process that does the work for a request; for a database's own processes it is not told.
    pub(crate) cpu_us: Option<f64>,
}

/// All rounds of a work.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    work: &'static str,
    sides: Vec<Side>,
}

#[derive(Debug, Serialize)]
struct Side {
    name: &'static str,
    rounds: Vec<Round>,
}

/// Lets all sides do all works.
pub(crate) fn hold(sides: &mut [Box<dyn Contender>], works: &[Work], pace: &Pace) -> Result<Vec<Figures>> {
    let mut all = Vec::new();
    for work in works {
        let mut figures = Figures {
            work: work.name(),
            sides: sides.iter().map(|side| Side { name: side.name(), rounds: Vec::new() }).collect(),
        };
        for number in usize::from(pace.practice.is_none())..=pace.rounds {
            let duration = pace.practice.filter(|_| number == 0).unwrap_or(pace.duration);
            for (side, kept) in sides.iter_mut().zip(&mut figures.sides) {
                let round = side
                    .round(*work, &Pace { duration, ..*pace })
                    .with_context(|| format!("{}, {}: round {number}", work.name(), side.name()))?;
                let what = if number == 0 { "practice".to_owned() } else { format!("round {number}") };
                eprintln!("{}, {}: {what}, {:.0}/s", work.name(), side.name(), round.rate);
                if number > 0 {
                    kept.rounds.push(round);
                }
            }
        }
        all.push(figures);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Noted(&'static str, Rc<RefCell<Vec<&'static str>>>);

    impl Contender for Noted {
        fn name(&self) -> &'static str {
            self.0
        }

        fn round(&mut self, _: Work, _: &Pace) -> Result<Round> {
            self.1.borrow_mut().push(self.0);
            anyhow::ensure!(self.0 != "broken", "a request failed");
            Ok(Round { rate: 1.0, cpu_us: None })
        }
    }

    const PACE: Pace = Pace {
        clients: 1,
        warm_up: Duration::ZERO,
        duration: Duration::ZERO,
        rounds: 2,
        practice: Some(Duration::ZERO),
    };

    #[test]
    fn the_sides_take_turns_and_practice_does_not_count() {
        let calls = Rc::default();
        let mut sides: Vec<Box<dyn Contender>> =
            vec![Box::new(Noted("a", Rc::clone(&calls))), Box::new(Noted("b", Rc::clone(&calls)))];
        let figures = hold(&mut sides, &[Work::Card], &PACE).unwrap();
        assert_eq!(*calls.borrow(), ["a", "b", "a", "b", "a", "b"]);
        assert!(figures[0].sides.iter().all(|side| side.rounds.len() == 2));
        calls.borrow_mut().clear();
        hold(&mut sides, &[Work::Card], &Pace { practice: None, ..PACE }).unwrap();
        assert_eq!(*calls.borrow(), ["a", "b", "a", "b"]);
    }

    #[test]
    fn a_failed_request_ends_the_run() {
        let calls = Rc::default();
        let mut sides: Vec<Box<dyn Contender>> = vec![Box::new(Noted("broken", Rc::clone(&calls)))];
        let told = format!("{:#}", hold(&mut sides, &[Work::Card], &PACE).unwrap_err());
        assert_eq!(told, "product card, broken: round 0: a request failed");
        assert_eq!(calls.borrow().len(), 1);
    }
}
