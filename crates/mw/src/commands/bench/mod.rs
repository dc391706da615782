//! `mw bench`: the load of a shop on a server, what it took, and whether the server kept its promises.

mod live;
mod server;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use mw_loadgen::workload::{builtin_names, builtin_source};
use mw_loadgen::{Arrivals, LoadError, Options, Rate, Report, Target, Workload};

use self::live::Live;
use self::server::OwnServer;
use crate::{runtime, terminal};

/// The token may also be here; an option can be seen by others on the machine.
const TOKEN_VARIABLE: &str = "MWBENCH_TOKEN";
const CONNECTIONS: usize = 128;
/// A schedule must not be held up by a lack of connections while the server takes its time.
const CONNECTIONS_SCHEDULED: usize = 512;
/// What a command ends with that was interrupted twice.
const EXIT_IMPATIENT: i32 = 130;

/// Put the load of a shop on a server, and measure and check what it does
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Without --url it starts a server of its own on a free port, with the embedded engine in a temporary directory (TMPDIR \
says where: on a disk, if durable writes are to be measured), and stops it at the end; what follows -- is given to `mw serve`. With --url it puts its data into that shop through the API, under \
ids that begin with `bench-`, and leaves it there. Plain http only.

With --rate the load follows a schedule that does not wait for answers, and latency counts from the instant a request \
was due: a server that stalls cannot hide it. Without, each connection sends its next request when it has its answer, \
which finds the most a server takes. After every run all acknowledged orders are read back and the stock is compared \
with them. Exit code 1: that check failed, or the run could not be made. Ctrl-C ends a run early and still reports.

Workloads: day (55 % showcase, 25 % cart, 12 % sessions, 6 % orders read, 2 % checkout), black-friday (the same with \
Zipf-skewed products and ten hits), flash-sale (one product, a thousand buyers), browse, cart, checkout, sessions, \
healthz; or the path of a file: `mw bench show day` prints one to start from.

Examples:
  mw bench                                            the mix of an ordinary day, as fast as it goes
  mw bench day --rate 20000 --duration 60s            by a schedule
  mw bench day --rate 80% --html day.html             at 80 % of what the server was just seen to take
  mw bench flash-sale --units 1000                    sell out, and check that nobody was sold what was gone
  mw bench browse --products 1000000 --skew 1.1 --url http://127.0.0.1:8080
  mw bench day --repeat 5 --json a.json               then change something, and once more into b.json:
  mw bench compare a.json b.json                      what changed, and what is only noise
  mw bench day -- --set server.workers=2              options of the server that is started"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare two reports: what changed, and what is only noise
    #[command(after_help = "\
The spread within the runs decides what is noise. Runs with --repeat 3 or more are compared round by round, which also \
sees what differs between runs.

Examples:
  mw bench compare before.json after.json")]
    Compare {
        /// JSON of the run before
        #[arg(value_name = "BEFORE.json")]
        before: PathBuf,
        /// JSON of the run after
        #[arg(value_name = "AFTER.json")]
        after: PathBuf,
    },
    /// Print the file of a built-in workload, to start an own one from
    Show {
        /// Name of the workload
        workload: String,
    },
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Name of a built-in workload, or the path of a file
    #[arg(default_value = "day")]
    workload: String,

    /// Options for `mw serve`, where a server is started
    #[arg(last = true, value_name = "SERVE OPTIONS")]
    serve: Vec<OsString>,

    /// The shop to load, http://host:port; without it one is started for the run
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// Bearer token of role backoffice or operator; also from `MWBENCH_TOKEN`
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    data: DataArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Load")]
struct LoadArgs {
    /// Requests a second by a schedule, or max, or a percentage of max (which is found first)
    #[arg(long, value_name = "RATE", default_value = "max", value_parser = rate)]
    rate: Rate,

    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    duration: Duration,

    /// How long to run before anything is measured
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    warm_up: Duration,

    /// Measure so many times, one after the other; comparisons are surer
    #[arg(long, value_name = "TIMES", default_value_t = 1)]
    repeat: u32,

    /// Connections, spread over the threads [default: 128, and 512 with a schedule]
    #[arg(long, value_name = "COUNT")]
    connections: Option<usize>,

    /// Requests on their way on one connection at once (pipelining)
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    depth: usize,

    /// Threads of the generator
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    threads: usize,

    /// How arrivals of a schedule are spread: poisson or uniform
    #[arg(long, value_name = "KIND", default_value = "poisson", value_parser = arrivals)]
    arrivals: Arrivals,

    /// For one request to be answered
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
    timeout: Duration,

    /// Start of all randomness; the same seed makes the same choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Data (each overrides the workload's own figure)")]
struct DataArgs {
    /// Products in the catalogue
    #[arg(long, value_name = "COUNT")]
    products: Option<u64>,

    /// Users who come and go
    #[arg(long, value_name = "COUNT")]
    users: Option<u64>,

    /// Units of each product in each zone
    #[arg(long, value_name = "COUNT")]
    units: Option<u64>,

    /// Geo zones with stock
    #[arg(long, value_name = "COUNT")]
    zones: Option<u64>,

    /// Carts that are there before the run
    #[arg(long, value_name = "COUNT")]
    carts: Option<u64>,

    /// Orders that are there before the run
    #[arg(long, value_name = "COUNT")]
    orders: Option<u64>,

    /// Zipf exponent of the choice of products: 0 all alike, 1 a shop's usual
    #[arg(long, value_name = "EXPONENT")]
    skew: Option<f64>,

    /// Hit products, which take a part of all choices
    #[arg(long, value_name = "COUNT")]
    hits: Option<u64>,

    /// The part of all choices that hits take, 0 to 1
    #[arg(long, value_name = "SHARE")]
    hit_share: Option<f64>,

    /// Currency of the shop
    #[arg(long, value_name = "CODE", default_value = "RUB")]
    currency: String,

    /// Use the products that an earlier run left under this prefix (it is in the JSON)
    #[arg(long, value_name = "PREFIX", requires = "url")]
    reuse: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// Write the report as JSON, for `mw bench compare`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write the report as a page with charts, in one file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Say nothing while it runs
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        None => measure(&args.run),
        Some(Command::Compare { before, after }) => compare(before, after),
        Some(Command::Show { workload }) => show(workload),
    }
}

fn compare(before: &Path, after: &Path) -> Result<ExitCode> {
    let read = |path: &Path| {
        let name = path.display().to_string();
        let json = fs::read_to_string(path).with_context(|| format!("read {name}"))?;
        anyhow::Ok((Report::from_json(&name, &json)?, name))
    };
    let ((a, a_name), (b, b_name)) = (read(before)?, read(after)?);
    terminal::print(mw_loadgen::compare(&a_name, &a, &b_name, &b)?.to_table())?;
    Ok(ExitCode::SUCCESS)
}

fn show(workload: &str) -> Result<ExitCode> {
    let known = || builtin_names().collect::<Vec<_>>().join(", ");
    let source = builtin_source(workload)
        .with_context(|| format!("there is no workload `{workload}`: there are {}", known()))?;
    terminal::print(source)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &RunArgs) -> Result<ExitCode> {
    let mut workload = Workload::find(&args.workload)?;
    args.data.apply(&mut workload);
    workload.check().map_err(LoadError::Options)?;
    ensure!(
        args.url.is_none() || args.serve.is_empty(),
        "options after -- are for a server that is started here: leave them out, or --url"
    );
    for path in args.output.files() {
        is_writable(path)?;
    }
    let stop = watch()?;
    let own = if args.url.is_some() { None } else { Some(OwnServer::start(&args.serve)?) };
    let url = args.url.as_deref().or(own.as_ref().map(OwnServer::url)).unwrap_or_default();
    let token = args.token.clone().or_else(|| std::env::var(TOKEN_VARIABLE).ok());
    let target = Target::new(url, token.as_deref())?;
    let mut live = Live::new(args.output.quiet);
    let report = mw_loadgen::run(&target, &workload, &args.options(), &stop, &mut |event| live.show(event));
    live.clear();
    let stopped = own.map(OwnServer::stop);
    let report = report?;
    args.output.write(&report)?;
    stopped.transpose()?;
    let is_fine = report.check.as_ref().is_none_or(|check| check.passed) && report.total.answered > 0;
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl RunArgs {
    fn options(&self) -> Options {
        let load = &self.load;
        Options {
            rate: load.rate,
            arrivals: load.arrivals,
            duration: load.duration,
            warm_up: load.warm_up,
            rounds: load.repeat,
            connections: load.connections.unwrap_or(match load.rate {
                Rate::Max => CONNECTIONS,
                Rate::PerSecond(_) | Rate::OfMax(_) => CONNECTIONS_SCHEDULED,
            }),
            depth: load.depth,
            threads: load.threads,
            timeout: load.timeout,
            seed: load.seed,
            currency: self.data.currency.clone(),
            reuse: self.data.reuse.clone(),
        }
    }
}

impl DataArgs {
    fn apply(&self, workload: &mut Workload) {
        let data = &mut workload.data;
        let counts = [
            (self.products, &mut data.products),
            (self.users, &mut data.users),
            (self.units, &mut data.units),
            (self.zones, &mut data.zones),
            (self.carts, &mut data.carts),
            (self.orders, &mut data.orders),
            (self.hits, &mut data.hits),
        ];
        for (given, count) in counts {
            *count = given.unwrap_or(*count);
        }
        data.skew = self.skew.unwrap_or(data.skew);
        data.hit_share = self.hit_share.unwrap_or(data.hit_share);
    }
}

impl OutputArgs {
    fn files(&self) -> impl Iterator<Item = &Path> {
        self.json.iter().chain(&self.html).map(PathBuf::as_path)
    }

    fn write(&self, report: &Report) -> Result<()> {
        terminal::print(&report.to_table())?;
        if let Some(path) = &self.json {
            save(path, &report.to_json())?;
        }
        if let Some(path) = &self.html {
            save(path, &report.to_html())?;
        }
        Ok(())
    }
}

fn save(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Asked before the run: a minute of load for nothing annoys.
fn is_writable(path: &Path) -> Result<()> {
    fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .map(drop)
        .with_context(|| format!("write {}", path.display()))
}

/// Becomes true on the first Ctrl-C or SIGTERM; the second one does not wait for anything.
fn watch() -> Result<Arc<AtomicBool>> {
    use tokio::signal::unix::{SignalKind, signal};

    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let runtime = runtime::single()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        let watch = |kind| signal(kind).context("watch for signals");
        (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if asked.swap(true, Ordering::Relaxed) {
                    server::kill_all();
                    std::process::exit(EXIT_IMPATIENT);
                }
            }
        });
    });
    Ok(stop)
}

fn rate(text: &str) -> Result<Rate> {
    if text == "max" {
        return Ok(Rate::Max);
    }
    let (number, is_part) = text.strip_suffix('%').map_or((text, false), |number| (number, true));
    let number: f64 = number
        .replace('_', "")
        .parse()
        .ok()
        .filter(|it: &f64| *it > 0.0 && it.is_finite())
        .context("expected a number of requests a second, a percentage like 80%, or max")?;
    Ok(if is_part { Rate::OfMax(number / 100.0) } else { Rate::PerSecond(number) })
}

fn arrivals(text: &str) -> Result<Arrivals> {
    match text {
        "poisson" => Ok(Arrivals::Poisson),
        "uniform" => Ok(Arrivals::Uniform),
        _ => bail!("expected poisson or uniform"),
    }
}

/// `250ms`, `30s`, `20m`, `1h`.
fn duration(text: &str) -> Result<Duration> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    units
        .into_iter()
        .find_map(|(unit, ms)| {
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            Some(Duration::from_millis(number.checked_mul(ms)?))
        })
        .context("expected a whole number with a unit: 250ms, 30s, 20m or 1h")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_numbers_percentages_or_max() {
        assert_eq!(rate("max").unwrap(), Rate::Max);
        assert_eq!(rate("20_000").unwrap(), Rate::PerSecond(20_000.0));
        assert_eq!(rate("80%").unwrap(), Rate::OfMax(0.8));
        for text in ["", "fast", "-1", "0", "%", "inf"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(duration("30s").unwrap(), Duration::from_secs(30));
        assert_eq!(duration("20m").unwrap(), Duration::from_mins(20));
        for text in ["", "30", "s", "1.5s", "99999999999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
