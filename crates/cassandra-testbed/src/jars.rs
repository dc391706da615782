//! Cassandra's jars: fetched once with Maven, atomically, by one process at a time.

use crate::{CASSANDRA_VERSION, java};
use mw_testbed::cache::{self, Lock};
use mw_testbed::{ClusterError, Doing, Result, Watchdog};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const POM: &str = include_str!("../node/pom.xml");
const JOLOKIA_POM: &str = include_str!("../node/jolokia.xml");
const JOLOKIA_VERSION: &str = "2.6.0";
const COPY_GOAL: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// A line of progress for this many files.
const REPORT_EVERY: usize = 50;

/// The last lines of Maven's output, for errors.
const OUTPUT_LINES: usize = 20;

#[derive(Debug, Clone)]
pub(crate) struct Jars {
    home: PathBuf,
    sorted: Vec<PathBuf>,
}

impl Jars {
    /// The jars of the cache, fetched now if they are missing.
    pub(crate) fn get(root: &Path, report: fn(&str)) -> Result<Self> {
        let name = format!("cassandra-{CASSANDRA_VERSION}");
        let home = root.join(&name);
        if !home.exists() {
            let _lock = Lock::take(&root.join(format!("{name}.lock")), || {
                report("waiting for another process that fetches Cassandra");
            })?;
            if !home.exists() {
                fetch(&java::maven(report)?, &home, &root.join(format!("{name}.part")), report)?;
            }
        }
        Self::list(home)
    }

    fn list(home: PathBuf) -> Result<Self> {
        let lib = &home.join("lib");
        let mut sorted = Vec::new();
        for entry in fs::read_dir(lib).at("read", lib)? {
            let path = entry.at("read", lib)?.path();
            if path.extension() == Some(OsStr::new("jar")) {
                sorted.push(path);
            }
        }
        sorted.sort();
        Ok(Self { home, sorted })
    }

    /// The directory that belongs to these jars.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    pub(crate) fn class_path(&self) -> String {
        let paths: Vec<_> = self.sorted.iter().map(|jar| jar.to_string_lossy()).collect();
        paths.join(":")
    }

    /// The agent with which Cassandra measures its memtables.
    pub(crate) fn jamm(&self) -> Result<&Path> {
        let is_jamm = |jar: &&PathBuf| {
            jar.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("jamm-"))
        };
        self.sorted.iter().find(is_jamm).map(PathBuf::as_path).ok_or_else(|| {
            ClusterError::Missing(
                "the fetched Cassandra has no jamm jar: remove it, and it is fetched again".to_owned(),
            )
        })
    }
}

/// The agent for JMX over HTTP, fetched now if it is missing.
pub(crate) fn jolokia(root: &Path, report: fn(&str)) -> Result<PathBuf> {
    let home = root.join(format!("jolokia-{JOLOKIA_VERSION}"));
    if !home.exists() {
        let _lock = Lock::take(&root.join("jolokia.lock"), || {
            report("waiting for another process that fetches Jolokia");
        })?;
        if !home.exists() {
            let part = root.join("jolokia.part");
            cache::remove_dir(&part)?;
            cache::create_dir(&part)?;
            cache::write(&part.join("pom.xml"), JOLOKIA_POM)?;
            report(&format!("fetching Jolokia {JOLOKIA_VERSION} with Maven, once"));
            run_maven(&java::maven(report)?, &part, report)?;
            fs::rename(&part, &home).at("create", &home)?;
        }
    }
    Ok(home.join("lib").join(format!("jolokia-agent-jvm-{JOLOKIA_VERSION}-javaagent.jar")))
}

/// `home` exists only once it is complete.
fn fetch(maven: &Path, home: &Path, part: &Path, report: fn(&str)) -> Result<()> {
    cache::remove_dir(part)?;
    cache::create_dir(part)?;
    cache::write(&part.join("pom.xml"), POM)?;
    report(&format!("fetching Cassandra {CASSANDRA_VERSION} with Maven, once: about 70 MB"));
    run_maven(maven, part, report)?;
    fs::rename(part, home).at("create", home)?;
    report("fetched");
    Ok(())
}

fn run_maven(maven: &Path, part: &Path, report: fn(&str)) -> Result<()> {
    let doing = || "run mvn".to_owned();
    let watchdog = Watchdog::start()?;
    let mut command = Command::new(maven);
    watchdog.guard(&mut command)?;
    let mut child = command
        // Batch mode, and a jar that does not match its checksum is an error.
        .args(["-B", "-C", COPY_GOAL])
        .arg(format!("-DoutputDirectory={}", part.join("lib").display()))
        .current_dir(part)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .doing(doing)?;
    let mut fetched = 0;
    let mut last_lines: Vec<String> = Vec::new();
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let line = line.doing(doing)?;
        if line.contains("Downloaded from") {
            fetched += 1;
            if fetched % REPORT_EVERY == 0 {
                report(&format!("fetching Cassandra: {fetched} files"));
            }
        }
        if last_lines.len() == OUTPUT_LINES {
            last_lines.remove(0);
        }
        last_lines.push(line);
    }
    let status = child.wait().doing(doing)?;
    if status.success() {
        return Ok(());
    }
    Err(ClusterError::Command { command: "mvn".to_owned(), status, output: last_lines.join("\n") })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fetches with a stand-in for Maven that is this script.
    fn fetch_with(script: &str, root: &Path) -> Result<Jars> {
        let maven = root.join("mvn");
        // Written by another process: a file that is open here for writing cannot be executed, and while a test beside
        // this one starts a process, that has it open too.
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$2\" && chmod 755 \"$2\"";
        let written = Command::new("sh").args(["-c", write, "sh", script]).arg(&maven).status().unwrap();
        assert!(written.success());
        let home = root.join("cassandra");
        fetch(&maven, &home, &root.join("cassandra.part"), |_| {})?;
        Jars::list(home)
    }

    #[test]
    fn what_maven_fetched_is_there_whole() {
        let root = tempfile::tempdir().unwrap();
        let jars =
            fetch_with("mkdir lib && touch lib/b.jar lib/jamm-0.4.0.jar lib/notes.txt", root.path()).unwrap();
        let lib = root.path().join("cassandra/lib");
        assert_eq!(jars.class_path(), format!("{0}/b.jar:{0}/jamm-0.4.0.jar", lib.display()));
        assert_eq!(jars.jamm().unwrap(), lib.join("jamm-0.4.0.jar"));
    }

    #[test]
    fn what_failed_is_told_and_not_taken_for_fetched() {
        let root = tempfile::tempdir().unwrap();
        let script = "mkdir lib && touch lib/half.jar && echo '[ERROR] no route to host' && exit 1";
        let error = fetch_with(script, root.path()).unwrap_err().to_string();
        assert!(error.contains("run mvn: exit status: 1\n[ERROR] no route to host"), "{error}");
        assert!(!root.path().join("cassandra").exists());
    }
}
