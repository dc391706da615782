//! Names of source files: after what they own, never after nothing in particular.

use super::Violation;
use super::tree::Tree;

const EMPTY_WORDS: &[&str] = &[
    "util",
    "utils",
    "utility",
    "utilities",
    "helper",
    "helpers",
    "common",
    "commons",
    "manager",
    "managers",
];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    tree.rust()
        .filter_map(|file| {
            let word = file.path.split(['/', '_', '-', '.']).find(|word| EMPTY_WORDS.contains(word))?;
            Some(Violation::new(
                &file.path,
                1,
                format!("name the file after what it owns: `{word}` says nothing"),
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_words_are_refused_in_files_and_folders() {
        let bad = ["src/utils.rs", "src/cart_manager.rs", "src/helper/carts.rs", "tests/common/mod.rs"];
        for path in bad {
            let found = check(&Tree::of(&[(path, "")]));
            assert_eq!(found.len(), 1, "{path}");
            assert!(found[0].change.starts_with("name the file after what it owns"));
        }
    }

    #[test]
    fn words_that_only_begin_alike_are_fine() {
        assert_eq!(
            check(&Tree::of(&[("src/utilisation.rs", ""), ("src/carts.rs", ""), ("docs/common.md", "")])),
            []
        );
    }
}
