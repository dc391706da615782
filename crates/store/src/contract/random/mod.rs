//! Random operations on an engine and on the model, whose answers must agree.
//!
//! Names are few, so that operations meet; time jumps to the very instants at which things expire; the engine is closed
//! and opened again in between. A run is its seed: what failed once fails again with `MW_SEED` set to what it printed.
//! Positions are the engine's own and never compared, nor is when a hold was settled: a reader cannot tell.

mod observe;
mod step;
mod world;

use std::collections::VecDeque;
use std::sync::Arc;

use mw_domain::Timestamp;

use crate::contract::given::walk;
use crate::model::Model;
use crate::records::Checkpoint;
use crate::{Records, SharedStore, Store};
use world::World;

/// Steps between two looks at everything there is.
const STEPS_PER_LOOK: usize = 20;
/// Steps told of when a run fails.
const RECENT_MAX: usize = 12;

const SEED_VARIABLE: &str = "MW_SEED";
const LONG_VARIABLE: &str = "MW_TEST_LONG";
/// How many times more seeds the long form takes.
const LONG_SEEDS: usize = 20;
/// How many times longer a run of it is.
const LONG_STEPS: usize = 3;

fn is_long() -> bool {
    std::env::var(LONG_VARIABLE).is_ok_and(|value| !value.is_empty() && value != "0")
}

/// The seeds of a test: `count` new ones, more in the long form, or the one that `MW_SEED` names.
///
/// # Panics
/// Where `MW_SEED` is no number.
pub fn seeds(count: usize) -> Vec<u64> {
    if let Ok(text) = std::env::var(SEED_VARIABLE) {
        let seed = text.parse();
        return vec![seed.unwrap_or_else(|_| panic!("{SEED_VARIABLE} is no number: {text}"))];
    }
    let count = if is_long() { count * LONG_SEEDS } else { count };
    (0..count).map(|_| rand::random()).collect()
}

/// The length of a run: as asked, longer in the long form.
pub fn steps(count: usize) -> usize {
    if is_long() { count * LONG_STEPS } else { count }
}

/// Compares an engine with the model over `steps` random operations.
///
/// `open` opens the engine on the same data every time: first empty, then again after each restart, when the handle
/// before is gone.
///
/// # Panics
/// Where the engine's answer is not the model's, with the seed, the step and both answers.
pub async fn run(seed: u64, steps: usize, mut open: impl AsyncFnMut() -> SharedStore) {
    // Also where the run hangs or the process dies.
    eprintln!("{SEED_VARIABLE}={seed}");
    let mut world = World::new(seed);
    let oracle: SharedStore = Arc::new(Model::new());
    let mut log = Log { seed, number: 0, recent: VecDeque::new() };
    let mut engine = open().await;
    for number in 1..=steps {
        log.number = number;
        if world.restarts() {
            log.note("restart");
            drop(engine);
            engine = open().await;
            look(&log, &mut world, &oracle, &engine).await;
            continue;
        }
        let step = world.step();
        log.note(&format!("{} {step:?}", world.now));
        let expected = step.apply(&*oracle).await;
        let answer = step.apply(&*engine).await;
        world.learn(&step, step::is_done(&expected));
        log.compare("the answer", &expected, &answer);
        if number % STEPS_PER_LOOK == 0 {
            look(&log, &mut world, &oracle, &engine).await;
        }
    }
    look(&log, &mut world, &oracle, &engine).await;
    log.note("export of the engine, import into a new model");
    let copy = copy_of(&*engine).await;
    look(&log, &mut world, &oracle, &copy).await;
}

/// Fills `store` with what `steps` random operations leave behind.
///
/// # Panics
/// Where the store cannot take the records.
pub async fn fill(seed: u64, steps: usize, store: &dyn Store) -> Filled {
    let mut world = World::new(seed);
    let oracle = Model::new();
    for _ in 0..steps {
        let step = world.step();
        let answer = step.apply(&oracle).await;
        world.learn(&step, step::is_done(&answer));
    }
    transfer(&oracle, store).await;
    Filled { seed, world, oracle: Arc::new(oracle) }
}

/// What a store must show that was filled with the records of a model.
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
    /// Where the store shows anything else than the model its records came from.
    pub async fn compare(&mut self, store: &SharedStore) {
        let log = Log { seed: self.seed, number: 0, recent: VecDeque::new() };
        look(&log, &mut self.world, &self.oracle, store).await;
    }
}

async fn copy_of(store: &dyn Store) -> SharedStore {
    let copy = Model::new();
    transfer(store, &copy).await;
    Arc::new(copy)
}

async fn transfer<S: Records + ?Sized, T: Records + ?Sized>(from: &S, to: &T) {
    let export = from.export().await.unwrap();
    let records = walk(50, async |request| export.page(request).await).await.unwrap();
    let checkpoint = Checkpoint { import: "copy".to_owned(), done: records.len() as u64 };
    to.import(records, checkpoint).await.unwrap();
}

/// Compares everything a reader can see.
async fn look(log: &Log, world: &mut World, oracle: &SharedStore, engine: &SharedStore) {
    let now: Timestamp = world.now;
    let limit = world.page_size();
    let expected = observe::everything(&**oracle, world, now, 1_000).await;
    let found = observe::everything(&**engine, world, now, limit).await;
    assert_eq!(expected.len(), found.len(), "{log}");
    for ((question, expected), (_, answer)) in expected.iter().zip(&found) {
        log.compare(question, expected, answer);
    }
}

/// Where a run stands.
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

    fn compare(&self, question: &str, expected: &str, answer: &str) {
        assert!(expected == answer, "{self}\n{question}:\n   model: {expected}\n  engine: {answer}\n");
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
