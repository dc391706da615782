//! A cluster that ends with this process: its start, and the operations on the whole of it.

use crate::binaries::{self, Binaries};
use crate::member::{Member, MemberState, Running};
use crate::options::{ClusterOptions, Layout, Role, plans};
use crate::user::ServerUser;
use crate::wire::Access;
use crate::{CONFIG_SET, MONGOS, REPLICA_SET, SUPERUSER, SUPERUSER_PASSWORD, ports};
use mw_testbed::{ClusterError, Doing, Process, Result, RunDir, Watchdog, cache};
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

/// Shared by the members, as proof that they belong together.
const KEY_BYTES: usize = 48;

#[derive(Debug)]
pub struct Cluster {
    pub(crate) options: ClusterOptions,
    states: Vec<MemberState>,
    binaries: Binaries,
    user: ServerUser,
    access: Access,
    /// Arguments of every process that depend on files: TLS and the key.
    secured: Vec<String>,
    watchdog: Watchdog,
    /// Dropped after the watchdog: the directory is removed after the processes that write to it.
    _home: RunDir,
}

impl Cluster {
    /// Starts the members and waits until every set has a primary. After a failure no process is left running, and the error
    /// has the end of the log of the member that failed.
    pub fn start(options: ClusterOptions) -> Result<Self> {
        options.check()?;
        let root = ServerUser::find().cache_root()?;
        let home = RunDir::temporary(&root, &format!("mongodb-{}", options.name))?;
        Self::start_in(options, home)
    }

    pub(crate) fn start_in(options: ClusterOptions, home: RunDir) -> Result<Self> {
        let started = Instant::now();
        let user = ServerUser::find();
        let root = user.cache_root()?;
        let binaries = Binaries::get(&root, options.report)?;
        let plans = plans(options.layout);
        let ports = ports::claim(&root.join("ports"), plans.len())?;
        let mut states = Vec::new();
        for (plan, port) in plans.into_iter().zip(ports) {
            let dir = home.dir.join(&plan.name);
            cache::create_dir(&dir)?;
            user.own(&dir)?;
            states.push(MemberState::new(plan, port, dir));
        }
        let (access, secured) = secure(&options, &home.dir, user)?;
        let watchdog = Watchdog::start()?;
        let cluster = Self { options, states, binaries, user, access, secured, watchdog, _home: home };
        cluster.start_members()?;
        let count = cluster.states.len();
        let plural = if count == 1 { "" } else { "es" };
        cluster.report(&format!("{count} process{plural} up after {:.1} s", started.elapsed().as_secs_f64()));
        Ok(cluster)
    }

    pub(crate) fn spawn(&self, state: &MemberState) -> Result<()> {
        let mut running = state.running();
        let path = state.log_path();
        let log = File::options().create(true).append(true).open(&path).at("open", &path)?;
        let mut command = self.command(state);
        command
            .current_dir(&state.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().doing(|| "share a log".to_owned())?)
            .stderr(log);
        self.watchdog.guard(&mut command)?;
        let mut child = command.spawn().doing(|| format!("start {}", state.plan.name))?;
        let Some(process) = Process::find(child.id()) else {
            let _ = child.wait();
            drop(running);
            return Err(state.failed("ended at once"));
        };
        *running = Some(Running { child, process, paused: false });
        Ok(())
    }

    fn command(&self, state: &MemberState) -> Command {
        let mut command = if state.plan.role == Role::Mongos {
            let mut command = self.binaries.mongos(self.user);
            command.args(["--configdb", &self.seed_list(CONFIG_SET)]);
            command
        } else {
            let mut command = self.binaries.mongod(self.user);
            command
                .args(["--dbpath", &state.dir.to_string_lossy()])
                .args(["--wiredTigerCacheSizeGB", "0.25"])
                // Change streams of a quiet shard go on through mongos.
                .args(["--setParameter", "periodicNoopIntervalSecs=1"])
                .args(["--setParameter", "writePeriodicNoops=true"])
                .args(["--setParameter", &format!("ttlMonitorEnabled={}", self.options.ttl_monitor)])
                .args(state.plan.set.iter().flat_map(|set| ["--replSet", set]))
                .args(&self.options.extra_arguments);
            if let Some(size) = self.options.oplog_mib {
                command.args(["--oplogSize", &size.to_string()]);
            }
            command
        };
        let role = match state.plan.role {
            Role::Config => Some("--configsvr"),
            Role::Shard => Some("--shardsvr"),
            Role::Standalone | Role::Data | Role::Mongos => None,
        };
        if let Some(role) = role {
            // By default resharding takes five minutes, also of an empty collection.
            command.arg(role).args(["--setParameter", "reshardingMinimumOperationDurationMillis=0"]);
        }
        command
            .args(["--port", &state.port.port.to_string(), "--bind_ip", "127.0.0.1", "--nounixsocket"])
            .args(["--setParameter", "diagnosticDataCollectionEnabled=false"])
            .args(&self.secured);
        command
    }

    /// `set/host:port,host:port`, as mongos and `addShard` want it.
    pub(crate) fn seed_list(&self, set: &str) -> String {
        format!("{set}/{}", self.addresses(set).join(","))
    }

    fn addresses(&self, set: &str) -> Vec<String> {
        self.states.iter().filter(|it| it.plan.set == Some(set)).map(MemberState::address).collect()
    }

    /// The URI for drivers: of the replica set, the mongos or the standalone server.
    pub fn uri(&self) -> String {
        match self.options.layout {
            Layout::Standalone => self.uri_of(&self.member(0).address(), "directConnection=true"),
            Layout::ReplicaSet { .. } => {
                self.uri_of(&self.addresses(REPLICA_SET).join(","), &format!("replicaSet={REPLICA_SET}"))
            }
            Layout::Sharded => self.uri_of(&self.named(MONGOS).address(), ""),
        }
    }

    pub(crate) fn uri_of(&self, addresses: &str, option: &str) -> String {
        let login =
            if self.options.auth { format!("{SUPERUSER}:{SUPERUSER_PASSWORD}@") } else { String::new() };
        let mut options: Vec<String> =
            [option].iter().filter(|it| !it.is_empty()).map(ToString::to_string).collect();
        if let Some(ca_pem) = self.ca_pem() {
            options.push(format!("tls=true&tlsCAFile={}", escaped(ca_pem)));
        }
        let rest = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("mongodb://{login}{addresses}/{rest}")
    }

    pub(crate) const fn access(&self) -> &Access {
        &self.access
    }

    /// The certificate authority of the members, as PEM; `None` without TLS.
    pub fn ca_pem(&self) -> Option<&Path> {
        self.access.ca_pem.as_deref()
    }

    pub fn options(&self) -> &ClusterOptions {
        &self.options
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.options.start_timeout
    }

    pub(crate) fn report(&self, line: &str) {
        (self.options.report)(line);
    }

    /// All processes, in the order of their start.
    pub fn members(&self) -> impl Iterator<Item = Member<'_>> {
        self.states.iter().map(|state| Member { cluster: self, state })
    }

    /// The members of a replica set.
    pub fn set(&self, name: &str) -> impl Iterator<Item = Member<'_>> {
        self.members().filter(move |member| member.set() == Some(name))
    }

    /// The member at `index`, counted from 0.
    ///
    /// # Panics
    ///
    /// If there is no such member, as an index into a slice does.
    #[expect(clippy::indexing_slicing, reason = "a test knows how many members it started")]
    pub fn member(&self, index: usize) -> Member<'_> {
        Member { cluster: self, state: &self.states[index] }
    }

    /// The member of this name, such as `a-2` or `mongos`.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[expect(clippy::panic, reason = "a test knows the members it started")]
    pub fn named(&self, name: &str) -> Member<'_> {
        self.members().find(|member| member.name() == name).unwrap_or_else(|| panic!("no member `{name}`"))
    }

    /// The primary of a set. Waits until a member is primary and the others that run know it.
    pub fn primary(&self, set: &str) -> Result<Member<'_>> {
        let deadline = self.deadline();
        loop {
            if let Some(member) = self.set(set).find(Member::is_primary) {
                return Ok(member);
            }
            if Instant::now() >= deadline {
                return Err(ClusterError::Node {
                    node: set.to_owned(),
                    what: "has no primary".to_owned(),
                    log: self.set(set).map(|it| it.state.failed("log").to_string()).collect(),
                });
            }
            thread::sleep(crate::member::POLL);
        }
    }

    /// Whether fewer than half of the member's set run besides it.
    pub(crate) fn lacks_majority(&self, state: &MemberState) -> bool {
        let of_set = || self.states.iter().filter(|it| it.plan.set == state.plan.set);
        let runs = |it: &MemberState| it.running().as_ref().is_some_and(|running| !running.paused);
        of_set().filter(|it| runs(it)).count() * 2 <= of_set().count()
    }

    pub(crate) fn states(&self) -> &[MemberState] {
        &self.states
    }

    /// Lets the members outlive this process.
    pub(crate) fn detach(mut self) -> Result<()> {
        self.watchdog.release()?;
        for state in &self.states {
            state.running().take();
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for state in self.states.iter().rev() {
            // The watchdog, dropped next, kills the processes that this could not.
            let _ = state.kill();
        }
    }
}

/// The files of TLS and of the members' key, and the arguments that name them.
fn secure(options: &ClusterOptions, home: &Path, user: ServerUser) -> Result<(Access, Vec<String>)> {
    let mut arguments = Vec::new();
    let ca_pem = if options.tls { Some(tls_arguments(home, user, &mut arguments)?) } else { None };
    if options.auth {
        let path = home.join("keyfile");
        if !path.exists() {
            cache::write(&path, &random_hex()?)?;
        }
        private(&path, user)?;
        arguments.extend(["--keyFile".to_owned(), path.to_string_lossy().into_owned()]);
    }
    Ok((Access { auth: options.auth, ca_pem }, arguments))
}

#[cfg(feature = "tls")]
fn tls_arguments(home: &Path, user: ServerUser, arguments: &mut Vec<String>) -> Result<PathBuf> {
    let made = crate::tls::certificates(&home.join("tls"))?;
    private(&made.member_pem, user)?;
    for argument in [
        "--tlsMode",
        "requireTLS",
        "--tlsCertificateKeyFile",
        &made.member_pem.to_string_lossy(),
        "--tlsCAFile",
        &made.ca_pem.to_string_lossy(),
        "--tlsAllowConnectionsWithoutCertificates",
    ] {
        arguments.push(argument.to_owned());
    }
    Ok(made.ca_pem)
}

#[cfg(not(feature = "tls"))]
fn tls_arguments(_home: &Path, _user: ServerUser, _arguments: &mut Vec<String>) -> Result<PathBuf> {
    Err(ClusterError::Options("TLS: this program is built without the feature `tls`".to_owned()))
}

/// Readable by the servers' user alone.
fn private(path: &Path, user: ServerUser) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o400)).at("change the mode of", path)?;
    user.own(path)
}

fn random_hex() -> Result<String> {
    let mut bytes = [0_u8; KEY_BYTES];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .doing(|| "read /dev/urandom".to_owned())?;
    Ok(binaries::hex(&bytes))
}

/// A path as the value of a URI's option.
fn escaped(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%25").replace('/', "%2F").replace(' ', "%20")
}
