//! Compaction strategies, as the policy writes them and as a table option.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::span;

pub(super) const EXPECTED: &str = "LCS, LCS with a size (LCS 160MiB), STCS, TWCS with a window (TWCS 1d) or UCS with \
                                   its scaling (UCS T4)";

const MINUTE: Duration = Duration::from_mins(1);

/// How the files of a table are put together again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compaction {
    /// For rows that are read and changed at random.
    Leveled {
        file_mib: u32,
    },
    SizeTiered,
    /// For rows that expire in the order they were written: whole files go.
    TimeWindow {
        window: Duration,
    },
    /// Between the first two, as the scaling says: `T4` is tiered, `L10` leveled.
    Unified {
        scaling: String,
    },
}

impl Compaction {
    pub(super) const LEVELED: Self = Self::Leveled { file_mib: 160 };

    pub(super) fn tiered() -> Self {
        Self::Unified { scaling: "T4".to_owned() }
    }

    /// The option's map, without the package of the class.
    pub(crate) fn option(&self) -> Vec<(&'static str, String)> {
        let class = |name: &str| ("class", format!("{name}CompactionStrategy"));
        match self {
            Self::Leveled { file_mib } => {
                vec![class("Leveled"), ("sstable_size_in_mb", file_mib.to_string())]
            }
            Self::SizeTiered => vec![class("SizeTiered")],
            Self::TimeWindow { window } => {
                let seconds = window.as_secs();
                let (unit, size) = match seconds {
                    _ if seconds.is_multiple_of(86_400) => ("DAYS", seconds / 86_400),
                    _ if seconds.is_multiple_of(3_600) => ("HOURS", seconds / 3_600),
                    _ => ("MINUTES", seconds / 60),
                };
                vec![
                    class("TimeWindow"),
                    ("compaction_window_unit", unit.to_owned()),
                    ("compaction_window_size", size.to_string()),
                ]
            }
            Self::Unified { scaling } => vec![class("Unified"), ("scaling_parameters", scaling.clone())],
        }
    }
}

impl FromStr for Compaction {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let rest = rest.trim();
        match (name.to_ascii_uppercase().as_str(), rest) {
            ("LCS", "") => Ok(Self::LEVELED),
            ("LCS", size) => {
                let file_mib = size.strip_suffix("MiB").and_then(|size| size.parse().ok());
                file_mib
                    .filter(|size| (1..=10_000).contains(size))
                    .map(|file_mib| Self::Leveled { file_mib })
                    .ok_or(())
            }
            ("STCS", "") => Ok(Self::SizeTiered),
            ("TWCS", window) => {
                let whole = |window: &Duration| *window >= MINUTE && window.as_secs().is_multiple_of(60);
                span::parse(window).filter(whole).map(|window| Self::TimeWindow { window }).ok_or(())
            }
            ("UCS", "") => Ok(Self::tiered()),
            ("UCS", scaling) if scaling.split(',').all(|level| is_scaling(level.trim())) => {
                Ok(Self::Unified { scaling: scaling.to_owned() })
            }
            _ => Err(()),
        }
    }
}

/// `T4`, `L10` or `N`.
fn is_scaling(text: &str) -> bool {
    let fan = text.strip_prefix('T').or_else(|| text.strip_prefix('L'));
    text == "N" || fan.is_some_and(|fan| fan.parse::<u16>().is_ok_and(|fan| (2..=1_000).contains(&fan)))
}

impl fmt::Display for Compaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leveled { .. } if *self == Self::LEVELED => f.write_str("LCS"),
            Self::Leveled { file_mib } => write!(f, "LCS {file_mib}MiB"),
            Self::SizeTiered => f.write_str("STCS"),
            Self::TimeWindow { window } => write!(f, "TWCS {}", span::show(*window)),
            Self::Unified { scaling } => write!(f, "UCS {scaling}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_read_back_as_they_are_shown() {
        for text in
            ["LCS", "LCS 64MiB", "STCS", "TWCS 1d", "TWCS 6h", "TWCS 90m", "UCS T4", "UCS L10, T4", "UCS N"]
        {
            assert_eq!(text.parse::<Compaction>().unwrap().to_string(), text);
        }
        assert_eq!("lcs".parse(), Ok(Compaction::LEVELED));
        assert_eq!("UCS".parse(), Ok(Compaction::tiered()));
        for bad in
            ["", "DTCS", "LCS 64", "LCS 0MiB", "STCS 4", "TWCS", "TWCS 30s", "TWCS 90s", "UCS X4", "UCS T1"]
        {
            assert_eq!(bad.parse::<Compaction>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn a_window_is_told_in_the_largest_unit() {
        let unit = |text: &str| text.parse::<Compaction>().unwrap().option().swap_remove(1).1;
        assert_eq!([unit("TWCS 2d"), unit("TWCS 36h"), unit("TWCS 90m")], ["DAYS", "HOURS", "MINUTES"]);
    }
}
