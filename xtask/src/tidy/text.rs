//! Phrases and forms that no text may have. This file holds the phrases, so it is not searched for them.

use super::Violation;
use super::tree::{File, Tree};

/// A phrase that no Rust file may have, and what to do instead.
const PHRASES: &[(&str, &str)] = &[
    ("todo!(", "write what is missing"),
    ("unimplemented!(", "write what is missing"),
    ("dbg!(", "remove it, or log with `tracing`"),
    ("#[ignore", "let the test run; a long form reads `MW_TEST_LONG`"),
    ("#[allow(", "use `#[expect(…, reason = \"…\")]`"),
    ("#![allow(", "use `#![expect(…, reason = \"…\")]`"),
    ("FIXME", "fix it"),
    ("XXX", "fix it, or describe the problem"),
    ("phase 2", "write it now, or do not mention it"),
    ("Phase 2", "write it now, or do not mention it"),
];

const MAX_LINES: usize = 700;

/// This file, where the phrases are.
const PHRASE_BOOK: &str = "xtask/src/tidy/text.rs";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<Violation> = tree.files().flat_map(trailing_whitespace).collect();
    for file in tree.rust() {
        violations.extend(too_long(file));
        violations.extend(undocumented(file));
        if file.path != PHRASE_BOOK {
            violations.extend(phrases(file));
            violations.extend(expectations_without_reason(file));
        }
    }
    violations
}

fn trailing_whitespace(file: &File) -> impl Iterator<Item = Violation> {
    file.lines()
        .filter(|(_, line)| line.ends_with(char::is_whitespace))
        .map(|(number, _)| Violation::new(&file.path, number, "remove the trailing whitespace"))
}

fn too_long(file: &File) -> Option<Violation> {
    let count = file.lines().count();
    (count >= MAX_LINES).then(|| {
        let change = format!("split the file: {count} lines, the limit is {}", MAX_LINES - 1);
        Violation::new(&file.path, MAX_LINES, change)
    })
}

fn undocumented(file: &File) -> Option<Violation> {
    let in_src = file.path.starts_with("src/") || file.path.contains("/src/");
    (in_src && !file.text.starts_with("//!"))
        .then(|| Violation::new(&file.path, 1, "begin with `//!` that says what the file owns"))
}

fn phrases(file: &File) -> impl Iterator<Item = Violation> {
    file.lines().flat_map(move |(number, line)| {
        PHRASES.iter().filter(move |(phrase, _)| has_phrase(line, phrase)).map(move |(phrase, instead)| {
            Violation::new(&file.path, number, format!("`{phrase}`: {instead}"))
        })
    })
}

/// Whether `line` has `phrase`, and not as a part of a longer word or as a literal of its own: `"XXX"` is a currency.
fn has_phrase(line: &str, phrase: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_' || c == '"';
    line.match_indices(phrase).any(|(at, _)| {
        let (before, rest) = line.split_at(at);
        let after = rest.strip_prefix(phrase).unwrap_or_default();
        let joined_before = phrase.starts_with(in_word) && before.ends_with(in_word);
        let joined_after = phrase.ends_with(in_word) && after.starts_with(in_word);
        !joined_before && !joined_after
    })
}

fn expectations_without_reason(file: &File) -> impl Iterator<Item = Violation> {
    ["#[expect(", "#![expect("].into_iter().flat_map(|start| file.text.match_indices(start)).filter_map(
        |(at, _)| {
            let attribute = file.text.get(at..)?.split(")]").next()?;
            let number = file.text.get(..at)?.matches('\n').count() + 1;
            let unexplained = !attribute.contains("reason = ");
            unexplained.then(|| Violation::new(&file.path, number, "add `reason = \"…\"` to the attribute"))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_phrase_is_refused_with_its_line() {
        for (phrase, instead) in PHRASES {
            let found = messages("tests/a.rs", &format!("fn a() {{}}\n    {phrase} x\n"));
            assert_eq!(found, [format!("tests/a.rs:2: `{phrase}`: {instead}")]);
        }
    }

    #[test]
    fn phrases_inside_longer_words_and_in_other_files_are_fine() {
        assert_eq!(messages("tests/a.rs", "let a = \"XXX\";\nmy_dbg!(a);\n// XXXX, phase 20\n"), [""; 0]);
        assert_eq!(messages("README.md", "FIXME\n"), [""; 0]);
        assert_eq!(messages(PHRASE_BOOK, "//! A\n// FIXME\n"), [""; 0]);
    }

    #[test]
    fn an_expectation_gives_its_reason() {
        let bare = "#[expect(clippy::panic)]\nfn a() {}\n\n#[expect(\n    dead_code\n)]\nfn b() {}\n";
        let change = "add `reason = \"…\"` to the attribute";
        assert_eq!(
            messages("tests/a.rs", bare),
            [format!("tests/a.rs:1: {change}"), format!("tests/a.rs:4: {change}")]
        );
        assert_eq!(messages("tests/a.rs", "#![expect(dead_code)]\n"), [format!("tests/a.rs:1: {change}")]);
        assert_eq!(messages("tests/a.rs", "#[expect(\n    dead_code,\n    reason = \"why\"\n)]\n"), [""; 0]);
    }

    #[test]
    fn a_file_of_seven_hundred_lines_is_split() {
        assert_eq!(messages("tests/a.rs", &"a();\n".repeat(MAX_LINES - 1)), [""; 0]);
        assert_eq!(
            messages("tests/a.rs", &"a();\n".repeat(MAX_LINES)),
            ["tests/a.rs:700: split the file: 700 lines, the limit is 699"]
        );
    }

    #[test]
    fn a_source_file_says_what_it_owns() {
        let change = "begin with `//!` that says what the file owns";
        assert_eq!(
            messages("crates/shop/src/a.rs", "use std::fmt;\n"),
            [format!("crates/shop/src/a.rs:1: {change}")]
        );
        assert_eq!(messages("crates/shop/src/a.rs", ""), [format!("crates/shop/src/a.rs:1: {change}")]);
        assert_eq!(messages("crates/shop/src/a.rs", "//! Owns a.\n"), [""; 0]);
        assert_eq!(messages("crates/shop/tests/a.rs", "use std::fmt;\n"), [""; 0]);
    }

    #[test]
    fn trailing_whitespace_is_refused_in_every_text() {
        let change = "remove the trailing whitespace";
        assert_eq!(messages("a.md", "x\ny \n"), [format!("a.md:2: {change}")]);
        assert_eq!(messages("a.toml", "x\t\n"), [format!("a.toml:1: {change}")]);
        assert_eq!(messages("tests/a.rs", "x\r\n"), [format!("tests/a.rs:1: {change}")]);
    }
}
