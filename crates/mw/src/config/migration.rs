//! `[migration]`: what the words and zones of a source become.

use std::collections::BTreeMap;

use mw_domain::GeoZone;
use mw_store_mongodb::statuses::Statuses;

use super::error::{ConfigError, Problem};
use super::layers::Settings;
use super::{kind, mongodb};

/// How the documents of a source are read.
#[derive(Debug, Clone)]
pub(crate) struct MigrationConfig {
    pub(crate) statuses: Statuses,
    /// New names of zones by the old ones.
    pub(crate) zones: BTreeMap<String, String>,
}

pub(super) fn read(settings: &Settings) -> Result<MigrationConfig, ConfigError> {
    let mut zones = BTreeMap::new();
    let mut problems = Vec::new();
    for (path, old, setting) in settings.below("migration.zones") {
        let name = kind::text(&setting.value).ok().and_then(|name| GeoZone::parse(name).ok());
        match name {
            Some(name) => drop(zones.insert(old.to_owned(), name.as_str().to_owned())),
            None => problems.push(Problem::new(
                &setting.origin,
                path,
                "is no zone: 1 to 128 of A-Z a-z 0-9 . _ : ~ -",
            )),
        }
    }
    ConfigError::check(problems)?;
    Ok(MigrationConfig { statuses: mongodb::statuses(settings, "migration.statuses")?, zones })
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Sources};
    use mw_domain::OrderStatus;

    fn load(sets: &[&str]) -> Result<Config, String> {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let sources = Sources { file: None, environment: Vec::new(), flags: Vec::new(), sets };
        Config::load(&sources).map_err(|error| error.to_string())
    }

    #[test]
    fn words_and_zones_are_added_and_checked() {
        let config =
            load(&["migration.statuses.packed=paid", "migration.zones.Москва=moscow"]).unwrap().migration;
        assert_eq!(config.statuses.read("packed"), Some(OrderStatus::Paid));
        assert_eq!(config.statuses.read("new"), Some(OrderStatus::Created));
        assert_eq!(config.zones.get("Москва").map(String::as_str), Some("moscow"));
        assert!(load(&["migration.zones.x='a b'"]).unwrap_err().contains("is no zone"));
        assert!(load(&["migration.statuses.packed=packed"]).is_err());
    }
}
