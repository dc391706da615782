//! The worker pool: all generator threads, which set up data, run the load and read it back together.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use crate::error::LoadError;
use crate::numbers::float;
use crate::read_back::ReadBack;
use crate::run::Event;
use crate::scenarios::{Arrival, Phases, Placed, Plan, Scenario, WorkerState};
use crate::schedule::{Arrivals, Nanos, Schedule};
use crate::stats::{Second, Stats};
use crate::target::Target;
use crate::worker::{Ended, Sizes, Worker, nanos};

pub(crate) struct WorkerPool {
    members: Vec<Member>,
    origin: Instant,
}

struct Member {
    worker: Worker,
    state: WorkerState,
}

/// Rate and duration of a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Scheduled requests a second; `None` for a closed loop.
    pub(crate) rate: Option<f64>,
    pub(crate) arrivals: Arrivals,
    pub(crate) warm_up: Nanos,
    pub(crate) duration: Nanos,
}

/// The result of a round of load.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) stats: Stats,
    /// Of the measured time, all threads together.
    pub(crate) seconds: Vec<Second>,
    pub(crate) duration: Nanos,
    pub(crate) is_gone: bool,
}

impl WorkerPool {
    /// The connections are spread over the threads.
    pub(crate) fn new(target: &Target, threads: usize, sizes: Sizes, seed: u64) -> Result<Self, LoadError> {
        let origin = Instant::now();
        let member = |index: usize| {
            let connections = sizes.connections / threads + usize::from(index < sizes.connections % threads);
            Ok(Member {
                worker: Worker::new(target, Sizes { connections, ..sizes }, origin)?,
                state: WorkerState::new(seed, index as u64, threads as u64),
            })
        };
        Ok(Self { members: (0..threads).map(member).collect::<Result<_, _>>()?, origin })
    }

    /// All orders that were acknowledged so far.
    pub(crate) fn orders(&self) -> Vec<Placed> {
        self.members.iter().flat_map(|member| &member.state.orders).copied().collect()
    }

    pub(crate) fn unresolved(&self) -> u64 {
        self.members.iter().map(|member| member.state.unresolved).sum()
    }

    /// The next flow has the first buyer again.
    pub(crate) fn restart_buyers(&mut self) {
        for member in &mut self.members {
            member.state.buyers = 0;
        }
    }

    /// Runs a flow of the plan a number of times, for consecutive users from the first.
    pub(crate) fn fill(
        &mut self,
        plan: &Plan,
        flow: usize,
        times: u64,
        stop: &AtomicBool,
        mut message: impl FnMut(u64),
    ) -> Result<Stats, LoadError> {
        let threads = self.members.len() as u64;
        let now = nanos(self.origin.elapsed());
        let phases = Phases { start: now, from: now, to: Nanos::MAX };
        let mut user = 0;
        let arrival = |member: &mut Member| {
            let left = times / threads + u64::from(user < times % threads);
            let arrival = Arrival::Times { flow, left, user };
            user += left;
            let _ = member;
            arrival
        };
        let mut done = 0;
        let measured = self.shop(plan, phases, stop, arrival, |second| {
            done += second.answered;
            message(done);
        })?;
        if measured.is_gone {
            return Err(LoadError::Setup {
                what: "carts and orders",
                why: "the server became unreachable".to_owned(),
            });
        }
        Ok(measured.stats)
    }

    pub(crate) fn load(
        &mut self,
        plan: &Plan,
        load: Load,
        stop: &AtomicBool,
        observe: &mut dyn FnMut(&Event),
    ) -> Result<Measured, LoadError> {
        let start = nanos(self.origin.elapsed());
        let from = start + load.warm_up;
        let phases = Phases { start, from, to: from + load.duration };
        let threads = float(self.members.len() as u64);
        let arrival = |member: &mut Member| match load.rate {
            None => Arrival::Closed,
            Some(rate) => {
                let flows = rate / threads / plan.choices.calls_per_flow();
                Arrival::Open(Schedule::new(load.arrivals, flows, start, member.state.random()))
            }
        };
        self.shop(plan, phases, stop, arrival, |second| observe(&Event::second(second, &load)))
    }

    fn shop(
        &mut self,
        plan: &Plan,
        phases: Phases,
        stop: &AtomicBool,
        mut arrival: impl FnMut(&mut Member) -> Arrival,
        message: impl FnMut(&Second),
    ) -> Result<Measured, LoadError> {
        let (sender, seconds) = mpsc::channel();
        let threads = self.members.len();
        let paces: Vec<Arrival> = self.members.iter_mut().map(&mut arrival).collect();
        let (tallies, seconds) = thread::scope(|scope| {
            let at_work: Vec<_> = self
                .members
                .iter_mut()
                .zip(paces)
                .map(|(member, arrival)| {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        let Member { worker, state } = member;
                        let mut job = Scenario::new(plan, state, arrival, phases, stop, sender);
                        let ended = worker.drive(&mut job)?;
                        Ok((job.finish(worker.now()), ended))
                    })
                })
                .collect();
            drop(sender);
            let seconds = merge_seconds(&seconds, threads, message);
            let tallies: Result<Vec<(Stats, Ended)>, LoadError> =
                at_work.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(died()))).collect();
            (tallies, seconds)
        });
        let mut stats = Stats::new(plan.kinds.len());
        let mut is_gone = false;
        for (one, ended) in tallies? {
            stats.add(&one);
            is_gone |= ended == Ended::Gone;
        }
        let duration = stats.ended.saturating_sub(phases.from);
        let seconds = seconds.into_values().filter(|second| !second.is_warm_up).collect();
        Ok(Measured { stats, seconds, duration, is_gone })
    }

    /// Reads every item on all threads, and returns the results in their order.
    pub(crate) fn read<T: Sync, R: Send>(
        &mut self,
        target: &Target,
        items: &[T],
        path: impl Fn(&T, &mut Vec<u8>) + Sync,
        parse: impl Fn(&T, Option<(u16, &[u8])>) -> R + Sync,
    ) -> Result<Vec<R>, LoadError> {
        let part = items.len().div_ceil(self.members.len()).max(1);
        let (path, parse) = (&path, &parse);
        let parts: Result<Vec<Vec<R>>, LoadError> = thread::scope(|scope| {
            let at_work: Vec<_> = self
                .members
                .iter_mut()
                .zip(items.chunks(part))
                .map(|(member, items)| {
                    scope.spawn(move || read_part(&mut member.worker, target, items, path, parse))
                })
                .collect();
            at_work.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(died()))).collect()
        });
        Ok(parts?.into_iter().flatten().collect())
    }
}

fn read_part<T, R>(
    worker: &mut Worker,
    target: &Target,
    items: &[T],
    path: &impl Fn(&T, &mut Vec<u8>),
    parse: &impl Fn(&T, Option<(u16, &[u8])>) -> R,
) -> Result<Vec<R>, LoadError> {
    let mut found: Vec<Option<R>> = items.iter().map(|_| None).collect();
    let path = |index: usize, out: &mut Vec<u8>| {
        if let Some(item) = items.get(index) {
            path(item, out);
        }
    };
    let take = |index: usize, response: Option<(u16, &[u8])>| {
        if let Some((item, found)) = items.get(index).zip(found.get_mut(index)) {
            *found = Some(parse(item, response));
        }
    };
    worker.drive(&mut ReadBack::new(target, items.len(), path, take))?;
    Ok(found.into_iter().zip(items).map(|(found, item)| found.unwrap_or_else(|| parse(item, None))).collect())
}

/// Merges the seconds of all threads, and reports each once every thread has contributed.
fn merge_seconds(
    seconds: &Receiver<Second>,
    threads: usize,
    mut message: impl FnMut(&Second),
) -> BTreeMap<(bool, u64), Second> {
    let mut whole: BTreeMap<(bool, u64), (usize, Second)> = BTreeMap::new();
    for part in seconds {
        let key = (!part.is_warm_up, part.index);
        let (parts, second) =
            whole.entry(key).or_insert_with(|| (0, Second::new(part.is_warm_up, part.index)));
        second.add(&part);
        *parts += 1;
        if *parts == threads {
            message(second);
        }
    }
    whole.into_iter().map(|(key, (_, second))| (key, second)).collect()
}

fn died() -> LoadError {
    LoadError::Options("a thread of the generator died".to_owned())
}
