//! Random operations on an engine and on the model; their results must agree.
//!
//! Names are few, so that operations conflict; time jumps to the exact instants of expiry; the engine is restarted in
//! between. A run is determined by its seed: set `MW_SEED` to the printed seed to repeat a failure. Positions are opaque
//! and not compared, nor is the time at which an expired hold was closed, which no reader sees.

mod feed;
mod observe;
mod step;
mod world;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use mw_domain::Timestamp;

use crate::changes::{FeedSettings, Topics};
use crate::contract::fixtures::walk;
use crate::export::Checkpoint;
use crate::model::Model;
use crate::{ExportImport, SharedStore, Store};
use world::World;

/// Steps between two comparisons of the whole visible state.
const STEPS_PER_COMPARISON: usize = 20;
/// How long the changes of a run are kept: to its end, whatever times it jumps to. An engine under test keeps them as long.
pub const FEED_RETENTION_MS: i64 = 100 * 365 * 86_400_000;
/// Steps printed when a run fails.
const RECENT_MAX: usize = 12;

const SEED_VARIABLE: &str = "MW_SEED";
const LONG_VARIABLE: &str = "MW_TEST_LONG";
/// The factor of the number of seeds in the long form.
const LONG_SEEDS: usize = 20;
/// The factor of the number of steps in the long form.
const LONG_STEPS: usize = 3;

fn is_long() -> bool {
    std::env::var(LONG_VARIABLE).is_ok_and(|value| !value.is_empty() && value != "0")
}

/// The seeds of a test: `count` new ones, more in the long form, or the one that `MW_SEED` names.
///
/// # Panics
/// If `MW_SEED` is not a number.
pub fn seeds(count: usize) -> Vec<u64> {
    if let Ok(text) = std::env::var(SEED_VARIABLE) {
        let seed = text.parse();
        return vec![seed.unwrap_or_else(|_| panic!("{SEED_VARIABLE} is no number: {text}"))];
    }
    let count = if is_long() { count * LONG_SEEDS } else { count };
    (0..count).map(|_| rand::random()).collect()
}

/// The length of a run: `count`, or more in the long form.
pub fn steps(count: usize) -> usize {
    if is_long() { count * LONG_STEPS } else { count }
}

/// Compares an engine with the model over `steps` random operations.
///
/// `open` opens the engine on the same data every time: first empty, then after each restart, when the previous handle
/// is dropped.
///
/// # Panics
/// If a result of the engine differs from the model's, with the seed, the step and both results.
pub async fn run(seed: u64, steps: usize, mut open: impl AsyncFnMut() -> SharedStore) {
    // Printed first, so that the seed is known even if the run hangs or the process crashes.
    eprintln!("{SEED_VARIABLE}={seed}");
    let mut world = World::new(seed);
    let feed = FeedSettings { topics: Topics::ALL, retention_ms: FEED_RETENTION_MS };
    let oracle: SharedStore = Arc::new(Model::with_feed(feed));
    let mut log = Log { seed, number: 0, recent: VecDeque::new() };
    let mut engine = open().await;
    for number in 1..=steps {
        log.number = number;
        if world.restarts() {
            log.note("restart");
            drop(engine);
            engine = open().await;
            compare_stores(&log, &mut world, &oracle, &engine).await;
            compare_feeds(&log, &mut world, &oracle, &engine).await;
            continue;
        }
        let step = world.step();
        log.note(&format!("{} {step:?}", world.now));
        let expected = step.apply(&*oracle).await;
        let result = step.apply(&*engine).await;
        world.learn(&step, step::is_done(&expected));
        log.compare("the result", &expected, &result);
        if number % STEPS_PER_COMPARISON == 0 {
            compare_stores(&log, &mut world, &oracle, &engine).await;
        }
    }
    compare_stores(&log, &mut world, &oracle, &engine).await;
    compare_feeds(&log, &mut world, &oracle, &engine).await;
    log.note("export of the engine, import into a new model");
    let copy = copy_of(&*engine).await;
    compare_stores(&log, &mut world, &oracle, &copy).await;
}

/// Imports the state after `steps` random operations into `store`.
///
/// # Panics
/// If the import fails.
pub async fn fill(seed: u64, steps: usize, store: &dyn Store) -> Filled {
    let mut world = World::new(seed);
    let oracle = Model::new();
    for _ in 0..steps {
        let step = world.step();
        let result = step.apply(&oracle).await;
        world.learn(&step, step::is_done(&result));
    }
    transfer(&oracle, store).await;
    Filled { seed, world, oracle: Arc::new(oracle) }
}

/// The expected state of a store that was filled with the records of a model.
pub struct Filled {
    seed: u64,
    world: World,
    oracle: SharedStore,
}

impl std::fmt::Debug for Filled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filled").field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Filled {
    /// # Panics
    /// If the store differs from the model that its records came from.
    pub async fn compare(&mut self, store: &SharedStore) {
        let log = Log { seed: self.seed, number: 0, recent: VecDeque::new() };
        compare_stores(&log, &mut self.world, &self.oracle, store).await;
    }
}

async fn copy_of(store: &dyn Store) -> SharedStore {
    let copy = Model::new();
    transfer(store, &copy).await;
    Arc::new(copy)
}

async fn transfer<S: ExportImport + ?Sized, T: ExportImport + ?Sized>(from: &S, to: &T) {
    let export = from.export().await.unwrap();
    let records = walk(50, async |request| export.page(request).await).await.unwrap();
    let checkpoint = Checkpoint { import: "copy".to_owned(), done: records.len() as u64 };
    to.import(records, checkpoint).await.unwrap();
}

/// Compares the whole visible state.
async fn compare_stores(log: &Log, world: &mut World, oracle: &SharedStore, engine: &SharedStore) {
    let now: Timestamp = world.now;
    let limit = world.page_size();
    let expected = observe::everything(&**oracle, world, now, 1_000).await;
    let found = observe::everything(&**engine, world, now, limit).await;
    assert_eq!(expected.len(), found.len(), "{log}");
    for ((subject, expected), (_, result)) in expected.iter().zip(&found) {
        log.compare(subject, expected, result);
    }
}

/// Compares what both feeds say about every subject, and the engine's feed with itself when it is read again.
async fn compare_feeds(log: &Log, world: &mut World, oracle: &SharedStore, engine: &SharedStore) {
    let topics = engine.feed().topics;
    let expected = feed::read(&**oracle, topics, world.now, 1_000).await;
    let found = feed::read(&**engine, topics, world.now, 1_000).await;
    let (expected, by_subject) = (feed::by_subject(&expected), feed::by_subject(&found));
    let subjects: BTreeSet<_> = expected.keys().chain(by_subject.keys()).collect();
    for subject in subjects {
        let of = |feed: &BTreeMap<_, String>| feed.get(subject).cloned().unwrap_or_default();
        log.compare(&format!("feed of {subject:?}"), &of(&expected), &of(&by_subject));
    }
    let again = feed::read(&**engine, topics, world.now, world.page_size()).await;
    let [found, again] = [&found, &again].map(|changes| format!("{:?}", feed::distinct(changes)));
    log.compare("the feed read again", &found, &again);
}

/// The progress of a run and its most recent steps.
struct Log {
    seed: u64,
    number: usize,
    recent: VecDeque<String>,
}

impl Log {
    fn note(&mut self, what: &str) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(format!("{} {what}", self.number));
    }

    fn compare(&self, subject: &str, expected: &str, result: &str) {
        assert!(expected == result, "{self}\n{subject}:\n   model: {expected}\n  engine: {result}\n");
    }
}

impl std::fmt::Display for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{SEED_VARIABLE}={} step {}, after:", self.seed, self.number)?;
        for step in &self.recent {
            writeln!(f, "    {step}")?;
        }
        Ok(())
    }
}
