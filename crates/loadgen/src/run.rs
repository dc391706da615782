//! A run: probe the server, set up data, warm up, measure, check.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::check::{self, Before};
use crate::error::LoadError;
use crate::numbers::float;
use crate::report::{Report, Settings};
use crate::sampling::Names;
use crate::scenarios::Plan;
use crate::schedule::{Arrivals, SECOND};
use crate::setup;
use crate::stats::{Second, Stats};
use crate::target::Target;
use crate::worker::{Sizes, nanos};
use crate::worker_pool::{Load, Measured, WorkerPool};
use crate::workload::{Workload, filling};

/// How long the maximum rate is measured for a rate given in percent.
const PROBE: Duration = Duration::from_secs(10);
const THREADS_MAX: usize = 64;
const CONNECTIONS_MAX: usize = 20_000;
const DEPTH_MAX: usize = 64;
const ROUNDS_MAX: u32 = 100;

/// How much load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Closed loop: every connection sends its next request after the response.
    Max,
    /// Open loop: requests a second, by a schedule that does not wait for responses.
    PerSecond(f64),
    /// Open loop, at this share of the maximum rate, which is measured first.
    OfMax(f64),
}

#[derive(Debug, Clone)]
pub struct Options {
    pub rate: Rate,
    pub arrivals: Arrivals,
    pub duration: Duration,
    pub warm_up: Duration,
    /// Measured one after the other, on the same data.
    pub rounds: u32,
    pub connections: usize,
    /// Requests in flight on one connection.
    pub depth: usize,
    pub threads: usize,
    /// Of one request.
    pub timeout: Duration,
    pub seed: u64,
    pub currency: String,
    /// The prefix of an earlier run whose data is used again.
    pub reuse: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rate: Rate::Max,
            arrivals: Arrivals::Poisson,
            duration: Duration::from_secs(30),
            warm_up: Duration::from_secs(5),
            rounds: 1,
            connections: 64,
            depth: 1,
            threads: 1,
            timeout: Duration::from_secs(20),
            seed: 1,
            currency: "RUB".to_owned(),
            reuse: None,
        }
    }
}

impl Options {
    fn check(&self, workload: &Workload) -> Result<(), LoadError> {
        let require = |is_so: bool, otherwise: String| {
            if is_so { Ok(()) } else { Err(LoadError::Options(otherwise)) }
        };
        workload.check().map_err(LoadError::Options)?;
        require((1..=THREADS_MAX).contains(&self.threads), format!("threads: expected 1 to {THREADS_MAX}"))?;
        require(
            (self.threads..=CONNECTIONS_MAX).contains(&self.connections),
            format!("connections: expected one for each thread at least, and {CONNECTIONS_MAX} at most"),
        )?;
        require((1..=DEPTH_MAX).contains(&self.depth), format!("depth: expected 1 to {DEPTH_MAX}"))?;
        require((1..=ROUNDS_MAX).contains(&self.rounds), format!("repeat: expected 1 to {ROUNDS_MAX}"))?;
        require(!self.duration.is_zero(), "duration: expected more than 0".to_owned())?;
        let rate = match self.rate {
            Rate::Max => 1.0,
            Rate::PerSecond(rate) | Rate::OfMax(rate) => rate,
        };
        require(rate > 0.0 && rate.is_finite(), "rate: expected more than 0".to_owned())?;
        let under_way = (self.connections * self.depth) as u64;
        require(
            !workload.keeps_buyers() || workload.data.users >= 2 * under_way,
            format!(
                "users: {} are too few for {under_way} requests at once, expected twice as many",
                workload.data.users
            ),
        )
    }
}

/// Progress of a run.
#[derive(Debug)]
pub enum Event {
    Setup {
        what: &'static str,
        done: u64,
        total: u64,
    },
    /// The maximum rate of the server, in requests a second.
    Probed {
        rate: f64,
    },
    Second(Progress),
    Checking {
        orders: u64,
    },
}

/// One second of load.
#[derive(Debug)]
pub struct Progress {
    pub is_warm_up: bool,
    /// Seconds since the warm-up or the measurement began, this one included.
    pub second: u64,
    /// How many there will be.
    pub of: u64,
    pub rate: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
    pub errors: u64,
}

impl Event {
    pub(crate) fn second(second: &Second, load: &Load) -> Self {
        let of = if second.is_warm_up { load.warm_up } else { load.duration };
        Self::Second(Progress {
            is_warm_up: second.is_warm_up,
            second: second.index + 1,
            of: of.div_ceil(SECOND),
            rate: second.answered,
            p50_us: second.latencies.quantile_us(0.5),
            p99_us: second.latencies.quantile_us(0.99),
            max_us: second.latencies.max_us(),
            errors: second.errors,
        })
    }
}

/// Runs a workload against the target. When `stop` becomes true the run ends early and still reports.
pub fn run(
    target: &Target,
    workload: &Workload,
    options: &Options,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(&Event),
) -> Result<Report, LoadError> {
    options.check(workload)?;
    setup::probe(target, options.timeout)?;
    let began = SystemTime::now();
    let run = format!("r{:x}", began.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros());
    let prefix = options.reuse.clone().unwrap_or_else(|| format!("bench-{run}"));
    let names = Names { prefix, run };
    let sizes = Sizes { connections: options.connections, depth: options.depth, timeout: options.timeout };
    let mut pool = WorkerPool::new(target, options.threads, sizes, options.seed)?;
    let before = prepare(&mut pool, target, workload, options, &names, stop, observe)?;
    let plan = Plan::new(workload, target, names.clone());
    let rate = find_rate(&mut pool, &plan, options, stop, observe)?;
    let load = Load {
        rate,
        arrivals: options.arrivals,
        warm_up: nanos(options.warm_up),
        duration: nanos(options.duration),
    };
    let mut rounds: Vec<Measured> = Vec::new();
    for _ in 0..options.rounds {
        rounds.push(pool.load(&plan, load, stop, observe)?);
        if stop.load(Ordering::Relaxed) || rounds.last().is_some_and(|round| round.is_gone) {
            break;
        }
    }
    let check = if workload.needs_products() {
        observe(&Event::Checking { orders: pool.orders().len() as u64 });
        Some(check::check(&mut pool, target, &names, &before)?)
    } else {
        None
    };
    let settings = Settings::new(options, workload, rate, &names.prefix, began);
    Ok(Report::new(settings, &plan.kinds, &rounds, check))
}

/// Creates the data of the workload, and returns the stock levels before the first order of the run.
fn prepare(
    pool: &mut WorkerPool,
    target: &Target,
    workload: &Workload,
    options: &Options,
    names: &Names,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(&Event),
) -> Result<Before, LoadError> {
    let data = &workload.data;
    if !workload.needs_products() {
        return Ok(Before::Units(0));
    }
    let before = if options.reuse.is_some() {
        setup::find(target, names, data, options.timeout)?;
        observe(&Event::Setup { what: "stock levels", done: 0, total: data.products });
        let products: Vec<u64> = (0..data.products).collect();
        Before::Read(check::levels(pool, target, names, &products)?)
    } else {
        setup::import(target, names, data, &options.currency, options.timeout, stop, observe)?;
        Before::Units(data.units)
    };
    let plan = Plan::new(&filling(workload)?, target, names.clone());
    let carts = if options.reuse.is_some() { 0 } else { data.carts };
    for (flow, what, times) in [(0, "carts", carts), (1, "orders", data.orders), (2, "baskets", data.baskets)]
    {
        if times == 0 {
            continue;
        }
        observe(&Event::Setup { what, done: 0, total: times });
        let message = |done| observe(&Event::Setup { what, done, total: times });
        let stats = pool.fill(&plan, flow, times, stop, message)?;
        if stop.load(Ordering::Relaxed) {
            return Err(LoadError::Interrupted);
        }
        refuse_errors(what, &stats)?;
        observe(&Event::Setup { what, done: times, total: times });
    }
    if data.baskets > 0 {
        pool.restart_buyers();
    }
    Ok(before)
}

fn refuse_errors(what: &'static str, stats: &Stats) -> Result<(), LoadError> {
    match stats.calls.iter().flat_map(|call| &call.errors).next() {
        Some((error, count)) => {
            Err(LoadError::Setup { what, why: format!("{count} requests failed: {error}") })
        }
        None => Ok(()),
    }
}

fn find_rate(
    pool: &mut WorkerPool,
    plan: &Plan,
    options: &Options,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(&Event),
) -> Result<Option<f64>, LoadError> {
    let part = match options.rate {
        Rate::Max => return Ok(None),
        Rate::PerSecond(rate) => return Ok(Some(rate)),
        Rate::OfMax(part) => part,
    };
    let load = Load {
        rate: None,
        arrivals: options.arrivals,
        warm_up: nanos(options.warm_up),
        duration: nanos(options.duration.min(PROBE)),
    };
    let measured = pool.load(plan, load, stop, observe)?;
    let answered: u64 = measured.stats.calls.iter().map(|call| call.answered).sum();
    let rate = float(answered) * float(SECOND) / float(measured.duration.max(1));
    if answered == 0 {
        return Err(LoadError::Options("measure the maximum rate: no request got a response".to_owned()));
    }
    if stop.load(Ordering::Relaxed) {
        return Err(LoadError::Interrupted);
    }
    observe(&Event::Probed { rate });
    Ok(Some(rate * part))
}
