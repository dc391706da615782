//! Starts Java processes: a node with its configuration files, or nodetool.

use crate::archive::Archive;
use crate::jars::{self, Jars};
use crate::java::{self, Java};
use crate::node::{NodeState, Running};
use crate::options::{ClusterOptions, Plan};
use crate::tls::Certificates;
use crate::{log, render};
use mw_testbed::{ClusterError, Doing, Process, Result, Watchdog, cache, free_port};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DAEMON: &str = "org.apache.cassandra.service.CassandraDaemon";
const NODETOOL: &str = "org.apache.cassandra.tools.NodeTool";

/// What every Java process is started with.
#[derive(Debug, Clone)]
pub(crate) struct Launcher {
    pub(crate) java: Java,
    jars: Jars,
    archive: Archive,
    /// A logback.xml without output, for tools.
    quiet: PathBuf,
}

impl Launcher {
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

    /// The path of the class archive for these jars and this Java.
    pub(crate) fn archive_path(&self) -> PathBuf {
        self.jars.home().join(format!("classes-{}.jsa", self.java.version))
    }

    /// Writes the configuration files of a node.
    pub(crate) fn configure(
        options: &ClusterOptions,
        node_state: &NodeState,
        seed: &Plan,
        certificates: Option<&Certificates>,
    ) -> Result<()> {
        let keystore = certificates.map(|it| &it.keystore);
        let yaml = render::yaml(options, &node_state.plan, seed, &node_state.dir, keystore);
        cache::create_dir(&node_state.dir)?;
        cache::write(&node_state.dir.join("cassandra.yaml"), &yaml)?;
        cache::write(&node_state.dir.join("cassandra-rackdc.properties"), &render::rackdc(&node_state.plan))?;
        cache::write(&node_state.dir.join("logback.xml"), render::LOGBACK)
    }

    /// Starts the process of a node, in the watchdog's process group from the start.
    pub(crate) fn spawn(
        &self,
        options: &ClusterOptions,
        node_state: &NodeState,
        watchdog: &Watchdog,
        outlives_terminal: bool,
    ) -> Result<()> {
        let mut running = node_state.running();
        let log_from = log::length(&node_state.log_path());
        let output = node_state.output_path();
        let output = File::options().create(true).append(true).open(&output).at("open", &output)?;
        // JMX listens on 127.0.0.1 whatever the node's address, so every node needs its own port.
        let jmx_port = free_port()?;
        let jolokia = if options.jolokia {
            let agent = jars::jolokia(&cache::root()?, options.report)?;
            Some(render::jolokia_argument(&agent, node_state.plan.address))
        } else {
            None
        };
        let mut command = if outlives_terminal {
            let mut command = Command::new("nohup");
            command.arg(&self.java.program);
            command
        } else {
            Command::new(&self.java.program)
        };
        command
            .args(self.archive.arguments())
            .args(render::jvm_arguments(options, &node_state.dir, self.jars.jamm()?, jmx_port))
            .args(jolokia)
            .args(["-cp", &self.jars.class_path(), DAEMON])
            .current_dir(&node_state.dir)
            .stdin(Stdio::null())
            .stdout(output.try_clone().doing(|| "share a log".to_owned())?)
            .stderr(output);
        watchdog.guard(&mut command)?;
        let mut child = command.spawn().doing(|| format!("start {}", self.java.program.display()))?;
        let Some(process) = Process::find(child.id()) else {
            let _ = child.wait();
            drop(running);
            return Err(node_state.failed("ended at once"));
        };
        *running = Some(Running { child, process, jmx_port, log_from, paused: false });
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
