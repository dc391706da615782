//! Nothing outlives us, and nothing stays. What is started here runs in the process group of a small shell that reads a
//! pipe of which only we hold the other end: when we are gone, by Ctrl-C or `kill -9`, the pipe ends, and the shell asks
//! the whole group to end, removes the folder, and kills whoever is left.

use anyhow::{Context, Result};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// Signals to us are none to the shell: it notices our end by the end of the pipe.
const SCRIPT: &str = "trap '' HUP INT QUIT TERM; IFS= read -r line; \
     [ \"$line\" = done ] || { kill -INT 0; sleep 2; }; \
     rm -rf -- \"$1\"; [ \"$line\" = done ] || kill -9 0";

pub(super) struct Guard {
    shell: Child,
    pipe: Option<ChildStdin>,
    dir: PathBuf,
}

impl Guard {
    /// Makes a folder in `parent`, for as long as this lives.
    pub(super) fn start(parent: &Path) -> Result<Self> {
        let dir = parent.join(format!("mw-peers-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("create {}: choose another --dir", dir.display()))?;
        // A server that runs as somebody else has its own folder in it.
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

    /// A program that ends with us.
    pub(super) fn command(&self, program: &Path) -> Result<Command> {
        let mut command = Command::new(program);
        let group = i32::try_from(self.shell.id()).context("read the guard's pid")?;
        command.process_group(group).stdin(Stdio::null());
        Ok(command)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.take() {
            // A shell that is gone already has removed the folder.
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
    fn the_folder_goes_with_the_guard() {
        let parent = env::temp_dir().join(format!("mw-guard-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let guard = Guard::start(&parent).unwrap();
        let dir = guard.dir().to_owned();
        fs::write(dir.join("data"), "x").unwrap();
        drop(guard);
        assert!(!dir.exists());

        let mut abandoned = Guard::start(&parent).unwrap();
        let dir = abandoned.dir().to_owned();
        let mut child = abandoned.command(Path::new("sleep")).unwrap().arg("60").spawn().unwrap();
        // As the end of this process would.
        drop(abandoned.pipe.take());
        assert!(!child.wait().unwrap().success());
        drop(abandoned);
        assert!(!dir.exists());
        fs::remove_dir(&parent).unwrap();
    }
}
