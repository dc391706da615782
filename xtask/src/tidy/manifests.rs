//! What every manifest of the workspace has in common: the shared lints, and that nothing is published by accident.

use super::Violation;
use super::layers::manifest_path;
use super::tree::Tree;
use crate::cargo::Metadata;

/// The section, and the line that must be in it.
const REQUIRED: &[(&str, &str)] =
    &[("[lints]", "workspace = true"), ("[package]", "publish.workspace = true")];

pub(super) fn check(tree: &Tree, metadata: &Metadata) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in &metadata.packages {
        let path = manifest_path(package);
        let text = tree.get(&path).map_or("", |file| &file.text);
        for (section, line) in REQUIRED {
            if !has_line(text, section, line) {
                violations.push(Violation::new(&path, 1, format!("add `{line}` to {section}")));
            }
        }
    }
    violations
}

fn has_line(manifest: &str, section: &str, wanted: &str) -> bool {
    manifest
        .lines()
        .skip_while(|line| line.trim() != section)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .any(|line| line.trim() == wanted)
}

#[cfg(test)]
mod tests {
    use super::super::layers::tests::workspace;
    use super::*;

    fn messages(manifest: &str) -> Vec<String> {
        let tree = Tree::of(&[("crates/shop/Cargo.toml", manifest)]);
        let metadata = workspace(&[("mw-shop", "crates/shop", &[])]);
        check(&tree, &metadata).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_manifest_with_both_lines_is_fine() {
        let manifest =
            "[package]\nname = \"mw-shop\"\npublish.workspace = true\n\n[lints]\nworkspace = true\n";
        assert_eq!(messages(manifest), [""; 0]);
    }

    #[test]
    fn lints_of_the_workspace_are_required() {
        let manifest = "[package]\npublish.workspace = true\n\n[lints]\n\n[features]\nworkspace = true\n";
        assert_eq!(messages(manifest), ["crates/shop/Cargo.toml:1: add `workspace = true` to [lints]"]);
    }

    #[test]
    fn the_publish_setting_of_the_workspace_is_required() {
        let manifest = "[package]\npublish = true\n\n[lints]\nworkspace = true\n";
        assert_eq!(
            messages(manifest),
            ["crates/shop/Cargo.toml:1: add `publish.workspace = true` to [package]"]
        );
    }
}
