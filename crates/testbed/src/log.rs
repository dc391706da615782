//! The log of a server: what was added to it, and the end of it for errors.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Lines of each file in an error.
const TAIL_LINES: usize = 30;

pub fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// The log after the offset `from`; empty if there is no file yet.
pub fn since(path: &Path, from: u64) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut bytes)
    });
    // A file that cannot be read now is read again by the next poll.
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The last lines of the files.
pub fn tails(files: &[&Path]) -> String {
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
        fs::write(&path, "one\n").unwrap();
        let from = length(&path);
        fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(since(&path, 0), "one\ntwo\n");
        assert_eq!(since(&path, from), "two\n");
    }
}
