//! When a flow is due. A schedule does not depend on responses: it continues while the server stalls, and latency counts
//! from the scheduled instant.

use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::numbers::whole;

/// Nanoseconds since the run began.
pub(crate) type Nanos = u64;

pub(crate) const SECOND: Nanos = 1_000_000_000;

/// How arrivals are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// Poisson process: independent arrivals.
    Poisson,
    /// At equal intervals.
    Uniform,
}

#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    arrivals: Arrivals,
    /// Kept as a fraction, so that no rate drifts by rounding.
    due: f64,
    distance: f64,
}

impl Schedule {
    /// The first arrival is one interval after `start`; `per_second` is above 0.
    pub(crate) fn new(arrivals: Arrivals, per_second: f64, start: Nanos, random: &mut impl Rng) -> Self {
        let distance = crate::numbers::float(SECOND) / per_second;
        let mut schedule = Self { arrivals, due: crate::numbers::float(start), distance };
        schedule.advance(random);
        schedule
    }

    pub(crate) fn due(&self) -> Nanos {
        whole(self.due)
    }

    pub(crate) fn advance(&mut self, random: &mut impl Rng) {
        self.due += match self.arrivals {
            Arrivals::Uniform => self.distance,
            Arrivals::Poisson => -(1.0 - random.random::<f64>()).ln() * self.distance,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    fn dues(arrivals: Arrivals, count: usize) -> Vec<Nanos> {
        let mut random = SmallRng::seed_from_u64(11);
        let mut schedule = Schedule::new(arrivals, 1_000.0, 5 * SECOND, &mut random);
        let next = || {
            let due = schedule.due();
            schedule.advance(&mut random);
            due
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn uniform_arrivals_have_equal_intervals() {
        let dues = dues(Arrivals::Uniform, 3);
        assert_eq!(dues, [5_001_000_000, 5_002_000_000, 5_003_000_000]);
    }

    #[test]
    fn poisson_arrivals_keep_the_rate_and_are_exponential() {
        let dues = dues(Arrivals::Poisson, 100_000);
        let distances: Vec<f64> =
            dues.windows(2).map(|pair| crate::numbers::float(pair[1] - pair[0])).collect();
        let count = crate::numbers::float(distances.len() as u64);
        let mean = distances.iter().sum::<f64>() / count;
        let deviation = (distances.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / count).sqrt();
        assert!((mean / 1e6 - 1.0).abs() < 0.02, "{mean}");
        assert!((deviation / mean - 1.0).abs() < 0.03, "an exponential deviates by its mean: {deviation}");
    }
}
