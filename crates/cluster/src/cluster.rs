//! A cluster that ends with us: its start, and everything about it as a whole.

use crate::cache::{self, Lock};
use crate::error::Result;
use crate::launch::Launch;
use crate::network::{self, Taken};
use crate::node::{Node, Slot};
use crate::options::{ClusterOptions, plans};
use crate::tls::{self, Certificates};
use crate::watchdog::Watchdog;
use crate::{CQL_PORT, archive, log};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

#[derive(Debug)]
pub struct Cluster {
    options: ClusterOptions,
    slots: Vec<Slot>,
    pub(crate) launch: Launch,
    certificates: Option<Certificates>,
    watchdog: Watchdog,
    outlives_terminal: bool,
    /// Behind the watchdog: a directory goes after those who write into it.
    _home: Home,
    _network: Taken,
}

/// The directory of a cluster.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) dir: PathBuf,
    /// `None` where the directory is to stay.
    ours: Option<Lock>,
}

impl Cluster {
    /// Starts the nodes and waits until clients may come and every node sees every other. When that fails nothing is
    /// left running, and the error shows the end of the log of the node that failed.
    pub fn start(options: ClusterOptions) -> Result<Self> {
        options.check()?;
        let root = cache::root()?;
        let home = Home::temporary(&root, &options.name)?;
        Self::start_in(options, home, false)
    }

    pub(crate) fn start_in(options: ClusterOptions, home: Home, outlives_terminal: bool) -> Result<Self> {
        let root = cache::root()?;
        let launch = Launch::prepare(&root, options.report)?;
        let launch = archive::equip(launch, &root, options.report);
        Self::start_on(launch, options, home, outlives_terminal)
    }

    pub(crate) fn start_on(
        launch: Launch,
        options: ClusterOptions,
        home: Home,
        outlives_terminal: bool,
    ) -> Result<Self> {
        let started = Instant::now();
        let root = cache::root()?;
        let network = network::take(options.network, options.nodes, &root.join("networks"))?;
        let plans = plans(&options, network.bytes);
        let certificates = options
            .tls
            .then(|| tls::certificates(&launch.java, &plans, &home.dir.join("tls")))
            .transpose()?;
        let slots = plans
            .into_iter()
            .map(|plan| {
                let dir = home.dir.join(format!("node{}", plan.number));
                Slot::new(plan, dir)
            })
            .collect();
        let watchdog = Watchdog::start()?;
        let cluster = Self {
            options,
            slots,
            launch,
            certificates,
            watchdog,
            outlives_terminal,
            _home: home,
            _network: network,
        };
        cluster.start_nodes()?;
        let nodes = cluster.slots.len();
        let plural = if nodes == 1 { "" } else { "s" };
        cluster.report(&format!("{nodes} node{plural} up after {:.1} s", started.elapsed().as_secs_f64()));
        Ok(cluster)
    }

    /// The first node makes the cluster, the others join it at the same time.
    fn start_nodes(&self) -> Result<()> {
        let Some((seed, others)) = self.slots.split_first() else { return Ok(()) };
        for slot in &self.slots {
            Launch::configure(&self.options, slot, &seed.plan, self.certificates.as_ref())?;
        }
        self.spawn(seed)?;
        seed.wait_listening(self.deadline())?;
        self.report(&format!("node 1 of {} listens on {}", self.slots.len(), seed.plan.address));
        for slot in others {
            self.spawn(slot)?;
        }
        let deadline = self.deadline();
        for slot in others {
            slot.wait_listening(deadline)?;
            self.report(&format!(
                "node {} of {} listens on {}",
                slot.plan.number,
                self.slots.len(),
                slot.plan.address
            ));
        }
        for slot in &self.slots {
            slot.wait(deadline, "see the other nodes", || self.sees_all(slot))?;
        }
        if self.options.auth {
            seed.wait(deadline, "create the superuser", || self.has_superuser())?;
        }
        Ok(())
    }

    /// Starts a node that has been stopped or killed.
    pub(crate) fn start_again(&self, slot: &Slot) -> Result<()> {
        let others: Vec<(&Slot, u64)> = self
            .slots
            .iter()
            .filter(|other| other.plan != slot.plan)
            .filter(|other| other.running().as_ref().is_some_and(|running| !running.paused))
            .map(|other| (other, log::length(&other.log_path())))
            .collect();
        self.spawn(slot)?;
        let deadline = self.deadline();
        slot.wait_listening(deadline)?;
        let address = slot.plan.address;
        slot.wait(deadline, "see the other nodes", || {
            let logged = slot.logged();
            others.iter().all(|(other, _)| log::saw_up(&logged, other.plan.address))
        })?;
        slot.wait(deadline, "come back in the eyes of the others", || {
            others.iter().all(|(other, from)| log::saw_up(&log::since(&other.log_path(), *from), address))
        })
    }

    fn sees_all(&self, slot: &Slot) -> bool {
        let logged = slot.logged();
        self.slots
            .iter()
            .map(|other| other.plan.address)
            .filter(|address| *address != slot.plan.address)
            .all(|address| log::saw_up(&logged, address) && log::saw_normal(&logged, address))
    }

    /// Any node may be the one that makes it, and one that runs on kept data has it from before.
    fn has_superuser(&self) -> bool {
        self.slots.iter().any(|slot| log::since(&slot.log_path(), 0).contains(log::SUPERUSER_CREATED))
    }

    fn spawn(&self, slot: &Slot) -> Result<()> {
        self.launch.spawn(&self.options, slot, &self.watchdog, self.outlives_terminal)
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.options.patience
    }

    fn report(&self, line: &str) {
        (self.options.report)(line);
    }

    /// The nodes, the first data centre's before the second's.
    pub fn nodes(&self) -> impl Iterator<Item = Node<'_>> {
        self.slots.iter().map(|slot| Node { cluster: self, slot })
    }

    /// The node at `index`, counted from 0.
    ///
    /// # Panics
    ///
    /// If there is no such node, as an index into a slice does.
    #[expect(clippy::indexing_slicing, reason = "a test knows how many nodes it started")]
    pub fn node(&self, index: usize) -> Node<'_> {
        Node { cluster: self, slot: &self.slots[index] }
    }

    /// Where a client may begin: every node.
    pub fn contact_points(&self) -> Vec<SocketAddr> {
        self.slots.iter().map(|slot| SocketAddr::from((slot.plan.address, CQL_PORT))).collect()
    }

    /// The authority that signed the nodes' certificates, as PEM; `None` without TLS.
    pub fn ca_pem(&self) -> Option<&Path> {
        self.certificates.as_ref().map(|it| it.ca_pem.as_path())
    }

    /// What `nodetool <arguments>` prints, asked of the first node.
    pub fn nodetool(&self, arguments: &[&str]) -> Result<String> {
        self.node(0).nodetool(arguments)
    }

    pub fn options(&self) -> &ClusterOptions {
        &self.options
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Lets the nodes outlive this process.
    pub(crate) fn release(mut self) -> Result<()> {
        self.watchdog.release()?;
        for slot in &self.slots {
            slot.running().take();
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for slot in &self.slots {
            // The watchdog, which goes next, kills whom we could not.
            let _ = slot.kill();
        }
    }
}

impl Home {
    /// A directory that stays.
    pub(crate) fn kept(dir: PathBuf) -> Self {
        Self { dir, ours: None }
    }

    /// A directory that goes with us. Those whose owners were killed are swept away first.
    pub(crate) fn temporary(root: &Path, name: &str) -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let runs = root.join("runs");
        let _creation = Lock::take(&root.join("runs.lock"), || {})?;
        sweep(&runs);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let dir = runs.join(format!("{name}-{}-{number}", std::process::id()));
        cache::create_dir(&dir)?;
        let ours = Lock::try_take(&dir.join("owner.lock"))?;
        Ok(Self { dir, ours })
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.ours.is_some() {
            let _ = cache::remove_dir(&self.dir);
        }
    }
}

/// Removes directories that nobody owns any more. What cannot be removed now is left for the next time.
fn sweep(runs: &Path) {
    for dir in fs::read_dir(runs).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if let Ok(Some(_unowned)) = Lock::try_take(&dir.join("owner.lock")) {
            let _ = cache::remove_dir(&dir);
        }
    }
}
