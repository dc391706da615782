//! All threads of the generator, and what they do together: fill the shop, put load on it, read it back.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use crate::error::LoadError;
use crate::figures::float;
use crate::reading::Reading;
use crate::run::Event;
use crate::schedule::{Arrivals, Nanos, Schedule};
use crate::shopping::{Pace, Placed, Plan, Shopper, Shopping, Span};
use crate::tally::{Second, Tally};
use crate::target::Target;
use crate::worker::{Ended, Sizes, Worker, nanos};

pub(crate) struct Fleet {
    members: Vec<Member>,
    origin: Instant,
}

struct Member {
    worker: Worker,
    shopper: Shopper,
}

/// How fast, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Requests a second by a schedule; `None`: as fast as they are answered.
    pub(crate) rate: Option<f64>,
    pub(crate) arrivals: Arrivals,
    pub(crate) warm_up: Nanos,
    pub(crate) duration: Nanos,
}

/// What a round of load brought.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) tally: Tally,
    /// Of the measured time, by number, all threads together.
    pub(crate) seconds: Vec<Second>,
    pub(crate) duration: Nanos,
    pub(crate) is_gone: bool,
}

impl Fleet {
    /// The connections are spread over the threads.
    pub(crate) fn new(target: &Target, threads: usize, sizes: Sizes, seed: u64) -> Result<Self, LoadError> {
        let origin = Instant::now();
        let member = |index: usize| {
            let connections = sizes.connections / threads + usize::from(index < sizes.connections % threads);
            Ok(Member {
                worker: Worker::new(target, Sizes { connections, ..sizes }, origin)?,
                shopper: Shopper::new(seed, index as u64, threads as u64),
            })
        };
        Ok(Self { members: (0..threads).map(member).collect::<Result<_, _>>()?, origin })
    }

    /// All orders that were acknowledged so far.
    pub(crate) fn orders(&self) -> Vec<Placed> {
        self.members.iter().flat_map(|member| &member.shopper.orders).copied().collect()
    }

    pub(crate) fn unresolved(&self) -> u64 {
        self.members.iter().map(|member| member.shopper.unresolved).sum()
    }

    /// Whoever comes next is who came first.
    pub(crate) fn begin_with_the_first_buyer(&mut self) {
        for member in &mut self.members {
            member.shopper.buyers = 0;
        }
    }

    /// Runs a flow of the plan so many times, for users from the first on.
    pub(crate) fn fill(
        &mut self,
        plan: &Plan,
        flow: usize,
        times: u64,
        stop: &AtomicBool,
        mut told: impl FnMut(u64),
    ) -> Result<Tally, LoadError> {
        let threads = self.members.len() as u64;
        let now = nanos(self.origin.elapsed());
        let span = Span { start: now, from: now, to: Nanos::MAX };
        let mut user = 0;
        let pace = |member: &mut Member| {
            let left = times / threads + u64::from(user < times % threads);
            let pace = Pace::Times { flow, left, user };
            user += left;
            let _ = member;
            pace
        };
        let mut done = 0;
        let measured = self.shop(plan, span, stop, pace, |second| {
            done += second.answered;
            told(done);
        })?;
        if measured.is_gone {
            return Err(LoadError::Setup {
                what: "carts and orders",
                why: "the server went away".to_owned(),
            });
        }
        Ok(measured.tally)
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
        let span = Span { start, from, to: from + load.duration };
        let threads = float(self.members.len() as u64);
        let pace = |member: &mut Member| match load.rate {
            None => Pace::Closed,
            Some(rate) => {
                let flows = rate / threads / plan.choices.calls_per_flow();
                Pace::Open(Schedule::new(load.arrivals, flows, start, member.shopper.random()))
            }
        };
        self.shop(plan, span, stop, pace, |second| observe(&Event::second(second, &load)))
    }

    fn shop(
        &mut self,
        plan: &Plan,
        span: Span,
        stop: &AtomicBool,
        mut pace: impl FnMut(&mut Member) -> Pace,
        told: impl FnMut(&Second),
    ) -> Result<Measured, LoadError> {
        let (sender, seconds) = mpsc::channel();
        let threads = self.members.len();
        let paces: Vec<Pace> = self.members.iter_mut().map(&mut pace).collect();
        let (tallies, seconds) = thread::scope(|scope| {
            let at_work: Vec<_> = self
                .members
                .iter_mut()
                .zip(paces)
                .map(|(member, pace)| {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        let Member { worker, shopper } = member;
                        let mut job = Shopping::new(plan, shopper, pace, span, stop, sender);
                        let ended = worker.drive(&mut job)?;
                        Ok((job.finish(worker.now()), ended))
                    })
                })
                .collect();
            drop(sender);
            let seconds = gather(&seconds, threads, told);
            let tallies: Result<Vec<(Tally, Ended)>, LoadError> =
                at_work.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(died()))).collect();
            (tallies, seconds)
        });
        let mut tally = Tally::new(plan.kinds.len());
        let mut is_gone = false;
        for (one, ended) in tallies? {
            tally.add(&one);
            is_gone |= ended == Ended::Gone;
        }
        let duration = tally.ended.saturating_sub(span.from);
        let seconds = seconds.into_values().filter(|second| !second.is_warm_up).collect();
        Ok(Measured { tally, seconds, duration, is_gone })
    }

    /// Reads every item, all threads together, and answers what was made of each, in their order.
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
    let take = |index: usize, answer: Option<(u16, &[u8])>| {
        if let Some((item, found)) = items.get(index).zip(found.get_mut(index)) {
            *found = Some(parse(item, answer));
        }
    };
    worker.drive(&mut Reading::new(target, items.len(), path, take))?;
    Ok(found.into_iter().zip(items).map(|(found, item)| found.unwrap_or_else(|| parse(item, None))).collect())
}

/// Puts the seconds of all threads together, and tells of each once every thread has had its part.
fn gather(
    seconds: &Receiver<Second>,
    threads: usize,
    mut told: impl FnMut(&Second),
) -> BTreeMap<(bool, u64), Second> {
    let mut whole: BTreeMap<(bool, u64), (usize, Second)> = BTreeMap::new();
    for part in seconds {
        let key = (!part.is_warm_up, part.index);
        let (parts, second) =
            whole.entry(key).or_insert_with(|| (0, Second::new(part.is_warm_up, part.index)));
        second.add(&part);
        *parts += 1;
        if *parts == threads {
            told(second);
        }
    }
    whole.into_iter().map(|(key, (_, second))| (key, second)).collect()
}

fn died() -> LoadError {
    LoadError::Options("a thread of the generator died".to_owned())
}
