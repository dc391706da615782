//! A run from its first look at the server to the last check.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::check::{self, Before};
use crate::draw::Names;
use crate::error::LoadError;
use crate::figures::float;
use crate::fleet::{Fleet, Load, Measured};
use crate::report::{Report, Settings};
use crate::schedule::{Arrivals, SECOND};
use crate::setup;
use crate::shopping::Plan;
use crate::tally::{Second, Tally};
use crate::target::Target;
use crate::worker::{Sizes, nanos};
use crate::workload::{Workload, filling};

/// How long a server is pushed to its limit, to know what a percentage of it is.
const PROBE: Duration = Duration::from_secs(10);
const THREADS_MAX: usize = 64;
const CONNECTIONS_MAX: usize = 20_000;
const DEPTH_MAX: usize = 64;
const ROUNDS_MAX: u32 = 100;

/// How much load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// As much as is answered: every connection sends its next request when it has its answer.
    Max,
    /// Requests a second, by a schedule that does not wait for answers.
    PerSecond(f64),
    /// The same, at this part of what the server was just seen to take at most.
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
    /// Requests on their way on one connection at once.
    pub depth: usize,
    pub threads: usize,
    /// For one request.
    pub timeout: Duration,
    pub seed: u64,
    pub currency: String,
    /// The prefix of the data of an earlier run, which is used again.
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
        let ask = |is_so: bool, otherwise: String| {
            if is_so { Ok(()) } else { Err(LoadError::Options(otherwise)) }
        };
        workload.check().map_err(LoadError::Options)?;
        ask((1..=THREADS_MAX).contains(&self.threads), format!("threads: expected 1 to {THREADS_MAX}"))?;
        ask(
            (self.threads..=CONNECTIONS_MAX).contains(&self.connections),
            format!("connections: expected one for each thread at least, and {CONNECTIONS_MAX} at most"),
        )?;
        ask((1..=DEPTH_MAX).contains(&self.depth), format!("depth: expected 1 to {DEPTH_MAX}"))?;
        ask((1..=ROUNDS_MAX).contains(&self.rounds), format!("repeat: expected 1 to {ROUNDS_MAX}"))?;
        ask(!self.duration.is_zero(), "duration: expected more than 0".to_owned())?;
        let rate = match self.rate {
            Rate::Max => 1.0,
            Rate::PerSecond(rate) | Rate::OfMax(rate) => rate,
        };
        ask(rate > 0.0 && rate.is_finite(), "rate: expected more than 0".to_owned())?;
        let under_way = (self.connections * self.depth) as u64;
        ask(
            !workload.keeps_buyers() || workload.data.users >= 2 * under_way,
            format!(
                "users: {} are too few for {under_way} requests at once, expected twice as many",
                workload.data.users
            ),
        )
    }
}

/// What happens while a run goes on.
#[derive(Debug)]
pub enum Event {
    Setup {
        what: &'static str,
        done: u64,
        total: u64,
    },
    /// The most that the server took, in requests a second.
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

/// Puts the load of a workload on the target. When `stop` becomes true the run ends early and still reports.
pub fn run(
    target: &Target,
    workload: &Workload,
    options: &Options,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(&Event),
) -> Result<Report, LoadError> {
    options.check(workload)?;
    setup::knock(target, options.timeout)?;
    let began = SystemTime::now();
    let run = format!("r{:x}", began.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros());
    let prefix = options.reuse.clone().unwrap_or_else(|| format!("bench-{run}"));
    let names = Names { prefix, run };
    let sizes = Sizes { connections: options.connections, depth: options.depth, timeout: options.timeout };
    let mut fleet = Fleet::new(target, options.threads, sizes, options.seed)?;
    let before = prepare(&mut fleet, target, workload, options, &names, stop, observe)?;
    let plan = Plan::new(workload, target, names.clone());
    let rate = find_rate(&mut fleet, &plan, options, stop, observe)?;
    let load = Load {
        rate,
        arrivals: options.arrivals,
        warm_up: nanos(options.warm_up),
        duration: nanos(options.duration),
    };
    let mut rounds: Vec<Measured> = Vec::new();
    for _ in 0..options.rounds {
        rounds.push(fleet.load(&plan, load, stop, observe)?);
        if stop.load(Ordering::Relaxed) || rounds.last().is_some_and(|round| round.is_gone) {
            break;
        }
    }
    let check = if workload.needs_products() {
        observe(&Event::Checking { orders: fleet.orders().len() as u64 });
        Some(check::check(&mut fleet, target, &names, &before)?)
    } else {
        None
    };
    let settings = Settings::new(options, workload, rate, &names.prefix, began);
    Ok(Report::new(settings, &plan.kinds, &rounds, check))
}

/// Makes the data that the workload wants, and answers what units there are before the first order of the run.
fn prepare(
    fleet: &mut Fleet,
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
        observe(&Event::Setup { what: "stock figures", done: 0, total: data.products });
        let products: Vec<u64> = (0..data.products).collect();
        Before::Read(check::levels(fleet, target, names, &products)?)
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
        let told = |done| observe(&Event::Setup { what, done, total: times });
        let tally = fleet.fill(&plan, flow, times, stop, told)?;
        if stop.load(Ordering::Relaxed) {
            return Err(LoadError::Interrupted);
        }
        refuse_errors(what, &tally)?;
        observe(&Event::Setup { what, done: times, total: times });
    }
    if data.baskets > 0 {
        fleet.begin_with_the_first_buyer();
    }
    Ok(before)
}

fn refuse_errors(what: &'static str, tally: &Tally) -> Result<(), LoadError> {
    match tally.calls.iter().flat_map(|call| &call.errors).next() {
        Some((error, count)) => {
            Err(LoadError::Setup { what, why: format!("{count} requests failed: {error}") })
        }
        None => Ok(()),
    }
}

fn find_rate(
    fleet: &mut Fleet,
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
    let measured = fleet.load(plan, load, stop, observe)?;
    let answered: u64 = measured.tally.calls.iter().map(|call| call.answered).sum();
    let rate = float(answered) * float(SECOND) / float(measured.duration.max(1));
    if answered == 0 {
        return Err(LoadError::Options(
            "nothing was answered while looking for the most the server takes".to_owned(),
        ));
    }
    if stop.load(Ordering::Relaxed) {
        return Err(LoadError::Interrupted);
    }
    observe(&Event::Probed { rate });
    Ok(Some(rate * part))
}
