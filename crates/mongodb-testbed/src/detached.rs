//! Detached clusters: they outlive the command that started them and are found again by name, through a state file in
//! their directory.

use crate::cluster::Cluster;
use crate::member::{MemberState, STOP_TIMEOUT};
use crate::options::{ClusterOptions, Layout};
use crate::user::ServerUser;
use mw_testbed::cache::{self, Lock};
use mw_testbed::{ClusterError, Doing, Process, Result, RunDir, check_name};
use rustix::process::Signal;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a running member may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

const STATE_FILE: &str = "cluster.state";

/// A detached cluster; its members may run or have ended.
#[derive(Debug)]
pub struct DetachedCluster {
    dir: PathBuf,
    name: String,
    state: State,
    _lock: Lock,
}

/// The current state of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    pub name: String,
    pub address: SocketAddr,
    /// `None` if its process has ended.
    pub pid: Option<u32>,
    /// Whether clients can connect.
    pub listens: bool,
    /// Resident memory in bytes.
    pub memory: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct State {
    uri: String,
    members: Vec<SavedMember>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SavedMember {
    name: String,
    address: SocketAddr,
    process: Process,
}

impl DetachedCluster {
    /// Starts a cluster and detaches it; until it is up it ends with this process.
    pub fn up(options: ClusterOptions) -> Result<Self> {
        options.check()?;
        if options.layout == Layout::Standalone {
            return Err(ClusterError::Options("a detached cluster is a replica set or sharded".to_owned()));
        }
        let name = options.name.clone();
        let (dir, lock) = open(&name)?;
        if State::load(&dir)?.is_some_and(|it| it.members.iter().any(|member| member.process.is_alive())) {
            return Err(ClusterError::Detached(format!("start cluster `{name}`: it is running already")));
        }
        cache::remove_dir(&dir)?;
        cache::create_dir(&dir)?;
        let cluster = Cluster::start_in(options, RunDir::kept(dir.clone())).or_else(|error| {
            cache::remove_dir(&dir)?;
            Err(error)
        })?;
        let members = cluster.states().iter().filter_map(SavedMember::of).collect();
        let state = State { uri: cluster.uri(), members };
        state.save(&dir)?;
        cluster.detach()?;
        Ok(Self { dir, name, state, _lock: lock })
    }

    /// `None` if there is no cluster of this name.
    pub fn find(name: &str) -> Result<Option<Self>> {
        let (dir, lock) = open(name)?;
        Ok(State::load(&dir)?.map(|state| Self { dir, name: name.to_owned(), state, _lock: lock }))
    }

    /// Names of all detached clusters, running or not.
    pub fn names() -> Result<Vec<String>> {
        let entries = fs::read_dir(clusters()?).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.path().join(STATE_FILE).exists())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn status(&self) -> Vec<MemberStatus> {
        self.state.members.iter().map(SavedMember::status).collect()
    }

    pub fn uri(&self) -> &str {
        &self.state.uri
    }

    /// The directory of the members' logs and data.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Ends all members and removes their data.
    pub fn down(self) -> Result<()> {
        for member in &self.state.members {
            member.process.signal(Signal::KILL);
        }
        for member in &self.state.members {
            if !member.process.wait_end(STOP_TIMEOUT) {
                return Err(ClusterError::Detached(format!(
                    "stop {}: process {} did not end in {} s",
                    member.name,
                    member.process.pid,
                    STOP_TIMEOUT.as_secs()
                )));
            }
        }
        cache::remove_dir(&self.dir)
    }
}

fn clusters() -> Result<PathBuf> {
    Ok(ServerUser::find().cache_root()?.join("mongodb-clusters"))
}

/// The directory of a cluster, and the lock on it.
fn open(name: &str) -> Result<(PathBuf, Lock)> {
    check_name(name)?;
    let clusters = clusters()?;
    let lock = Lock::try_take(&clusters.join(format!("{name}.lock")))?
        .ok_or_else(|| ClusterError::Detached(format!("lock cluster `{name}`: another command holds it")))?;
    Ok((clusters.join(name), lock))
}

impl SavedMember {
    fn of(state: &MemberState) -> Option<Self> {
        let running = state.running();
        Some(Self {
            name: state.plan.name.clone(),
            address: state.address().parse().ok()?,
            process: running.as_ref()?.process,
        })
    }

    fn status(&self) -> MemberStatus {
        let alive = self.process.is_alive();
        MemberStatus {
            name: self.name.clone(),
            address: self.address,
            pid: alive.then_some(self.process.pid),
            listens: alive && TcpStream::connect_timeout(&self.address, CONNECT_TIMEOUT).is_ok(),
            memory: if alive { self.process.memory() } else { None },
        }
    }
}

impl State {
    /// One line for the URI, then one per member.
    fn to_text(&self) -> String {
        let mut text = format!("{}\n", self.uri);
        for SavedMember { name, address, process: Process { pid, started } } in &self.members {
            let _ = writeln!(text, "{name} {address} {pid} {started}");
        }
        text
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let uri = lines.next()?.to_owned();
        let member = |line: &str| {
            let mut words = line.split(' ');
            Some(SavedMember {
                name: words.next()?.to_owned(),
                address: words.next()?.parse().ok()?,
                process: Process { pid: words.next()?.parse().ok()?, started: words.next()?.parse().ok()? },
            })
        };
        Some(Self { uri, members: lines.map(member).collect::<Option<_>>()? })
    }

    fn load(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(STATE_FILE);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.at("read", &path)?,
        };
        Self::from_text(&text).map(Some).ok_or_else(|| {
            ClusterError::Detached(format!("parse {}: it is damaged; remove it", path.display()))
        })
    }

    /// Written atomically: without this file the members are not found again.
    fn save(&self, dir: &Path) -> Result<()> {
        let (path, part) = (dir.join(STATE_FILE), dir.join("cluster.state.part"));
        cache::write(&part, &self.to_text())?;
        fs::rename(&part, &path).at("write", &path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let member = |name: &str, port, pid| SavedMember {
            name: name.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            process: Process { pid, started: 12 },
        };
        State {
            uri: "mongodb://127.0.0.1:22001/?replicaSet=rs0".to_owned(),
            members: vec![member("rs0-1", 22001, 4_000_001), member("rs0-2", 22002, 4_000_002)],
        }
    }

    #[test]
    fn a_saved_state_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(State::load(dir.path()).unwrap(), None);
        state().save(dir.path()).unwrap();
        assert_eq!(State::load(dir.path()).unwrap(), Some(state()));
    }

    #[test]
    fn a_damaged_state_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for text in [
            "",
            &state().to_text().replace("4000002 ", ""),
            &state().to_text().replace("127.0.0.1:22002", "x"),
        ] {
            fs::write(dir.path().join(STATE_FILE), text).unwrap();
            let error = State::load(dir.path()).unwrap_err().to_string();
            assert!(error.ends_with("it is damaged; remove it"), "{error}");
        }
    }

    #[test]
    fn a_member_whose_process_ended_is_down() {
        let status = state().members[0].status();
        assert_eq!((status.pid, status.listens, status.memory), (None, false, None));
    }
}
