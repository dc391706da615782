//! Finds Java and Maven, or installs them where that is possible; otherwise the error says how to install them.

use mw_testbed::apt::{install, runs};
use mw_testbed::{ClusterError, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Java version that Cassandra 5.0 needs.
const JAVA_VERSION: &str = "17";
const JAVA_PACKAGE: &str = "openjdk-17-jre-headless";
const MAVEN_PACKAGE: &str = "maven";

#[derive(Debug, Clone)]
pub(crate) struct Java {
    pub(crate) program: PathBuf,
    pub(crate) version: String,
}

/// A Java 17 from the environment, from the path, or from where distributions install it.
pub(crate) fn java(report: fn(&str)) -> Result<Java> {
    if let Some(java) = find_java() {
        return Ok(java);
    }
    install(JAVA_PACKAGE, report)?;
    find_java().ok_or_else(|| {
        ClusterError::Missing(format!(
            "Java {JAVA_VERSION} is missing: run `apt-get install {JAVA_PACKAGE}`, `dnf install \
             java-{JAVA_VERSION}-openjdk-headless`, or unpack one and name it in the variable JAVA_HOME"
        ))
    })
}

pub(crate) fn maven(report: fn(&str)) -> Result<PathBuf> {
    let maven = PathBuf::from("mvn");
    if !runs(&maven, "-version") {
        install(MAVEN_PACKAGE, report)?;
    }
    if runs(&maven, "-version") {
        return Ok(maven);
    }
    Err(ClusterError::Missing(format!(
        "Maven is missing (it fetches Cassandra, once): run `apt-get install {MAVEN_PACKAGE}` or `dnf install \
         {MAVEN_PACKAGE}`"
    )))
}

fn find_java() -> Option<Java> {
    let home = env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java"));
    let on_path = env::var_os("PATH")
        .and_then(|path| env::split_paths(&path).map(|dir| dir.join("java")).find(|java| java.is_file()));
    let installed =
        fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten().map(|it| it.path().join("bin/java"));
    home.into_iter().chain(on_path).chain(installed).find_map(Java::ask)
}

impl Java {
    /// `None` if it does not run, or is another version.
    fn ask(program: PathBuf) -> Option<Self> {
        let output = Command::new(&program).arg("-version").stdin(Stdio::null()).output().ok()?;
        let output_text = String::from_utf8_lossy(&output.stderr);
        let version = version(&output_text)?.to_owned();
        (major(&version) == JAVA_VERSION).then_some(Self { program, version })
    }

    /// A program of the same JDK, such as keytool.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        let real = fs::canonicalize(&self.program).unwrap_or_else(|_| self.program.clone());
        real.parent().map(|bin| bin.join(name)).filter(|path| path.exists()).unwrap_or_else(|| name.into())
    }
}

/// `17.0.15` of `openjdk version "17.0.15" 2025-04-15`.
fn version(output_text: &str) -> Option<&str> {
    output_text.split('"').nth(1)
}

fn major(version: &str) -> &str {
    version.split(['.', '-', '+']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read() {
        let read = |output_text| version(output_text).map(major);
        assert_eq!(read("openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime"), Some("17"));
        assert_eq!(read("openjdk version \"17\" 2021-09-14"), Some("17"));
        assert_eq!(read("openjdk version \"21-ea\" 2023-09-19"), Some("21"));
        assert_eq!(read("java version \"1.8.0_392\""), Some("1"));
        assert_eq!(read("sh: java: not found"), None);
    }

    #[test]
    fn a_java_that_is_not_there_is_none() {
        assert!(Java::ask(PathBuf::from("mw-no-such-program")).is_none());
    }
}
