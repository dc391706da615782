//! The options that every command shares: where its configuration comes from.

use std::path::PathBuf;

use super::layers::{Flag, Sources};

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct ConfigArgs {
    /// Data directory of the embedded engine (store.embedded.path) [default: ./data]
    #[arg(long, value_name = "DIRECTORY")]
    data: Option<String>,

    /// Storage engine (store.engine) [default: embedded]
    #[arg(long, value_name = "ENGINE", value_parser = ["embedded", "cassandra", "mongodb"])]
    store: Option<String>,

    /// Configuration file; `mw config` prints one to start from
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Override any key; the value is TOML, or else a bare word. Repeatable, the last wins
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct ServerArgs {
    /// Address to serve on (server.listen); port 0 lets the system choose [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,

    #[command(flatten)]
    config: ConfigArgs,
}

impl ConfigArgs {
    /// With the environment of this process.
    pub(crate) fn sources(&self) -> Sources {
        let mut flags = Vec::new();
        push(&mut flags, "--data", "store.embedded.path", self.data.as_ref());
        push(&mut flags, "--store", "store.engine", self.store.as_ref());
        Sources {
            file: self.config.clone(),
            environment: std::env::vars_os().collect(),
            flags,
            sets: self.sets.clone(),
        }
    }
}

impl ServerArgs {
    pub(crate) fn sources(&self) -> Sources {
        let mut sources = self.config.sources();
        push(&mut sources.flags, "--listen", "server.listen", self.listen.as_ref());
        sources
    }
}

fn push(flags: &mut Vec<Flag>, name: &'static str, key: &'static str, value: Option<&String>) {
    flags.extend(value.map(|value| Flag { name, key, value: value.clone() }));
}
