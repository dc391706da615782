//! Instants and days, in UTC. A [`Timestamp`] counts milliseconds since 1970, which every engine stores exactly.

use std::fmt;

use jiff::civil;

const DAY_MS: i64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;

/// Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

/// A calendar day in UTC, as days since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Date(i32);

/// From `from` (inclusive) to `to` (exclusive).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    pub from: Timestamp,
    pub to: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a time in RFC 3339 (2026-01-31T09:30:00Z) nor a date (2026-01-31)")]
pub struct InvalidTime;

impl Timestamp {
    /// 9999-12-31T23:59:59.999Z, the last instant RFC 3339 can write.
    pub const MAX: Self = Self(253_402_300_799_999);
    pub const EPOCH: Self = Self(0);

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    #[must_use]
    pub const fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    #[must_use]
    pub const fn plus_seconds(self, seconds: i64) -> Self {
        self.plus_millis(seconds.saturating_mul(1_000))
    }

    #[must_use]
    pub const fn minus_seconds(self, seconds: i64) -> Self {
        self.plus_seconds(-seconds)
    }

    /// The UTC day this instant falls into.
    pub fn date(self) -> Date {
        let days = self.0.div_euclid(DAY_MS);
        Date(i32::try_from(days).unwrap_or(if days < 0 { i32::MIN } else { i32::MAX }))
    }

    /// Whole hours since the epoch.
    pub fn hour(self) -> i64 {
        self.0.div_euclid(HOUR_MS)
    }

    /// Reads RFC 3339 with any offset, or a bare date as its midnight in UTC.
    pub fn parse(text: &str) -> Result<Self, InvalidTime> {
        if text.len() == 10 {
            return Date::parse(text).map(Date::midnight);
        }
        let instant: jiff::Timestamp = text.parse().map_err(|_| InvalidTime)?;
        Ok(Self(instant.as_millisecond()))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with milliseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock_ms = self.0.rem_euclid(DAY_MS);
        let (seconds, millis) = (clock_ms / 1_000, clock_ms % 1_000);
        let (hours, minutes, seconds) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        write!(f, "{}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z", self.date())
    }
}

impl Date {
    pub const fn from_days(days: i32) -> Self {
        Self(days)
    }

    pub const fn as_days(self) -> i32 {
        self.0
    }

    pub fn midnight(self) -> Timestamp {
        Timestamp(i64::from(self.0) * DAY_MS)
    }

    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Reads `YYYY-MM-DD`.
    pub fn parse(text: &str) -> Result<Self, InvalidTime> {
        let digits = text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
        if text.len() != 10 || !digits {
            return Err(InvalidTime);
        }
        let date: civil::Date = text.parse().map_err(|_| InvalidTime)?;
        Ok(Self::from_civil(date))
    }

    fn from_civil(date: civil::Date) -> Self {
        let days = date.duration_since(civil::date(1970, 1, 1)).as_secs().div_euclid(86_400);
        Self(i32::try_from(days).unwrap_or(i32::MAX))
    }

    /// Year, month and day of the proleptic Gregorian calendar.
    pub fn civil(self) -> (i64, u32, u32) {
        // The year is counted from March, so that a leap day is the last day of its year.
        let days = i64::from(self.0) + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        (year, u32::try_from(month).unwrap_or(1), u32::try_from(day).unwrap_or(1))
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.civil();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

impl Period {
    pub const ALL: Self =
        Self { from: Timestamp::from_millis(i64::MIN), to: Timestamp::from_millis(i64::MAX) };

    /// The whole of one UTC day.
    pub fn day(date: Date) -> Self {
        Self { from: date.midnight(), to: date.next().midnight() }
    }

    pub fn contains(&self, at: Timestamp) -> bool {
        self.from <= at && at < self.to
    }

    pub fn is_empty(&self) -> bool {
        self.from >= self.to
    }

    pub fn longer_than_days(&self, days: i64) -> bool {
        self.to.0.saturating_sub(self.from.0) > days.saturating_mul(DAY_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_reads_back_what_it_writes() {
        for text in ["1970-01-01T00:00:00.000Z", "2024-02-29T23:59:59.999Z", "2026-11-15T08:01:02.003Z"] {
            assert_eq!(Timestamp::parse(text).unwrap().to_string(), text);
        }
        let with_offset = Timestamp::parse("2026-01-01T03:00:00+03:00").unwrap();
        assert_eq!(with_offset.to_string(), "2026-01-01T00:00:00.000Z");
    }

    #[test]
    fn a_date_is_its_midnight() {
        assert_eq!(Timestamp::parse("2026-03-01").unwrap().to_string(), "2026-03-01T00:00:00.000Z");
        assert_eq!(Date::parse("1969-12-31").unwrap().as_days(), -1);
    }

    #[test]
    fn every_day_of_eight_hundred_years_agrees_with_the_calendar() {
        for days in -146_097..=146_097 {
            let date = Date::from_days(days);
            assert_eq!(Date::parse(&date.to_string()), Ok(date));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "today", "2026-13-01", "2026-02-30", "20260101", "2026-1-1", "2026-01-01T00:00:00"] {
            assert_eq!(Timestamp::parse(text), Err(InvalidTime), "{text}");
        }
    }

    #[test]
    fn a_period_has_its_start_and_not_its_end() {
        let day = Period::day(Date::parse("2026-01-31").unwrap());
        assert!(day.contains(Timestamp::parse("2026-01-31").unwrap()));
        assert!(!day.contains(Timestamp::parse("2026-02-01").unwrap()));
        assert!(!day.longer_than_days(1));
    }
}
