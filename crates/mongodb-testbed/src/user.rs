//! The user that servers run as. What is fetched is a third party's build: as root it runs as the system's user without
//! rights, who owns nothing but its own data directory.

use mw_testbed::{Doing, Result, cache};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a user without rights can read, used if the cache is in a private directory such as /root.
const PUBLIC_CACHE: &str = "/var/cache/mobile-world";

const OTHERS_MAY_ENTER: u32 = 0o001;

/// User and group of the servers' processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerUser {
    /// `None`: the user of this process.
    switch: Option<(u32, u32)>,
}

impl ServerUser {
    pub(crate) fn find() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self { switch: None };
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        Self { switch: without_rights(&passwd) }
    }

    /// The cache of servers: the usual one, or a public one where a user without rights must reach it.
    pub(crate) fn cache_root(self) -> Result<PathBuf> {
        let root = cache::root()?;
        if self.switch.is_none() || others_may_enter(&root) {
            return Ok(root);
        }
        Ok(PathBuf::from(PUBLIC_CACHE))
    }

    pub(crate) fn apply(self, command: &mut Command) {
        if let Some((uid, gid)) = self.switch {
            command.uid(uid).gid(gid);
        }
    }

    pub(crate) fn own(self, path: &Path) -> Result<()> {
        match self.switch {
            Some((uid, gid)) => chown(path, Some(uid), Some(gid)).at("change the owner of", path),
            None => Ok(()),
        }
    }
}

/// Uid and gid of the user `nobody:` in the text of /etc/passwd.
fn without_rights(passwd: &str) -> Option<(u32, u32)> {
    let mut fields = passwd.lines().find_map(|line| line.strip_prefix("nobody:"))?.split(':').skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Whether every existing directory on the way may be entered by all users.
fn others_may_enter(path: &Path) -> bool {
    path.ancestors().all(|dir| {
        fs::metadata(dir).map_or(true, |metadata| metadata.permissions().mode() & OTHERS_MAY_ENTER != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_without_rights_is_found_in_the_list() {
        let passwd =
            "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65533:nobody:/nonexistent:/usr/sbin/nologin\n";
        assert_eq!(without_rights(passwd), Some((65534, 65533)));
        assert_eq!(without_rights("root:x:0:0:root:/root:/bin/bash\n"), None);
    }

    #[test]
    fn a_private_directory_on_the_way_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!others_may_enter(&dir.path().join("mobile-world")));
        assert!(others_may_enter(Path::new("/")));
    }
}
