//! Blackout windows: the selling days in which repair pauses. All times are UTC.

use std::fmt;
use std::str::FromStr;

use mw_domain::Timestamp;

const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_MINUTES: u32 = 24 * 60;
const WEEK_MINUTES: u32 = 7 * DAY_MINUTES;
/// 1970-01-01 was a Thursday.
const EPOCH_WEEKDAY: i64 = 3;

/// A window that comes back every week or every year.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blackout {
    /// From a minute of the week to another, Monday first; the end is exclusive and may be in the next week.
    Weekly { from: u32, to: u32 },
    /// From a day of the year to another, both inclusive, as (month, day); it may pass the new year.
    Yearly { from: (u32, u32), to: (u32, u32) },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a blackout window is \"Fri 06:00-Mon 02:00\" or \"11-25..11-30\"")]
pub struct BadBlackout;

impl Blackout {
    pub fn parse(text: &str) -> Result<Self, BadBlackout> {
        if let Some((from, to)) = text.split_once("..") {
            return Ok(Self::Yearly { from: day(from)?, to: day(to)? });
        }
        let (from, to) = text.split_once('-').ok_or(BadBlackout)?;
        let (from, to) = (minute(from)?, minute(to)?);
        if from == to { Err(BadBlackout) } else { Ok(Self::Weekly { from, to }) }
    }

    pub fn contains(&self, at: Timestamp) -> bool {
        let is_within =
            |now, from, to| if from <= to { (from..to).contains(&now) } else { now >= from || now < to };
        match *self {
            Self::Weekly { from, to } => is_within(minute_of_week(at), from, to),
            Self::Yearly { from, to } => {
                let (_, month, day) = at.date().civil();
                let (now, last) = ((month, day), (to.0, to.1 + 1));
                if from <= to { (from..last).contains(&now) } else { now >= from || now < last }
            }
        }
    }
}

fn minute_of_week(at: Timestamp) -> u32 {
    let days = i64::from(at.date().as_days()) + EPOCH_WEEKDAY;
    let into_day = (at.as_millis() - at.date().midnight().as_millis()) / 60_000;
    let minute = days.rem_euclid(7) * i64::from(DAY_MINUTES) + into_day;
    u32::try_from(minute).unwrap_or_default() % WEEK_MINUTES
}

/// A minute of the week, such as `Fri 06:00`.
fn minute(text: &str) -> Result<u32, BadBlackout> {
    let (weekday, time) = text.trim().split_once(' ').ok_or(BadBlackout)?;
    let weekday = WEEKDAYS.iter().position(|name| name.eq_ignore_ascii_case(weekday)).ok_or(BadBlackout)?;
    let (hours, minutes) = time.trim().split_once(':').ok_or(BadBlackout)?;
    let (hours, minutes): (u32, u32) = (number(hours)?, number(minutes)?);
    if hours > 23 || minutes > 59 {
        return Err(BadBlackout);
    }
    Ok(u32::try_from(weekday).unwrap_or_default() * DAY_MINUTES + hours * 60 + minutes)
}

/// A day of the year, such as `11-25`.
fn day(text: &str) -> Result<(u32, u32), BadBlackout> {
    let (month, day) = text.trim().split_once('-').ok_or(BadBlackout)?;
    let (month, day) = (number(month)?, number(day)?);
    if (1..=12).contains(&month) && (1..=31).contains(&day) { Ok((month, day)) } else { Err(BadBlackout) }
}

fn number(text: &str) -> Result<u32, BadBlackout> {
    u32::from_str(text).map_err(|_| BadBlackout)
}

impl fmt::Display for Blackout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Weekly { from, to } => {
                let show = |minute: u32| {
                    let weekday =
                        usize::try_from(minute / DAY_MINUTES).ok().and_then(|day| WEEKDAYS.get(day));
                    let weekday = weekday.copied().unwrap_or_default();
                    format!("{weekday} {:02}:{:02}", minute % DAY_MINUTES / 60, minute % 60)
                };
                write!(f, "{}-{}", show(from), show(to))
            }
            Self::Yearly { from, to } => write!(f, "{:02}-{:02}..{:02}-{:02}", from.0, from.1, to.0, to.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[test]
    fn a_weekend_window_passes_the_end_of_the_week() {
        let weekend = Blackout::parse("Fri 06:00-Mon 02:00").unwrap();
        // 2026-11-27 is a Friday.
        for (text, inside) in [
            ("2026-11-27T05:59:59Z", false),
            ("2026-11-27T06:00:00Z", true),
            ("2026-11-29T23:00:00Z", true),
            ("2026-11-30T01:59:59Z", true),
            ("2026-11-30T02:00:00Z", false),
            ("2026-12-02T12:00:00Z", false),
        ] {
            assert_eq!(weekend.contains(at(text)), inside, "{text}");
        }
        assert_eq!(weekend.to_string(), "Fri 06:00-Mon 02:00");
    }

    #[test]
    fn days_of_the_year_are_inclusive_and_may_pass_the_new_year() {
        let sale = Blackout::parse("11-25..11-30").unwrap();
        assert!(!sale.contains(at("2026-11-24T23:59:59Z")) && sale.contains(at("2026-11-25")));
        assert!(sale.contains(at("2026-11-30T23:59:59Z")) && !sale.contains(at("2026-12-01")));
        let holidays = Blackout::parse("12-24..01-02").unwrap();
        assert!(holidays.contains(at("2026-12-31")) && holidays.contains(at("2027-01-02T20:00:00Z")));
        assert!(!holidays.contains(at("2027-01-03")) && !holidays.contains(at("2026-12-23")));
        assert_eq!(holidays.to_string(), "12-24..01-02");
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for bad in [
            "",
            "Fri",
            "Fri 6-Mon",
            "Fri 25:00-Mon 02:00",
            "Fri 06:00-Fri 06:00",
            "13-01..13-02",
            "11-25",
            "a..b",
        ] {
            assert_eq!(Blackout::parse(bad), Err(BadBlackout), "{bad}");
        }
    }
}
