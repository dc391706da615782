//! PostgreSQL and Redis: installed, started with their data beside Mobile World's, and stopped.

use super::process_group::ProcessGroup;
use super::shop::Server;
use crate::say;
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where Debian puts the programs of each version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The user of the package, for a server that refuses to run as root.
const USER: &str = "postgres";
/// Connections beyond those of the clients.
const SPARE_CONNECTIONS: u64 = 16;
/// Lines of a log in an error message.
const LOG_LINES: usize = 20;

/// Durable, as by default, on a shared machine; the WAL is large enough that no checkpoint falls into a round.
const SETTINGS: &[&str] = &[
    "fsync=on",
    "synchronous_commit=on",
    "full_page_writes=on",
    "shared_buffers=256MB",
    "wal_buffers=16MB",
    "max_wal_size=4GB",
    "checkpoint_timeout=30min",
    "jit=off",
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
];

pub(super) struct Postgres {
    server: Server,
    port: u16,
}

impl Postgres {
    /// Does nothing if it is installed.
    pub(super) fn install() -> Result<()> {
        if programs().is_none() {
            mw_testbed::apt::install("postgresql", |line| say(line))?;
        }
        ensure!(
            programs().is_some(),
            "PostgreSQL is missing: run `apt-get install postgresql` or `dnf install postgresql-server`, or \
             choose other baselines with --only"
        );
        Ok(())
    }

    pub(super) fn start(group: &ProcessGroup, clients: u64) -> Result<Self> {
        let programs = programs().context("find PostgreSQL")?;
        let (home, data) = (group.dir().join("postgres"), group.dir().join("postgres/data"));
        fs::create_dir(&home).with_context(|| format!("create {}", home.display()))?;
        let owner = Owner::choose()?;
        owner.give(&home)?;
        let mut initdb = group.command(&programs.join("initdb"))?;
        owner.run(&mut initdb);
        let made = initdb
            .args(["--auth=trust", "--encoding=UTF8", "--no-locale", "--username=postgres", "-D"])
            .arg(&data)
            .current_dir(&home)
            .output()
            .context("run initdb")?;
        ensure!(made.status.success(), "run initdb: {}", String::from_utf8_lossy(&made.stderr));
        let (port, log) = (free_port()?, group.dir().join("postgres.log"));
        let mut command = group.command(&programs.join("postgres"))?;
        owner.run(&mut command);
        command.arg("-D").arg(&data).args(["-p", &port.to_string()]).current_dir(&home);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        command.args(["-c", &format!("max_connections={}", clients + SPARE_CONNECTIONS)]);
        logged(&mut command, &log)?;
        let mut server = Server::start("PostgreSQL", &mut command)?;
        let ready = programs.join("pg_isready");
        let is_ready = || quiet(Command::new(&ready).args(["-h", "127.0.0.1", "-p", &port.to_string()]));
        server.wait(is_ready).with_context(|| tail(&log))?;
        Ok(Self { server, port })
    }

    /// The connection string for the driver.
    pub(super) fn connection(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres dbname=postgres", self.port)
    }

    pub(super) fn stop(self) -> Result<()> {
        self.server.stop("INT")
    }
}

/// The folder of the newest version that is installed.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let paths = env::var_os("PATH").unwrap_or_default();
    let has_all =
        |dir: &PathBuf| ["initdb", "postgres", "pg_isready"].iter().all(|it| dir.join(it).is_file());
    let mut installed: Vec<PathBuf> = versions.filter(has_all).collect();
    installed.sort_by_key(|dir| version(dir));
    installed.pop().or_else(|| env::split_paths(&paths).find(has_all))
}

/// 15 of `/usr/lib/postgresql/15/bin`.
fn version(programs: &Path) -> Option<u32> {
    programs.parent()?.file_name()?.to_str()?.parse().ok()
}

/// The user that runs PostgreSQL: the current one, unless it is root.
struct Owner(Option<(u32, u32)>);

impl Owner {
    fn choose() -> Result<Self> {
        if id(&["-u"])? != 0 {
            return Ok(Self(None));
        }
        let missing = || {
            format!(
                "PostgreSQL refuses to run as root, and there is no user {USER}: run this as another user"
            )
        };
        Ok(Self(Some((id(&["-u", USER]).with_context(missing)?, id(&["-g", USER]).with_context(missing)?))))
    }

    fn give(&self, dir: &Path) -> Result<()> {
        let Some((user, group)) = self.0 else { return Ok(()) };
        chown(dir, Some(user), Some(group)).with_context(|| format!("give {} to {USER}", dir.display()))
    }

    fn run(&self, command: &mut Command) {
        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
    }
}

fn id(arguments: &[&str]) -> Result<u32> {
    let output = Command::new("id").args(arguments).stderr(Stdio::null()).output().context("run id")?;
    ensure!(output.status.success(), "run id {}: {}", arguments.join(" "), output.status);
    String::from_utf8_lossy(&output.stdout).trim().parse().context("read the output of id")
}

pub(super) struct Redis {
    server: Server,
    port: u16,
}

impl Redis {
    /// Does nothing if it is installed.
    pub(super) fn install() -> Result<()> {
        let is_installed = || quiet(Command::new("redis-server").arg("--version"));
        if !is_installed() {
            mw_testbed::apt::install("redis-server", |line| say(line))?;
        }
        if !is_installed() {
            bail!(
                "Redis is missing: run `apt-get install redis-server` or `dnf install redis`, or choose other baselines \
                 with --only"
            );
        }
        Ok(())
    }

    /// `fsync` is when its file is synced: `everysec`, or `always` before a response.
    pub(super) fn start(group: &ProcessGroup, fsync: &str) -> Result<Self> {
        let dir = group.dir().join(format!("redis-{fsync}"));
        fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        let (port, log) = (free_port()?, group.dir().join(format!("redis-{fsync}.log")));
        let mut command = group.command(Path::new("redis-server"))?;
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(&dir)
            .args(["--appendonly", "yes", "--appendfsync", fsync])
            // Neither a snapshot nor a rewritten file falls into a round.
            .args(["--save", "", "--auto-aof-rewrite-percentage", "0"]);
        logged(&mut command, &log)?;
        let mut server = Server::start("Redis", &mut command)?;
        let is_ready = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        server.wait(is_ready).with_context(|| tail(&log))?;
        Ok(Self { server, port })
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(super) fn stop(self) -> Result<()> {
        self.server.stop("TERM")
    }
}

fn quiet(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Neither server can choose a free port itself.
fn free_port() -> Result<u16> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .context("find a free port")
}

fn logged(command: &mut Command, log: &Path) -> Result<()> {
    let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
    command.stdout(file.try_clone().context("share a log")?).stderr(file);
    Ok(())
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version(Path::new("/usr/lib/postgresql/15/bin")), Some(15));
        assert!(
            version(Path::new("/usr/lib/postgresql/9/bin"))
                < version(Path::new("/usr/lib/postgresql/15/bin"))
        );
        assert_eq!(version(Path::new("/opt/bin")), None);
    }

    #[test]
    fn a_user_that_is_not_there_is_an_error() {
        id(&["-u"]).unwrap();
        assert!(id(&["-u", "mw-no-such-user"]).is_err());
    }

    #[test]
    fn the_end_of_a_log_is_shown() {
        let path = env::temp_dir().join(format!("mw-tail-{}", std::process::id()));
        let lines: Vec<String> = (0..50).map(|number| format!("line {number}")).collect();
        fs::write(&path, lines.join("\n")).unwrap();
        let output = tail(&path);
        fs::remove_file(&path).unwrap();
        assert!(output.starts_with("line 30\n") && output.ends_with("line 49"), "{output}");
        assert_eq!(tail(&path), "");
    }
}
