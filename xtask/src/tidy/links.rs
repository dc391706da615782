//! Links between documents: every relative link in Markdown leads to a file or folder of the tree.

use super::Violation;
use super::tree::{File, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    tree.files().filter(|file| file.extension() == "md").flat_map(|file| broken(tree, file)).collect()
}

fn broken(tree: &Tree, file: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut fenced = false;
    for (number, line) in file.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            for target in targets(&without_code(line)) {
                if !leads_somewhere(tree, &file.path, &target) {
                    let change = format!("fix the link: there is no `{target}`");
                    violations.push(Violation::new(&file.path, number, change));
                }
            }
        }
    }
    violations
}

/// The line without code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Where the links of a line lead: `[text](target "title")` and `[name]: target`.
fn targets(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let reference = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    inline
        .chain(reference)
        .filter_map(|target| target.split_whitespace().next())
        .map(|target| target.trim_start_matches('<').trim_end_matches('>').to_owned())
        .collect()
}

fn leads_somewhere(tree: &Tree, from: &str, target: &str) -> bool {
    let has_scheme =
        target.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(char::is_alphanumeric));
    let path = target.split('#').next().unwrap_or_default();
    if has_scheme || path.is_empty() {
        return true;
    }
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let start = if path.starts_with('/') { "" } else { folder };
    let mut parts: Vec<&str> = start.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." if parts.pop().is_none() => return false,
            "" | "." | ".." => {}
            part => parts.push(part),
        }
    }
    tree.exists(&parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            (path, text),
            ("README.md", ""),
            ("docs/keys.md", ""),
            ("crates/shop/src/lib.rs", ""),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_link_to_nothing_is_refused_with_its_line() {
        assert_eq!(
            messages("A.md", "x\n[a](docs/gone.md)\n"),
            ["A.md:2: fix the link: there is no `docs/gone.md`"]
        );
        assert_eq!(messages("A.md", "![a](gone.png)\n"), ["A.md:1: fix the link: there is no `gone.png`"]);
        assert_eq!(messages("A.md", "[a]: gone.md\n"), ["A.md:1: fix the link: there is no `gone.md`"]);
        assert_eq!(messages("docs/a.md", "[a](docs/keys.md)\n").len(), 1);
        assert_eq!(messages("docs/a.md", "[a](../../README.md)\n").len(), 1);
        assert_eq!(messages("A.md", "[a](README.md) and [b](gone.md#part)\n").len(), 1);
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        let good = "[a](docs/keys.md#heading) [b](crates/shop) [c](/README.md) [d](#here) [e](./README.md \"title\")\n\
                    [f](https://example.org/x) [g](mailto:shop@example.org) [h](<README.md>)\n";
        assert_eq!(messages("A.md", good), [""; 0]);
        assert_eq!(messages("docs/a.md", "[a](keys.md) [b](../README.md) [c](../crates/)\n"), [""; 0]);
    }

    #[test]
    fn code_is_no_link() {
        assert_eq!(messages("A.md", "`[a](gone.md)`\n```\n[b](gone.md)\n```\n"), [""; 0]);
    }
}
