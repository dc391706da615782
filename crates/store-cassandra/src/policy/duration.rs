//! Durations as the policy spells them: a whole number with a unit.

use std::time::Duration;

/// Seconds in each unit, the largest first.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// A table option holds seconds as a signed 32-bit integer.
const SECONDS_MAX: u64 = 2_147_483_647;

pub(super) fn parse(text: &str) -> Option<Duration> {
    let (unit, seconds) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number = text.strip_suffix(unit)?;
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds = number.parse::<u64>().ok()?.checked_mul(*seconds)?;
    (seconds <= SECONDS_MAX).then(|| Duration::from_secs(seconds))
}

/// In the largest unit that divides it.
pub fn format(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let divides = |(_, unit): &&(&str, u64)| seconds > 0 && seconds.is_multiple_of(*unit);
    match UNITS.iter().find(divides) {
        Some((name, unit)) => format!("{}{name}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_parses_back_from_its_text() {
        for (text, seconds) in [("0s", 0), ("90s", 90), ("15m", 900), ("3h", 10_800), ("10d", 864_000)] {
            assert_eq!(parse(text), Some(Duration::from_secs(seconds)), "{text}");
            assert_eq!(format(Duration::from_secs(seconds)), text);
        }
        for bad in ["", "d", "10", "1.5h", "-1d", "1 d", "+1d", "24856d", "10w"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
