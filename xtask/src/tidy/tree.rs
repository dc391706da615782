//! The files that the rules check, read once. Rules never touch the disk, so a test is a list of texts.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

pub(super) struct Tree {
    /// Sorted by path.
    files: Vec<File>,
}

pub(super) struct File {
    /// From the workspace root, with `/`.
    pub(super) path: String,
    /// Empty for files that are not checked, such as fixtures and pictures.
    pub(super) text: String,
}

/// Extensions of files that are read; of all others only the path is checked.
const TEXT_EXTENSIONS: &[&str] = &["cql", "md", "rs", "sh", "toml", "yaml", "yml"];

/// Hidden folders that belong to the project; others belong to git, editors and the like.
const HIDDEN_FOLDERS: &[&str] = &[".cargo", ".ci", ".github"];

/// Folders in `.gitignore` at the root. Folders with a `CACHEDIR.TAG` (any target folder) are left out everywhere.
const IGNORED_AT_ROOT: &[&str] = &["data", "target"];

impl Tree {
    pub(super) fn load(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        walk(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &File> {
        self.files.iter()
    }

    pub(super) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files().filter(|file| file.extension() == "rs")
    }

    pub(super) fn get(&self, path: &str) -> Option<&File> {
        let index = self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok()?;
        self.files.get(index)
    }

    /// Whether `path` is a file, or a folder with files in it.
    pub(super) fn exists(&self, path: &str) -> bool {
        path.is_empty()
            || self.get(path).is_some()
            || self.files().any(|file| file.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
    }

    /// The folder of the nearest `Cargo.toml` above `path`, with a `/` at its end unless it is the root.
    pub(super) fn crate_folder<'a>(&self, path: &'a str) -> &'a str {
        let mut folder = path;
        while let Some((parent, _)) = folder.rsplit_once('/') {
            if self.get(&format!("{parent}/Cargo.toml")).is_some() {
                return path.get(..=parent.len()).unwrap_or(path);
            }
            folder = parent;
        }
        ""
    }
}

impl File {
    pub(super) fn extension(&self) -> &str {
        self.name().rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    pub(super) fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(&self.path, |(_, name)| name)
    }

    /// The lines with their numbers, from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.strip_suffix('\n').unwrap_or(&self.text).split('\n'))
    }
}

fn walk(root: &Path, folder: &str, files: &mut Vec<File>) -> Result<()> {
    let full = root.join(folder);
    for entry in fs::read_dir(&full).with_context(|| format!("list {}", full.display()))? {
        let entry = entry.with_context(|| format!("list {}", full.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let kind = entry.file_type().with_context(|| format!("read the type of {path}"))?;
        if kind.is_dir() {
            let hidden = name.starts_with('.') && !HIDDEN_FOLDERS.contains(&name.as_str());
            let ignored = IGNORED_AT_ROOT.contains(&path.as_str());
            if !hidden && !ignored && !entry.path().join("CACHEDIR.TAG").exists() {
                walk(root, &path, files)?;
            }
        } else if kind.is_file() {
            let mut file = File { path, text: String::new() };
            if TEXT_EXTENSIONS.contains(&file.extension()) {
                file.text =
                    fs::read_to_string(entry.path()).with_context(|| format!("read {}", file.path))?;
            }
            files.push(file);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tree {
        /// A tree of these paths and texts.
        pub(in crate::tidy) fn of(files: &[(&str, &str)]) -> Self {
            let mut files: Vec<File> = files
                .iter()
                .map(|(path, text)| File { path: (*path).to_owned(), text: (*text).to_owned() })
                .collect();
            files.sort_by(|a, b| a.path.cmp(&b.path));
            Self { files }
        }
    }

    #[test]
    fn the_workspace_is_read_without_build_output() {
        let tree = Tree::load(crate::cargo::root()).expect("load");
        let own = tree.get("xtask/src/tidy/tree.rs").expect("this file");
        assert!(own.text.starts_with("//!"));
        assert!(tree.exists(".cargo/config.toml"));
        assert!(
            tree.files().all(|file| !file.path.starts_with("target/") && !file.path.starts_with(".git/"))
        );
    }

    #[test]
    fn a_folder_exists_by_its_files() {
        let tree = Tree::of(&[("docs/tour.md", ""), ("a.md", "")]);
        assert!(tree.exists("docs") && tree.exists("docs/tour.md") && tree.exists(""));
        assert!(!tree.exists("doc") && !tree.exists("docs/tour"));
    }

    #[test]
    fn a_file_belongs_to_the_nearest_crate() {
        let tree =
            Tree::of(&[("Cargo.toml", ""), ("crates/shop/Cargo.toml", ""), ("crates/shop/src/a/b.rs", "")]);
        assert_eq!(tree.crate_folder("crates/shop/src/a/b.rs"), "crates/shop/");
        assert_eq!(tree.crate_folder("docs/a.md"), "");
    }

    #[test]
    fn lines_are_counted_from_one_and_the_last_newline_is_no_line() {
        let tree = Tree::of(&[("a.md", "x\n\ny\n")]);
        let lines: Vec<_> = tree.get("a.md").expect("file").lines().collect();
        assert_eq!(lines, [(1, "x"), (2, ""), (3, "y")]);
    }
}
