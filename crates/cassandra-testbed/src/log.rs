//! The log of a node: the lines that waits look for, and the end of it for errors.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::Ipv4Addr;
use std::path::Path;

/// Lines of each file in an error.
const TAIL_LINES: usize = 30;

/// Logged when a node accepts clients.
pub(crate) const LISTENING: &str = "Starting listening for CQL clients";
/// Logged when [`crate::SUPERUSER`] can log in.
pub(crate) const SUPERUSER_CREATED: &str = "Created default superuser role";

pub(crate) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// The log after the offset `from`; empty if there is no file yet.
pub(crate) fn since(path: &Path, from: u64) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut bytes)
    });
    // A file that cannot be read now is read again by the next poll.
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Whether the node that wrote `log` has marked this address up.
pub(crate) fn saw_up(log: &str, address: Ipv4Addr) -> bool {
    log.contains(&format!("InetAddress /{address}:7000 is now UP"))
}

/// Whether it has also learned the tokens of this address.
pub(crate) fn saw_normal(log: &str, address: Ipv4Addr) -> bool {
    log.contains(&format!("Node /{address}:7000 state NORMAL"))
}

/// The last lines of the files.
pub(crate) fn tails(files: &[&Path]) -> String {
    let mut shown = String::new();
    for file in files {
        let text =
            fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let kept = lines.iter().skip(lines.len().saturating_sub(TAIL_LINES));
        let _ = writeln!(shown, "── end of {}", file.display());
        kept.for_each(|line| {
            shown.push_str(line);
            shown.push('\n');
        });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_has_the_last_lines_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("system.log");
        let lines: Vec<String> = (0..100).map(|number| format!("line {number}")).collect();
        fs::write(&path, lines.join("\n")).unwrap();
        let shown = tails(&[&path, &dir.path().join("absent.log")]);
        assert!(shown.contains("line 99\n") && shown.contains("line 70\n"), "{shown}");
        assert!(!shown.contains("line 69\n"), "{shown}");
    }

    #[test]
    fn only_what_was_added_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("system.log");
        assert_eq!((length(&path), since(&path, 0)), (0, String::new()));
        fs::write(&path, "INFO  InetAddress /127.0.0.2:7000 is now UP\n").unwrap();
        let from = length(&path);
        assert!(saw_up(&since(&path, 0), Ipv4Addr::new(127, 0, 0, 2)));
        assert!(!saw_up(&since(&path, 0), Ipv4Addr::new(127, 0, 0, 20)));
        assert_eq!(since(&path, from), "");
    }
}
