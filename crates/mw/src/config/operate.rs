//! `[operate]`: partition statistics, repair, and the JMX agents of the nodes.

use std::time::Duration;

use mw_operate::partitions::Adapt;
use mw_operate::repair::Blackout;

use super::error::Problem;
use super::kind;
use super::layers::Settings;

#[derive(Debug, Clone)]
pub(crate) struct OperateConfig {
    pub(crate) window: Duration,
    pub(crate) wide_bytes: u64,
    pub(crate) adapt: Adapt,
    pub(crate) blackout: Vec<Blackout>,
    pub(crate) jolokia: JolokiaConfig,
}

#[derive(Clone)]
pub(crate) struct JolokiaConfig {
    pub(crate) port: u16,
    /// The user and the password; `None`: the nodes have no agents.
    pub(crate) credentials: Option<(String, String)>,
}

impl std::fmt::Debug for JolokiaConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JolokiaConfig").field("port", &self.port).finish_non_exhaustive()
    }
}

pub(super) fn read(settings: &Settings) -> Result<OperateConfig, Problem> {
    let text = |key: &str| settings.read_if_set(key, |value| kind::text(value).map(str::to_owned));
    let (username, password) = (text("operate.jolokia.username")?, text("operate.jolokia.password")?);
    Ok(OperateConfig {
        window: settings.read("operate.partitions.window", kind::time)?,
        wide_bytes: settings.read("operate.partitions.wide", kind::size)?,
        adapt: settings.read("operate.partitions.adapt", |value| {
            Ok(match kind::text(value)? {
                "advise" => Adapt::Advise,
                "off" => Adapt::Off,
                _ => Adapt::Auto,
            })
        })?,
        blackout: settings.read_if_set("operate.repair.blackout", blackout)?.unwrap_or_default(),
        jolokia: JolokiaConfig {
            port: settings.read("operate.jolokia.port", |value| {
                u16::try_from(kind::count(value)?).map_err(|error| error.to_string())
            })?,
            credentials: username.zip(password),
        },
    })
}

fn blackout(value: &toml::Value) -> Result<Vec<Blackout>, String> {
    kind::texts(value)?.iter().map(|text| Blackout::parse(text).map_err(|error| error.to_string())).collect()
}
