//! Opens and closes the store of the configured engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use mw_migrate::Phase;
use mw_store::SharedStore;
use mw_store_cassandra::connect::connect;
use mw_store_cassandra::schema::Progress;
use mw_store_cassandra::{CassandraStore, Options, StartError};
use mw_store_embedded::{EmbeddedStore, OpenError};
use mw_store_mongodb::MongoStore;
use mw_store_mongodb::schema::Schema;

use crate::config::{Config, Engine};

/// An open store of one of the engines.
pub(crate) enum Storage {
    Embedded { store: Arc<EmbeddedStore>, path: PathBuf },
    Cassandra { store: Arc<CassandraStore>, local_dc: String, keyspace: String },
    Mongodb { store: Arc<MongoStore>, database: String },
}

impl Storage {
    /// Opens the store. The embedded one is created if it is missing; the servers of the other engines must have the schema.
    pub(crate) async fn open(config: &Config) -> Result<Self> {
        match config.engine {
            Engine::Embedded => embedded(config),
            Engine::Cassandra => cassandra(config, false).await,
            Engine::Mongodb => mongodb(config, false).await,
        }
    }

    /// Opens a store that must exist.
    pub(crate) async fn open_existing(config: &Config) -> Result<Self> {
        let path = &config.embedded.path;
        ensure!(
            config.engine != Engine::Embedded || has_entries(path),
            "open data directory {}: there is no store in it; name the right one with --data",
            path.display()
        );
        Self::open(config).await
    }

    /// Opens the store after applying its schema, where it has one.
    pub(crate) async fn open_with_schema(config: &Config) -> Result<Self> {
        match config.engine {
            Engine::Embedded => {
                tracing::info!("apply the schema: the embedded engine has none, nothing to do");
                embedded(config)
            }
            Engine::Cassandra => cassandra(config, true).await,
            Engine::Mongodb => mongodb(config, true).await,
        }
    }

    pub(crate) fn shared(&self) -> SharedStore {
        match self {
            Self::Embedded { store, .. } => Arc::clone(store) as SharedStore,
            Self::Cassandra { store, .. } => Arc::clone(store) as SharedStore,
            Self::Mongodb { store, .. } => Arc::clone(store) as SharedStore,
        }
    }

    /// Refuses a store that a migration has not handed over: another engine serves the shop.
    pub(crate) async fn check_migration(&self) -> Result<()> {
        let status = match self {
            Self::Embedded { store, .. } => mw_migrate::status::stopped(&**store).await?,
            Self::Cassandra { store, .. } => mw_migrate::status::stopped(&**store).await?,
            Self::Mongodb { .. } => None,
        };
        let is_under_way = status.is_some_and(|it| !matches!(it.phase, Phase::Done | Phase::Aborted));
        ensure!(
            !is_under_way,
            "open the {}: a migration into it is not done, and MongoDB still is the shop; go on with `mw migrate run`, or drop it with \
             `mw migrate abort --yes`",
            self.described()
        );
        Ok(())
    }

    /// A description for the log.
    pub(crate) fn described(&self) -> String {
        match self {
            Self::Embedded { path, .. } => format!("embedded store in {}", path.display()),
            Self::Cassandra { store, local_dc, keyspace } => {
                format!(
                    "Cassandra cluster {}, data centre {local_dc}, keyspace {keyspace}",
                    store.cluster_name()
                )
            }
            Self::Mongodb { database, .. } => format!("MongoDB, database {database}"),
        }
    }

    pub(crate) async fn close(self) {
        match self {
            Self::Embedded { store, .. } => store.close(),
            Self::Cassandra { store, .. } => store.close().await,
            Self::Mongodb { store, .. } => store.close().await,
        }
    }
}

fn embedded(config: &Config) -> Result<Storage> {
    let embedded = &config.embedded;
    let options = mw_store_embedded::Options {
        path: embedded.path.clone(),
        block_cache_bytes: embedded.block_cache_bytes,
        cache_bytes: embedded.cache_bytes,
        memtable_bytes: embedded.memtable_bytes,
        min_free_bytes: embedded.min_free_bytes,
        write_queue: embedded.write_queue,
        partitions: embedded.partitions.clone(),
        currency: config.shop.currency,
        archive: embedded.archive.clone(),
        backups_below: embedded.backups.clone(),
        feed: config.feed,
    };
    let opened = EmbeddedStore::open(options).map_err(|error| match error {
        OpenError::Locked(_) => anyhow!("{error}: stop that process, or name another directory with --data"),
        other => other.into(),
    });
    Ok(Storage::Embedded { store: Arc::new(opened?), path: embedded.path.clone() })
}

async fn cassandra(config: &Config, apply_schema: bool) -> Result<Storage> {
    let opening = async {
        // The shop stamps commands with the same clock.
        let options = Options { stamps_commands: true, feed: config.feed, ..config.cassandra.clone() };
        let (local_dc, keyspace) = (options.local_dc.clone(), options.keyspace.clone());
        let session = connect(&options).await?;
        if apply_schema {
            options.schema().apply(&session, &log_progress).await?;
        }
        let store = CassandraStore::on(session, options).await?;
        store.keep_currency(config.currency()).await?;
        Ok::<_, StartError>(Storage::Cassandra { store, local_dc, keyspace })
    };
    opening.await.context("open the store on Cassandra")
}

async fn mongodb(config: &Config, apply_schema: bool) -> Result<Storage> {
    let opening = async {
        let options = mw_store_mongodb::Options { feed: config.feed, ..config.mongodb.clone() };
        let database = options.database.clone();
        let client = mw_store_mongodb::connect::connect(&options).await?;
        let schema = Schema::new(&options);
        if apply_schema {
            let progress = |what: &str| tracing::info!(what, "apply the schema");
            schema.apply(&client, &progress).await?;
        }
        schema.check(&client).await?;
        let store = MongoStore::on(client, options).await?;
        store.keep_currency(config.currency()).await?;
        anyhow::Ok(Storage::Mongodb { store, database })
    };
    opening.await.context("open the store on MongoDB")
}

fn log_progress(progress: Progress<'_>) {
    match progress {
        Progress::Waiting => tracing::info!("another process applies the schema: waiting for it"),
        Progress::Statement { done, total, statement } => {
            tracing::info!(done, total, statement = statement.lines().next(), "apply the schema");
        }
    }
}

fn has_entries(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
}
