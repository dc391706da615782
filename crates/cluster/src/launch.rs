//! Starting Java: a node with its files, or nodetool.

use crate::archive::Archive;
use crate::cache;
use crate::error::{ClusterError, Doing, Result};
use crate::jars::Jars;
use crate::java::{self, Java};
use crate::node::{Running, Slot};
use crate::options::{ClusterOptions, Plan};
use crate::process::Process;
use crate::tls::Certificates;
use crate::watchdog::Watchdog;
use crate::{log, render};
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DAEMON: &str = "org.apache.cassandra.service.CassandraDaemon";
const NODETOOL: &str = "org.apache.cassandra.tools.NodeTool";

/// What every Java process here is started with.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) java: Java,
    jars: Jars,
    archive: Archive,
    /// A logback.xml that says nothing, for tools.
    quiet: PathBuf,
}

impl Launch {
    pub(crate) fn prepare(root: &Path, report: fn(&str)) -> Result<Self> {
        let java = java::java(report)?;
        let jars = Jars::get(root, report)?;
        let quiet = root.join("quiet.xml");
        if !quiet.exists() {
            cache::write(&quiet, render::QUIET_LOGBACK)?;
        }
        Ok(Self { java, jars, archive: Archive::None, quiet })
    }

    pub(crate) fn with(self, archive: Archive) -> Self {
        Self { archive, ..self }
    }

    /// Where the archive for these jars and this Java is, or is to be.
    pub(crate) fn archive_path(&self) -> PathBuf {
        self.jars.home().join(format!("classes-{}.jsa", self.java.version))
    }

    /// Writes the node's files.
    pub(crate) fn configure(
        options: &ClusterOptions,
        slot: &Slot,
        seed: &Plan,
        certificates: Option<&Certificates>,
    ) -> Result<()> {
        let keystore = certificates.map(|it| &it.keystore);
        let yaml = render::yaml(options, &slot.plan, seed, &slot.dir, keystore);
        cache::create_dir(&slot.dir)?;
        cache::write(&slot.dir.join("cassandra.yaml"), &yaml)?;
        cache::write(&slot.dir.join("cassandra-rackdc.properties"), &render::rackdc(&slot.plan))?;
        cache::write(&slot.dir.join("logback.xml"), render::LOGBACK)
    }

    /// Starts the node's process, under the watchdog's eyes from its first moment.
    pub(crate) fn spawn(
        &self,
        options: &ClusterOptions,
        slot: &Slot,
        watchdog: &Watchdog,
        outlives_terminal: bool,
    ) -> Result<()> {
        let mut place = slot.running();
        let log_from = log::length(&slot.log_path());
        let output = slot.output_path();
        let output = File::options().create(true).append(true).open(&output).at("open", &output)?;
        let jmx_port = free_port()?;
        let mut command = if outlives_terminal {
            let mut command = Command::new("nohup");
            command.arg(&self.java.program);
            command
        } else {
            Command::new(&self.java.program)
        };
        command
            .args(self.archive.arguments())
            .args(render::jvm_arguments(options, &slot.dir, self.jars.jamm()?, jmx_port))
            .args(["-cp", &self.jars.class_path(), DAEMON])
            .current_dir(&slot.dir)
            .stdin(Stdio::null())
            .stdout(output.try_clone().doing(|| "share a log".to_owned())?)
            .stderr(output);
        watchdog.guard(&mut command)?;
        let mut child = command.spawn().doing(|| format!("start {}", self.java.program.display()))?;
        let Some(process) = Process::find(child.id()) else {
            let _ = child.wait();
            drop(place);
            return Err(slot.failed("ended at once"));
        };
        *place = Some(Running { child, process, jmx_port, log_from, paused: false });
        Ok(())
    }

    pub(crate) fn nodetool(&self, jmx_port: u16, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.java.program)
            .args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"])
            .args(render::JVM_OPTIONS.lines())
            .arg(format!("-Dlogback.configurationFile={}", self.quiet.display()))
            .args(["-cp", &self.jars.class_path(), NODETOOL, "-p", &jmx_port.to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .doing(|| "run nodetool".to_owned())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(ClusterError::Command {
            command: format!("nodetool {}", arguments.join(" ")),
            status: output.status,
            output: text + &String::from_utf8_lossy(&output.stderr),
        })
    }
}

/// Cassandra's JMX listens on 127.0.0.1 whatever the node's address, so every node needs a port of its own.
fn free_port() -> Result<u16> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .doing(|| "find a free port".to_owned())
}
