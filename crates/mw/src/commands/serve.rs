//! `mw serve`: the service itself, from the first check of its configuration to the last write on disk.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use mw_http::prometheus::Registry;
use mw_http::{Api, Server};
use mw_shop::{Shop, SystemClock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::config::{Config, ServerArgs};
use crate::demo::{self, Filled};
use crate::storage::Storage;
use crate::{runtime, terminal};

/// Between a round of expiry that went wrong and the next.
const EXPIRY_PAUSE: Duration = Duration::from_secs(1);
/// For threads that are still at work when everything else has ended.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// What a process that was told twice to stop ends with.
const EXIT_IMPATIENT: i32 = 1;

/// Serve the shop's API
#[derive(Debug, clap::Args)]
#[command(after_help = "\
With no option at all it serves the embedded engine from ./data on 127.0.0.1:8080. One line with the address appears on \
standard output once requests are accepted; logs go to standard error. SIGTERM or Ctrl-C finishes what is under way and \
exits; a second one exits at once, and no acknowledged write is lost either way.

Examples:
  mw serve --demo
  mw serve --data /var/lib/mw --listen 127.0.0.1:9000
  mw serve --config mw.toml --set orders.payment_window=10m
  mw serve --store cassandra --apply-schema
  MW_LOG__FILTER=debug mw serve")]
pub(crate) struct Args {
    /// Fill an empty store with a sample catalogue; a store with something in it stays as it is
    #[arg(long)]
    demo: bool,

    /// Bring the schema of a cluster up to date first, as `mw schema apply` does; the embedded engine needs no such thing
    #[arg(long)]
    apply_schema: bool,

    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = Config::load(&args.server.sources())?;
    config.check_files()?;
    terminal::log(&config.log);
    raise_open_files();
    let runtime = runtime::serving(config.workers)?;
    let served = runtime.block_on(async {
        // Watched from the start, so that a signal while the store is being opened or filled is not lost.
        let mut signals = Stop::watch()?;
        let Some(storage) = open(args, &config, &mut signals).await? else { return Ok(()) };
        let served = serve(args, config, &storage, signals).await;
        storage.close().await;
        served
    });
    runtime.shutdown_timeout(LAST_MOMENT);
    served
}

/// The store, or nothing where somebody asked to stop before it was open: a cluster may let us wait.
async fn open(args: &Args, config: &Config, signals: &mut Stop) -> Result<Option<Storage>> {
    let opening = async {
        if args.apply_schema { Storage::open_with_schema(config).await } else { Storage::open(config).await }
    };
    tokio::select! {
        storage = opening => storage.map(Some),
        () = signals.asked() => Ok(None),
    }
}

async fn serve(args: &Args, config: Config, storage: &Storage, mut signals: Stop) -> Result<()> {
    let store = storage.shared();
    let shop = Shop::new(Arc::clone(&store), Arc::new(SystemClock), config.shop);
    if args.demo {
        let filled = demo::fill(&*store, shop.now()).await?;
        terminal::note(&told(&filled));
    }
    let api = Api::new(shop.clone(), &config.server, &config.tokens, Registry::new())
        .context("register metrics")?;
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    let server = Server::bind(config.listen, config.server, api).await?;
    let expiry = tokio::spawn(expire(shop));
    terminal::print(&format!("mw is serving {scheme}://{} ({})\n", server.address(), storage.described()))?;
    server.run(signals.asked()).await;
    expiry.abort();
    tracing::info!("stopped serving");
    Ok(())
}

fn told(filled: &Filled) -> String {
    match filled {
        Filled::Products(count) => {
            format!("filled the empty store with a sample catalogue of {count} products")
        }
        Filled::Already => "the sample catalogue is there already".to_owned(),
        Filled::NotEmpty => {
            "the store is not empty: serving it as it is, without a sample catalogue".to_owned()
        }
    }
}

/// Holds must end and unpaid orders be cancelled as long as anything is served, whatever one round of it meets.
async fn expire(shop: Shop) {
    loop {
        let shop = shop.clone();
        // A set, so that what it runs ends together with this task.
        let mut rounds = JoinSet::new();
        rounds.spawn(async move { shop.expire_forever().await });
        let ended = rounds.join_next().await;
        tracing::error!(?ended, "settle what has expired: starting over");
        tokio::time::sleep(EXPIRY_PAUSE).await;
    }
}

/// The wish to stop: the first signal asks for it, the second one does not wait for anything.
struct Stop(oneshot::Receiver<()>);

impl Stop {
    fn watch() -> Result<Self> {
        let watch = |kind| signal(kind).context("watch for signals");
        let mut terminate = watch(SignalKind::terminate())?;
        let mut interrupt = watch(SignalKind::interrupt())?;
        let (ask, asked) = oneshot::channel();
        tokio::spawn(async move {
            either(&mut terminate, &mut interrupt).await;
            tracing::info!("stopping: finishing what is under way; signal again to stop at once");
            let _ = ask.send(());
            either(&mut terminate, &mut interrupt).await;
            std::process::exit(EXIT_IMPATIENT);
        });
        Ok(Self(asked))
    }

    async fn asked(&mut self) {
        let _ = (&mut self.0).await;
    }
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

/// Every connection and every table file is an open file, and the usual soft limit is low for historical reasons only.
fn raise_open_files() {
    let files = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: files.maximum, maximum: files.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "raise the limit of open files");
    }
}
