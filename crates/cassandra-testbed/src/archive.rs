//! A class data sharing archive of the classes that a node loads, which shortens its start by a third. It is written once
//! by a node that is started for this alone. Without it nodes start more slowly.

use crate::cluster::Cluster;
use crate::launch::Launcher;
use crate::options::ClusterOptions;
use mw_testbed::cache::Lock;
use mw_testbed::{Doing, Result, RunDir};
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Archive {
    None,
    Use(PathBuf),
    /// Written when the process ends.
    Make(PathBuf),
}

impl Archive {
    pub(crate) fn arguments(&self) -> Vec<String> {
        let option = match self {
            Self::None => return Vec::new(),
            Self::Use(path) => format!("-XX:SharedArchiveFile={}", path.display()),
            Self::Make(path) => format!("-XX:ArchiveClassesAtExit={}", path.display()),
        };
        // jamm is an agent that only measures: it changes no class.
        ["-XX:+UnlockDiagnosticVMOptions", "-XX:+AllowArchivingWithJavaAgent"]
            .map(str::to_owned)
            .into_iter()
            .chain([option])
            .collect()
    }
}

/// `launch` with the archive for its Java, which is written now if it does not exist.
pub(crate) fn equip(launch: Launcher, root: &Path, report: fn(&str)) -> Launcher {
    let path = launch.archive_path();
    match make(&launch, &path, root, report) {
        Ok(()) => launch.with(Archive::Use(path)),
        Err(error) => {
            report(&format!("starts stay slow, since no archive of classes could be made: {error}"));
            launch
        }
    }
}

fn make(launch: &Launcher, path: &Path, root: &Path, report: fn(&str)) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let _lock = Lock::take(&root.join("classes.lock"), || {
        report("waiting for another process that prepares Cassandra");
    })?;
    if path.exists() {
        return Ok(());
    }
    report("preparing quick starts, once: a node is started and stopped");
    let home = RunDir::temporary(root, "classes")?;
    let written = home.dir.join("classes.jsa");
    let options = ClusterOptions { name: "classes".to_owned(), report: |_| {}, ..ClusterOptions::default() };
    let cluster =
        Cluster::start_on(launch.clone().with(Archive::Make(written.clone())), options, home, false)?;
    cluster.node(0).stop()?;
    fs::rename(&written, path).at("create", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_option_differs() {
        let path = PathBuf::from("/cache/classes.jsa");
        let last = |archive: Archive| archive.arguments().pop();
        assert_eq!(last(Archive::None), None);
        assert_eq!(last(Archive::Use(path.clone())).unwrap(), "-XX:SharedArchiveFile=/cache/classes.jsa");
        assert_eq!(last(Archive::Make(path)).unwrap(), "-XX:ArchiveClassesAtExit=/cache/classes.jsa");
    }
}
