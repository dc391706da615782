//! The configuration: the merged layers, checked and converted to the settings of each part of the service.
//!
//! All of it is read before anything is opened. Every error names the full key and its origin.

mod args;
mod cassandra;
mod error;
mod keys;
mod kind;
mod layers;
mod migration;
mod mongodb;
mod operate;
mod show;
#[cfg(test)]
mod tests;
mod tokens;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use mw_domain::Currency;
use mw_domain::carts::CartLifetime;
use mw_domain::sessions::SessionLifetime;
use mw_http::{ServerSettings, TlsFiles, Tokens};
use mw_store::changes::FeedSettings;
use mw_store::partitions::PartitionReports;

pub(crate) use args::{ConfigArgs, ServerArgs};
pub(crate) use error::ConfigError;
pub(crate) use layers::{Settings, Sources};
pub(crate) use migration::MigrationConfig;
pub(crate) use operate::OperateConfig;
pub(crate) use show::show;

use error::{Origin, Problem};

/// The settings of each part of the service.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) server: ServerSettings,
    /// Threads that serve requests; `None`: one a core.
    pub(crate) workers: Option<usize>,
    pub(crate) tokens: Tokens,
    pub(crate) log: LogConfig,
    pub(crate) engine: Engine,
    pub(crate) embedded: EmbeddedConfig,
    pub(crate) cassandra: mw_store_cassandra::Options,
    pub(crate) mongodb: mw_store_mongodb::Options,
    /// Where `serve` on Cassandra writes its trace.
    pub(crate) trace: Option<PathBuf>,
    pub(crate) operate: OperateConfig,
    pub(crate) shop: mw_shop::Settings,
    pub(crate) feed: FeedSettings,
    pub(crate) migration: MigrationConfig,
}

/// The storage engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Embedded,
    Cassandra,
    Mongodb,
}

#[derive(Debug)]
pub(crate) struct LogConfig {
    /// An `EnvFilter` directive.
    pub(crate) filter: String,
    pub(crate) json: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct EmbeddedConfig {
    pub(crate) path: PathBuf,
    pub(crate) block_cache_bytes: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) memtable_bytes: u64,
    pub(crate) min_free_bytes: u64,
    pub(crate) write_queue: usize,
    pub(crate) archive: Option<PathBuf>,
    /// The only directory below which a running shop writes backups.
    pub(crate) backups: Option<PathBuf>,
    /// Where accesses of partitions are counted.
    pub(crate) partitions: PartitionReports,
}

impl Config {
    pub(crate) fn load(sources: &Sources) -> Result<Self, ConfigError> {
        Self::read(&Settings::merge(sources)?)
    }

    pub(crate) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let listen = settings.read("server.listen", kind::address)?;
        let tokens = tokens::read(settings)?;
        check_reach(settings, listen, &tokens)?;
        Ok(Self {
            listen,
            server: server(settings)?,
            workers: settings.read_if_set("server.workers", count)?,
            tokens,
            log: LogConfig {
                filter: settings.read("log.filter", kind::text)?.to_owned(),
                json: settings.read("log.format", kind::text)? == "json",
            },
            engine: settings.read("store.engine", engine)?,
            embedded: embedded(settings)?,
            cassandra: cassandra::read(settings)?,
            mongodb: mongodb::read(settings)?,
            trace: settings
                .read_if_set("store.cassandra.trace", |value| kind::text(value).map(PathBuf::from))?,
            operate: operate::read(settings)?,
            shop: shop(settings)?,
            feed: FeedSettings {
                topics: settings.read("feed.topics", kind::topics)?,
                retention_ms: settings.read("feed.retention", millis)?,
            },
            migration: migration::read(settings)?,
        })
    }

    /// Whether the files that the server needs can be read.
    pub(crate) fn check_files(&self) -> Result<(), ConfigError> {
        let Some(tls) = &self.server.tls else {
            return Ok(());
        };
        let files = [("server.tls.certificate", &tls.certificate), ("server.tls.key", &tls.key)];
        let problems = files.into_iter().filter_map(|(key, path)| {
            let error = std::fs::File::open(path).err()?;
            Some(Problem {
                place: String::new(),
                key: key.to_owned(),
                what: format!("read {}: {error}", path.display()),
            })
        });
        ConfigError::check(problems.collect())
    }

    /// For a command that serves no requests: no process forwards stock commands to it, and its address stays free for the
    /// service on the same machine.
    pub(crate) fn without_listener(mut self) -> Self {
        self.cassandra.internal.listen = None;
        self
    }

    pub(crate) fn currency(&self) -> Currency {
        self.shop.currency
    }
}

fn engine(value: &toml::Value) -> Result<Engine, String> {
    Ok(match kind::text(value)? {
        "cassandra" => Engine::Cassandra,
        "mongodb" => Engine::Mongodb,
        _ => Engine::Embedded,
    })
}

/// Without tokens every client has all rights, so only loopback addresses are allowed.
fn check_reach(settings: &Settings, listen: SocketAddr, tokens: &Tokens) -> Result<(), Problem> {
    if !tokens.0.is_empty() || listen.ip().is_loopback() {
        return Ok(());
    }
    settings.read("server.listen", |_| {
        Err(format!(
            "{listen} can be reached from other machines, and no tokens are configured, so every client has all rights: \
             add [[tokens]], or listen on 127.0.0.1"
        ))
    })
}

fn server(settings: &Settings) -> Result<ServerSettings, Problem> {
    Ok(ServerSettings {
        max_in_flight: settings.read("server.max_in_flight", count)?,
        max_streams: settings.read("server.max_streams", count)?,
        max_connections: settings.read("server.max_connections", count)?,
        body_limit_bytes: settings.read("server.body_limit", memory)?,
        header_limit_bytes: settings.read("server.header_limit", memory)?,
        request_timeout: settings.read("server.request_timeout", kind::time)?,
        body_timeout: settings.read("server.body_timeout", kind::time)?,
        header_timeout: settings.read("server.header_timeout", kind::time)?,
        idle_timeout: settings.read("server.idle_timeout", kind::time)?,
        shutdown_grace: settings.read("server.shutdown_grace", kind::time)?,
        tls: tls(settings)?,
        pseudonym_key: settings
            .read_if_set("server.pseudonym_key", |value| kind::text(value).map(str::to_owned))?,
        request_observer: None,
    })
}

fn tls(settings: &Settings) -> Result<Option<TlsFiles>, Problem> {
    let path = |key: &str| settings.read_if_set(key, |value| kind::text(value).map(PathBuf::from));
    let lonely = |given: &str, missing: &str| {
        let origin = settings.get(given).map_or(&Origin::Default, |it| &it.origin);
        Problem::new(origin, given, format!("is set without {missing}: TLS needs both files"))
    };
    match (path("server.tls.certificate")?, path("server.tls.key")?) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some(TlsFiles { certificate, key })),
        (Some(_), None) => Err(lonely("server.tls.certificate", "server.tls.key")),
        (None, Some(_)) => Err(lonely("server.tls.key", "server.tls.certificate")),
    }
}

fn embedded(settings: &Settings) -> Result<EmbeddedConfig, Problem> {
    Ok(EmbeddedConfig {
        path: settings.read("store.embedded.path", |value| kind::text(value).map(PathBuf::from))?,
        block_cache_bytes: settings.read("store.embedded.block_cache", kind::size)?,
        cache_bytes: settings.read("store.embedded.cache", kind::size)?,
        memtable_bytes: settings.read("store.embedded.memtable", kind::size)?,
        min_free_bytes: settings.read("store.embedded.min_free_space", kind::size)?,
        write_queue: settings.read("store.embedded.write_queue", count)?,
        archive: settings
            .read_if_set("store.embedded.archive", |value| kind::text(value).map(PathBuf::from))?,
        backups: settings
            .read_if_set("store.embedded.backups", |value| kind::text(value).map(PathBuf::from))?,
        partitions: PartitionReports::default(),
    })
}

fn shop(settings: &Settings) -> Result<mw_shop::Settings, Problem> {
    let ttl = settings.read("reservations.ttl", kind::time)?.as_secs();
    Ok(mw_shop::Settings {
        currency: settings.read("shop.currency", kind::currency)?,
        carts: CartLifetime {
            user_ms: settings.read("carts.user_ttl", millis)?,
            guest_ms: settings.read("carts.guest_ttl", millis)?,
        },
        sessions: SessionLifetime { ttl_ms: settings.read("sessions.ttl", millis)? },
        payment_window_ms: settings.read("orders.payment_window", millis)?,
        reservation_ttl_seconds: u32::try_from(ttl).unwrap_or(u32::MAX),
    })
}

fn millis(value: &toml::Value) -> Result<i64, String> {
    let time: Duration = kind::time(value)?;
    i64::try_from(time.as_millis()).map_err(|error| error.to_string())
}

fn count(value: &toml::Value) -> Result<usize, String> {
    usize::try_from(kind::count(value)?).map_err(|error| error.to_string())
}

fn memory(value: &toml::Value) -> Result<usize, String> {
    usize::try_from(kind::size(value)?).map_err(|error| error.to_string())
}
