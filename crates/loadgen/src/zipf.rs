//! Ranks by Zipf's law: the rank k of n comes up in proportion to 1 / kˢ.
//!
//! Sampled by rejection-inversion (W. Hörmann, G. Derflinger, 1996): constant time and no table, whatever n is.

use rand::Rng;

use crate::numbers::{float, whole};

#[derive(Debug, Clone)]
pub(crate) struct Zipf {
    ranks: f64,
    exponent: f64,
    /// The integral of the hat at 1.5, less the mass of the first rank.
    first: f64,
    /// The integral of the hat at n + 0.5.
    last: f64,
    /// Up to this distance a rank is accepted without a further test.
    sure: f64,
}

impl Zipf {
    /// Over at least one rank; the exponent 0 makes all ranks equal.
    pub(crate) fn new(ranks: u64, exponent: f64) -> Self {
        let ranks = float(ranks.max(1));
        let first = integral(1.5, exponent) - 1.0;
        let last = integral(ranks + 0.5, exponent);
        let sure = 2.0 - inverse(integral(2.5, exponent) - mass(2.0, exponent), exponent);
        Self { ranks, exponent, first, last, sure }
    }

    /// From 0 for the most frequent up to n - 1.
    pub(crate) fn sample(&self, random: &mut impl Rng) -> u64 {
        loop {
            let area = self.last + random.random::<f64>() * (self.first - self.last);
            let at = inverse(area, self.exponent);
            let rank = at.round().clamp(1.0, self.ranks);
            let is_under = || area >= integral(rank + 0.5, self.exponent) - mass(rank, self.exponent);
            if rank - at <= self.sure || is_under() {
                return whole(rank) - 1;
            }
        }
    }
}

fn mass(at: f64, exponent: f64) -> f64 {
    (-exponent * at.ln()).exp()
}

/// ∫ x⁻ˢ dx, written so that it has no hole at s = 1.
fn integral(at: f64, exponent: f64) -> f64 {
    let log = at.ln();
    exp_minus_one_over((1.0 - exponent) * log) * log
}

fn inverse(area: f64, exponent: f64) -> f64 {
    let scaled = (area * (1.0 - exponent)).max(-1.0);
    (log_plus_one_over(scaled) * area).exp()
}

/// (eˣ - 1) / x
fn exp_minus_one_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x * 0.5 }
}

/// ln(1 + x) / x
fn log_plus_one_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x * 0.5 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    const SAMPLES: u32 = 200_000;

    fn shares(ranks: usize, exponent: f64) -> Vec<f64> {
        let zipf = Zipf::new(ranks as u64, exponent);
        let mut random = SmallRng::seed_from_u64(7);
        let mut counts = vec![0_u32; ranks];
        for _ in 0..SAMPLES {
            counts[usize::try_from(zipf.sample(&mut random)).unwrap()] += 1;
        }
        counts.into_iter().map(|count| f64::from(count) / f64::from(SAMPLES)).collect()
    }

    #[test]
    fn frequencies_follow_the_law() {
        for exponent in [0.0, 0.5, 0.99, 1.0, 1.3, 2.0] {
            let ranks = 50;
            let all: f64 = (1..=ranks).map(|rank| float(rank).powf(-exponent)).sum();
            for (rank, share) in (1..=ranks).zip(shares(50, exponent)) {
                let wanted = float(rank).powf(-exponent) / all;
                let noise = 5.0 * (wanted / f64::from(SAMPLES)).sqrt();
                assert!((share - wanted).abs() < noise, "s {exponent} rank {rank}: {share} for {wanted}");
            }
        }
    }

    #[test]
    fn a_single_rank_is_always_sampled() {
        assert_eq!(shares(1, 1.0), [1.0]);
        assert_eq!(shares(1, 0.0), [1.0]);
    }

    #[test]
    fn a_million_ranks_stay_in_range() {
        let zipf = Zipf::new(1_000_000, 0.8);
        let mut random = SmallRng::seed_from_u64(3);
        assert!((0..SAMPLES).all(|_| zipf.sample(&mut random) < 1_000_000));
    }
}
