//! Compaction strategies: as the policy spells them, and as a table option.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::duration;

pub(super) const EXPECTED: &str = "LCS, LCS with an SSTable size (LCS 160MiB), STCS, TWCS with a window (TWCS 1d) or UCS \
                                   with scaling parameters (UCS T4)";

const MINUTE: Duration = Duration::from_mins(1);

/// The compaction strategy of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compaction {
    /// LCS: for rows that are read and updated in random order.
    Leveled { sstable_mib: u32 },
    /// STCS.
    SizeTiered,
    /// TWCS: for rows that expire in the order of their writes, so that whole sstables are dropped.
    TimeWindow { window: Duration },
    /// UCS: tiered or leveled by its scaling parameters (`T4` is tiered, `L10` leveled).
    Unified { scaling: String },
}

impl Compaction {
    pub(super) const LEVELED: Self = Self::Leveled { sstable_mib: 160 };

    pub(super) fn tiered() -> Self {
        Self::Unified { scaling: "T4".to_owned() }
    }

    /// The map of the `compaction` option; the class has no package name.
    pub(crate) fn option(&self) -> Vec<(&'static str, String)> {
        let class = |name: &str| ("class", format!("{name}CompactionStrategy"));
        match self {
            Self::Leveled { sstable_mib } => {
                vec![class("Leveled"), ("sstable_size_in_mb", sstable_mib.to_string())]
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
                let sstable_mib = size.strip_suffix("MiB").and_then(|size| size.parse().ok());
                sstable_mib
                    .filter(|size| (1..=10_000).contains(size))
                    .map(|sstable_mib| Self::Leveled { sstable_mib })
                    .ok_or(())
            }
            ("STCS", "") => Ok(Self::SizeTiered),
            ("TWCS", window) => {
                let is_whole_minutes =
                    |window: &Duration| *window >= MINUTE && window.as_secs().is_multiple_of(60);
                duration::parse(window)
                    .filter(is_whole_minutes)
                    .map(|window| Self::TimeWindow { window })
                    .ok_or(())
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
            Self::Leveled { sstable_mib } => write!(f, "LCS {sstable_mib}MiB"),
            Self::SizeTiered => f.write_str("STCS"),
            Self::TimeWindow { window } => write!(f, "TWCS {}", duration::format(*window)),
            Self::Unified { scaling } => write!(f, "UCS {scaling}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_parses_back_from_its_text() {
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
    fn a_window_is_an_option_in_the_largest_unit() {
        let unit = |text: &str| text.parse::<Compaction>().unwrap().option().swap_remove(1).1;
        assert_eq!([unit("TWCS 2d"), unit("TWCS 36h"), unit("TWCS 90m")], ["DAYS", "HOURS", "MINUTES"]);
    }
}
