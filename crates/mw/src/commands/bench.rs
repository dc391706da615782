//! `mw bench`: runs a workload against a server, reports rates and latencies, and checks the server's guarantees.

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

/// The token may also be here; options are visible to other users of the machine.
const TOKEN_VARIABLE: &str = "MWBENCH_TOKEN";
const CONNECTIONS: usize = 128;
/// More for an open loop: a slow server must not exhaust the connections.
const CONNECTIONS_SCHEDULED: usize = 512;
/// The exit code after a second interrupt.
const EXIT_INTERRUPTED: i32 = 130;

/// Run a workload against a server, measure it and check its guarantees
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Without --url it starts a server on a free port, with the embedded engine in a temporary directory (set \
TMPDIR to a disk to measure durable writes), and stops it at the end; options after -- are passed to `mw serve`. With --url it creates its data in that shop through the API, under \
ids that begin with `bench-`, and leaves it there. Plain http only.

With --rate the load is an open loop: a schedule that does not wait for responses, and latency counts from the scheduled \
instant (no coordinated omission). Without, it is a closed loop: each connection sends its next request after the response, \
which finds the maximum rate of a server. After every run all acknowledged orders are read back and the stock is compared \
with them. Exit code 1: the check failed, or the run failed. Ctrl-C ends a run early and still reports.

Workloads: day (55 % product reads, 25 % cart, 12 % sessions, 6 % orders read, 2 % checkout), black-friday (the same with \
Zipf-skewed products and ten hits), flash-sale (one product, a thousand buyers), browse, cart, checkout, sessions, \
healthz; or the path of a file: `mw bench show day` prints a template.

Examples:
  mw bench                                            the mix of an ordinary day, in a closed loop
  mw bench day --rate 20000 --duration 60s            by a schedule
  mw bench day --rate 80% --html day.html             at 80 % of the maximum rate, which is measured first
  mw bench flash-sale --units 1000                    sell out, and check that no unit was oversold
  mw bench browse --products 1000000 --skew 1.1 --url http://127.0.0.1:8080
  mw bench day --repeat 5 --json a.json               then change something, and run again into b.json:
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
    /// Print the file of a built-in workload, as a template for a custom one
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

    /// URL of the server, http://host:port; without it one is started for the run
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
    /// Scheduled requests a second, or max (closed loop), or a percentage of max (which is measured first)
    #[arg(long, value_name = "RATE", default_value = "max", value_parser = rate)]
    rate: Rate,

    /// How long to measure
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    duration: Duration,

    /// Warm-up before the measurement
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    warm_up: Duration,

    /// Number of measurements, one after the other; more make comparisons more certain
    #[arg(long, value_name = "TIMES", default_value_t = 1)]
    repeat: u32,

    /// Connections, spread over the threads [default: 128, and 512 with a schedule]
    #[arg(long, value_name = "COUNT")]
    connections: Option<usize>,

    /// Requests in flight on one connection (pipelining)
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    depth: usize,

    /// Threads of the generator
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    threads: usize,

    /// How arrivals of a schedule are spread: poisson or uniform
    #[arg(long, value_name = "KIND", default_value = "poisson", value_parser = arrivals)]
    arrivals: Arrivals,

    /// Timeout of a request
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
    timeout: Duration,

    /// Random seed; the same seed makes the same choices
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Data (each overrides the workload's own value)")]
struct DataArgs {
    /// Products in the catalogue
    #[arg(long, value_name = "COUNT")]
    products: Option<u64>,

    /// Users
    #[arg(long, value_name = "COUNT")]
    users: Option<u64>,

    /// Units of each product in each zone
    #[arg(long, value_name = "COUNT")]
    units: Option<u64>,

    /// Geo zones with stock
    #[arg(long, value_name = "COUNT")]
    zones: Option<u64>,

    /// Carts created before the run
    #[arg(long, value_name = "COUNT")]
    carts: Option<u64>,

    /// Orders created before the run
    #[arg(long, value_name = "COUNT")]
    orders: Option<u64>,

    /// Zipf exponent of the choice of products: 0 is uniform, 1 is usual for a shop
    #[arg(long, value_name = "EXPONENT")]
    skew: Option<f64>,

    /// Hit products
    #[arg(long, value_name = "COUNT")]
    hits: Option<u64>,

    /// Share of all choices that are hit products, 0 to 1
    #[arg(long, value_name = "SHARE")]
    hit_share: Option<f64>,

    /// Currency of the shop
    #[arg(long, value_name = "CODE", default_value = "RUB")]
    currency: String,

    /// Use the products of an earlier run with this prefix (it is in the JSON)
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

    /// Print no progress
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
        .with_context(|| format!("find workload `{workload}`: there are {}", known()))?;
    terminal::print(source)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &RunArgs) -> Result<ExitCode> {
    let mut workload = Workload::find(&args.workload)?;
    args.data.apply(&mut workload);
    workload.check().map_err(LoadError::Options)?;
    ensure!(
        args.url.is_none() || args.serve.is_empty(),
        "options after -- are for a server that is started here: leave out them or --url"
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

/// Checked before the run, so that a wrong path does not fail after it.
fn is_writable(path: &Path) -> Result<()> {
    fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .map(drop)
        .with_context(|| format!("write {}", path.display()))
}

/// Becomes true on the first Ctrl-C or SIGTERM; the second one exits at once.
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
                    std::process::exit(EXIT_INTERRUPTED);
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
pub(super) fn duration(text: &str) -> Result<Duration> {
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
