//! File systems of a test's own: read-only, or small. They live in a mount namespace that ends with the test.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::process::{binary, mw};

/// A namespace, held open by a shell that waits for its input to end.
pub(crate) struct Mounts {
    holder: Child,
    _stdin: ChildStdin,
    is_root: bool,
}

const NEEDED: &str = "this test mounts file systems in a namespace of its own: run it as root, or where users may \
                      make namespaces (sysctl kernel.unprivileged_userns_clone=1), with unshare, nsenter and mount of \
                      util-linux";

impl Mounts {
    pub(crate) fn new() -> Self {
        let is_root = rustix::process::geteuid().is_root();
        let mut command = Command::new("unshare");
        command.arg("--mount");
        if !is_root {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["sh", "-c", "echo ready; exec cat >/dev/null"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut holder = command.spawn().unwrap_or_else(|error| panic!("unshare: {error}: {NEEDED}"));
        let mut ready = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "{NEEDED}");
        let stdin = holder.stdin.take().unwrap();
        Self { holder, _stdin: stdin, is_root }
    }

    /// A command inside the namespace.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--mount"]);
        if !self.is_root {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--").arg(program);
        command
    }

    /// `mw` inside the namespace, without configuration in its environment.
    pub(crate) fn mw(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(binary());
        command.args(arguments);
        for (name, value) in mw(&[]).get_envs() {
            assert_eq!(value, None, "only removals are carried over");
            command.env_remove(name);
        }
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = self.command(program).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("nsenter: {error}: {NEEDED}"));
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {message}: {NEEDED}");
    }

    pub(crate) fn read_only(&self, path: &Path) {
        let path = path.to_str().unwrap();
        self.run("mount", &["--bind", path, path]);
        self.run("mount", &["-o", "remount,bind,ro", path]);
    }

    /// A file system in memory.
    pub(crate) fn small(&self, path: &Path, mib: u32) {
        self.run("mount", &["-t", "tmpfs", "-o", &format!("size={mib}m"), "small", path.to_str().unwrap()]);
    }

    /// Fills the file system up to `leave_mib`.
    pub(crate) fn fill(&self, ballast: &Path, leave_mib: u32) {
        let script = r#"free=$(df --output=avail -k "$(dirname "$0")" | tail -1); fallocate -l $((free - $1 * 1024))K "$0""#;
        self.run("sh", &["-ec", script, ballast.to_str().unwrap(), &leave_mib.to_string()]);
    }

    pub(crate) fn remove(&self, file: &Path) {
        self.run("rm", &[file.to_str().unwrap()]);
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
