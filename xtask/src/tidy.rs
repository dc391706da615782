//! `cargo xtask tidy`: the house rules as a test. One module a family of rules, each a function from the tree to its
//! violations.

mod commits;
mod fixtures;
mod layers;
mod links;
mod manifests;
mod modules;
mod names;
mod text;
mod tree;
mod words;

use crate::cargo::{self, Metadata};
use crate::say;
use anyhow::{Result, bail};
use std::fmt;
use tree::Tree;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    /// What to change.
    change: String,
}

impl Violation {
    fn new(path: &str, line: usize, change: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, change: change.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.change)
    }
}

pub(crate) fn run() -> Result<()> {
    let tree = Tree::load(cargo::root())?;
    let metadata = Metadata::load()?;
    let mut violations = check(&tree, &metadata);
    violations.extend(commits::check(&commits::load(cargo::root())?));
    for violation in &violations {
        say(violation);
    }
    match violations.len() {
        0 => Ok(()),
        1 => bail!("1 violation of the house rules"),
        count => bail!("{count} violations of the house rules"),
    }
}

fn check(tree: &Tree, metadata: &Metadata) -> Vec<Violation> {
    let mut violations = [
        layers::check(tree, metadata),
        manifests::check(tree, metadata),
        modules::check(tree),
        fixtures::check(tree),
        names::check(tree),
        text::check(tree),
        words::check(tree),
        links::check(tree),
    ]
    .concat();
    violations.sort();
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_is_one_line_with_path_and_line_number() {
        let violation = Violation::new("crates/shop/src/lib.rs", 7, "remove this");
        assert_eq!(violation.to_string(), "crates/shop/src/lib.rs:7: remove this");
    }

    #[test]
    fn every_family_of_rules_runs() {
        let tree = Tree::of(&[
            ("crates/odd/Cargo.toml", "[package]\nname = \"mw-odd\"\n"),
            ("crates/odd/src/lib.rs", "//! Odd.\n"),
            ("crates/odd/src/lost.rs", "//! Not declared.\n"),
            ("crates/odd/src/bin/utils.rs", "//! Badly named.\n"),
            ("crates/odd/fixtures/unread.bin", ""),
            ("README.md", "[gone](gone.md)\ntrailing \n"),
        ]);
        let metadata = layers::tests::workspace(&[("mw-odd", "crates/odd", &[])]);
        let changes: Vec<String> = check(&tree, &metadata).iter().map(ToString::to_string).collect();
        for part in ["layers.rs", "[lints]", "mod lost;", "no test reads", "utils", "gone.md", "whitespace"] {
            assert!(changes.iter().any(|change| change.contains(part)), "{part} is not in {changes:#?}");
        }
    }
}
