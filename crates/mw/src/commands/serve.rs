//! `mw serve`: the service, from reading its configuration to closing the store.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use mw_http::prometheus::Registry;
use mw_http::{Api, ReloadHandle, Server};
use mw_operate::partitions::PartitionCounters;
use mw_shop::{Shop, SystemClock};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::config::{Config, Engine, ServerArgs, Sources};
use crate::demo::{self, Filled};
use crate::operations::steering::RepairSteward;
use crate::storage::Storage;
use crate::trace::TraceFile;
use crate::{open_files, operations, runtime, terminal};

/// Before the expiry task restarts after a panic.
const EXPIRY_PAUSE: Duration = Duration::from_secs(1);
/// For blocking threads to end after the server has stopped.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// The exit code after a second signal.
const EXIT_INTERRUPTED: i32 = 1;

/// Serve the shop's API
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without options it serves the embedded engine from ./data on 127.0.0.1:8080. One line with the address appears on \
standard output once requests are accepted; logs go to standard error. SIGTERM or Ctrl-C finishes the requests in flight and \
exits; a second one exits at once, and no acknowledged write is lost either way. SIGHUP reloads the tokens and the TLS \
certificate.

Examples:
  mw serve --demo
  mw serve --data /var/lib/mw --listen 127.0.0.1:9000
  mw serve --config mw.toml --set orders.payment_window=10m
  mw serve --store cassandra --apply-schema
  MW_LOG__FILTER=debug mw serve")]
pub(crate) struct Args {
    /// Fill an empty store with a sample catalogue; a store with data stays unchanged
    #[arg(long)]
    demo: bool,

    /// Apply the schema of a cluster first, as `mw schema apply` does; the embedded engine has no schema
    #[arg(long)]
    apply_schema: bool,

    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut config = Config::load(&args.server.sources())?;
    config.check_files()?;
    terminal::log(&config.log);
    open_files::raise_limit();
    trace(&mut config)?;
    let counters = operations::count_partitions(&mut config);
    let runtime = runtime::serving(config.workers)?;
    let served = runtime.block_on(async {
        // Installed first, so that a signal while the store is being opened or filled is not lost.
        let mut signals = Stop::watch()?;
        let Some(storage) = open(args, &config, &mut signals).await? else { return Ok(()) };
        let served = match storage.check_migration().await {
            Ok(()) => serve(args, config, &storage, counters, signals).await,
            refused => refused,
        };
        storage.close().await;
        served
    });
    runtime.shutdown_timeout(LAST_MOMENT);
    served
}

/// Lets the engine and the server write their trace, where one is configured.
fn trace(config: &mut Config) -> Result<()> {
    if let (Some(path), Engine::Cassandra) = (&config.trace, config.engine) {
        let trace = TraceFile::create(path)?;
        config.server.request_observer = Some(Arc::clone(&trace) as _);
        config.cassandra.trace = Some(trace);
    }
    Ok(())
}

/// The store, or `None` where a signal arrived before it was open: connecting to a cluster may take long.
async fn open(args: &Args, config: &Config, signals: &mut Stop) -> Result<Option<Storage>> {
    let opening = async {
        if args.apply_schema { Storage::open_with_schema(config).await } else { Storage::open(config).await }
    };
    tokio::select! {
        storage = opening => storage.map(Some),
        () = signals.received() => Ok(None),
    }
}

async fn serve(
    args: &Args,
    config: Config,
    storage: &Storage,
    counters: Arc<PartitionCounters>,
    mut signals: Stop,
) -> Result<()> {
    let shop = Shop::new(storage.shared(), Arc::new(SystemClock), config.shop);
    if args.demo {
        let filled = demo::fill(&shop).await?;
        terminal::note(&message(&filled));
    }
    let registry = Registry::new();
    let operations = operations::of(storage, &config.operate);
    let steward = operations::steward(&operations, counters, &config.operate, &registry)?;
    let repair = match storage {
        Storage::Cassandra { store, .. } => {
            Some(RepairSteward::new(Arc::clone(store), config.operate.clone(), &registry)?)
        }
        Storage::Embedded { .. } | Storage::Mongodb { .. } => None,
    };
    let api = Api::with_operations(shop.clone(), &config.server, &config.tokens, registry, Some(operations))
        .context("register metrics")?;
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    if config.server.tls.is_none() && !config.listen.ip().is_loopback() {
        tracing::warn!(
            listen = %config.listen,
            "serve without TLS on an address that other machines reach: tokens and personal data travel in plain text; set \
             server.tls.certificate and server.tls.key, or put a TLS proxy in front"
        );
    }
    let server = Server::bind(config.listen, config.server, api).await?;
    let reload = tokio::spawn(reload_on_hangup(args.server.sources(), server.reload_handle(), hangups()?));
    let expiry = tokio::spawn(expire(shop));
    let steward = tokio::spawn(steward.run());
    let repair = repair.map(|repair| tokio::spawn(repair.run()));
    terminal::print(&format!("mw is serving {scheme}://{} ({})\n", server.address(), storage.described()))?;
    server.run(signals.received()).await;
    expiry.abort();
    steward.abort();
    if let Some(repair) = repair {
        repair.abort();
    }
    reload.abort();
    tracing::info!("stopped serving");
    Ok(())
}

fn hangups() -> Result<Signal> {
    signal(SignalKind::hangup()).context("watch for SIGHUP")
}

/// On SIGHUP, reads the configuration again and takes over its tokens and certificate. A configuration that cannot be used
/// changes nothing.
async fn reload_on_hangup(sources: Sources, handle: ReloadHandle, mut hangups: Signal) {
    while hangups.recv().await.is_some() {
        let reloaded = Config::load(&sources).map_err(anyhow::Error::from).and_then(|config| {
            let tokens = config.tokens.0.len();
            handle.reload(&config.tokens)?;
            Ok(tokens)
        });
        match reloaded {
            Ok(tokens) => tracing::info!(
                tokens,
                "reloaded tokens and certificate; other settings take effect at the next start"
            ),
            Err(error) => tracing::error!(
                error = format!("{error:#}"),
                "reload tokens and certificate: the old ones stay in effect"
            ),
        }
    }
}

fn message(filled: &Filled) -> String {
    match filled {
        Filled::Products(count) => {
            format!("filled the empty store with a sample catalogue of {count} products")
        }
        Filled::Already => "the store already has the sample catalogue".to_owned(),
        Filled::NotEmpty => "the store is not empty: not adding the sample catalogue".to_owned(),
    }
}

/// Expires reservations and cancels unpaid orders while the server runs; a panic restarts the task.
async fn expire(shop: Shop) {
    loop {
        let shop = shop.clone();
        // A set, so that the inner task is aborted together with this one.
        let mut rounds = JoinSet::new();
        rounds.spawn(async move { shop.expire_forever().await });
        let ended = rounds.join_next().await;
        tracing::error!(?ended, "expire reservations and unpaid orders: restarting the task");
        tokio::time::sleep(EXPIRY_PAUSE).await;
    }
}

/// Shutdown signals: the first begins a graceful shutdown, the second exits at once.
struct Stop(oneshot::Receiver<()>);

impl Stop {
    fn watch() -> Result<Self> {
        let watch = |kind| signal(kind).context("watch for signals");
        let mut terminate = watch(SignalKind::terminate())?;
        let mut interrupt = watch(SignalKind::interrupt())?;
        let (sender, received) = oneshot::channel();
        tokio::spawn(async move {
            either(&mut terminate, &mut interrupt).await;
            tracing::info!("stopping: finishing requests in flight; signal again to exit at once");
            let _ = sender.send(());
            either(&mut terminate, &mut interrupt).await;
            std::process::exit(EXIT_INTERRUPTED);
        });
        Ok(Self(received))
    }

    async fn received(&mut self) {
        let _ = (&mut self.0).await;
    }
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
