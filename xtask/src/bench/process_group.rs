//! A process group that ends with this program, and its data folder. Servers run in the group of a small shell that reads
//! a pipe; this program holds the only other end. When it ends, by Ctrl-C or `kill -9`, the pipe closes, and the shell
//! interrupts the group, removes the folder, and kills the remaining processes.

use anyhow::{Context, Result};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// The shell ignores signals: it notices the end of this program by the end of the pipe.
const SCRIPT: &str = "trap '' HUP INT QUIT TERM; IFS= read -r line; \
     [ \"$line\" = done ] || { kill -INT 0; sleep 2; }; \
     rm -rf -- \"$1\"; [ \"$line\" = done ] || kill -9 0";

pub(super) struct ProcessGroup {
    shell: Child,
    pipe: Option<ChildStdin>,
    dir: PathBuf,
}

impl ProcessGroup {
    /// Creates a folder in `parent`, removed when this is dropped.
    pub(super) fn start(parent: &Path) -> Result<Self> {
        let dir = parent.join(format!("mw-bench-baselines-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("create {}: choose another --dir", dir.display()))?;
        // A server that runs as another user has its own folder in it.
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("open {} to other users", dir.display()))?;
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(&dir)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start sh")?;
        let pipe = shell.stdin.take();
        Ok(Self { shell, pipe, dir })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A command whose process ends with this program.
    pub(super) fn command(&self, program: &Path) -> Result<Command> {
        let mut command = Command::new(program);
        let group = i32::try_from(self.shell.id()).context("read the shell's pid")?;
        command.process_group(group).stdin(Stdio::null());
        Ok(command)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // A shell that has ended has removed the folder.
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn the_folder_and_the_processes_end_with_the_group() {
        let parent = env::temp_dir().join(format!("mw-group-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let group = ProcessGroup::start(&parent).unwrap();
        let dir = group.dir().to_owned();
        fs::write(dir.join("data"), "x").unwrap();
        drop(group);
        assert!(!dir.exists());

        let mut abandoned = ProcessGroup::start(&parent).unwrap();
        let dir = abandoned.dir().to_owned();
        let mut child = abandoned.command(Path::new("sleep")).unwrap().arg("60").spawn().unwrap();
        // The same effect as the end of this process.
        drop(abandoned.pipe.take());
        assert!(!child.wait().unwrap().success());
        drop(abandoned);
        assert!(!dir.exists());
        fs::remove_dir(&parent).unwrap();
    }
}
