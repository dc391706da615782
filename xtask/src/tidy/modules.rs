//! No dead source: every file under `src/` and `tests/` is compiled, because a file above it declares it.

use super::Violation;
use super::tree::{File, Tree};

/// Folders of a crate that hold Rust; in all but `src`, each file at the top is a program of its own.
const FOLDERS: &[&str] = &["src", "tests", "benches", "examples"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    tree.rust().filter_map(|file| undeclared(tree, file)).collect()
}

fn undeclared(tree: &Tree, file: &File) -> Option<Violation> {
    let in_crate = file.path.strip_prefix(tree.crate_folder(&file.path))?;
    let (folder, inside) = in_crate.split_once('/')?;
    if !FOLDERS.contains(&folder) || is_root(folder, inside) {
        return None;
    }
    let module = module_path(inside);
    let (parents, name) = module.rsplit_once('/').unwrap_or(("", module));
    let top = file.path.strip_suffix(inside)?;
    let declared = tree.rust().filter(|other| other.path != file.path).any(|other| {
        let scope = other.path.strip_prefix(top).map(|inside| scope(folder, inside));
        scope.is_some_and(|scope| match parents.strip_prefix(scope) {
            Some("") => declares(other, name, false),
            Some(rest) if scope.is_empty() || rest.starts_with('/') => declares(other, name, true),
            Some(_) | None => false,
        })
    });
    (!declared).then(|| {
        Violation::new(&file.path, 1, format!("declare `mod {name};` above it, or delete this file"))
    })
}

/// Whether cargo starts compiling at this file.
fn is_root(folder: &str, inside: &str) -> bool {
    match inside.split('/').collect::<Vec<_>>().as_slice() {
        [name] => folder != "src" || ["lib.rs", "main.rs"].contains(name),
        ["bin", _] => folder == "src",
        ["bin", _, name] => folder == "src" && *name == "main.rs",
        [_, name] => folder != "src" && *name == "main.rs",
        _ => false,
    }
}

/// `a/b` of `a/b.rs` and of `a/b/mod.rs`.
fn module_path(inside: &str) -> &str {
    inside.strip_suffix("/mod.rs").or_else(|| inside.strip_suffix(".rs")).unwrap_or(inside)
}

/// The folder in which a file's own modules are.
fn scope<'a>(folder: &str, inside: &'a str) -> &'a str {
    if is_root(folder, inside) {
        inside.rsplit_once('/').map_or("", |(folder, _)| folder)
    } else {
        module_path(inside)
    }
}

/// Whether `file` has the line `mod <name>;`. With `nested` only inside another module, as in
/// `mod tests { mod cases; }`.
fn declares(file: &File, name: &str, nested: bool) -> bool {
    file.lines().any(|(_, whole)| {
        let line = whole.trim_start();
        let bare = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(')').map_or("", |(_, rest)| rest),
            Some(rest) => rest,
            None => line,
        };
        let declared = bare.trim_start().strip_prefix("mod ").and_then(|rest| rest.split_once(';'));
        let right_depth = !nested || whole.starts_with(' ');
        right_depth && declared.is_some_and(|(declared, _)| declared.trim_start_matches("r#") == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![("crates/shop/Cargo.toml", "")];
        all.extend_from_slice(files);
        check(&Tree::of(&all)).into_iter().map(|violation| violation.path).collect()
    }

    #[test]
    fn an_undeclared_file_is_dead() {
        let found = check(&Tree::of(&[
            ("crates/shop/Cargo.toml", ""),
            ("crates/shop/src/lib.rs", "mod login;\n"),
            ("crates/shop/src/checkout.rs", ""),
            ("crates/shop/src/login.rs", ""),
        ]));
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].to_string(),
            "crates/shop/src/checkout.rs:1: declare `mod checkout;` above it, or delete this file"
        );
    }

    #[test]
    fn a_comment_or_an_inline_module_declares_no_file() {
        let lib = "// mod a;\nmod b {}\nmod cc;\n";
        let files = [
            ("crates/shop/src/lib.rs", lib),
            ("crates/shop/src/a.rs", ""),
            ("crates/shop/src/b.rs", ""),
            ("crates/shop/src/c.rs", ""),
        ];
        assert_eq!(dead(&files), ["crates/shop/src/a.rs", "crates/shop/src/b.rs", "crates/shop/src/c.rs"]);
    }

    #[test]
    fn declarations_are_read_in_each_of_their_forms() {
        let files = [
            (
                "crates/shop/src/lib.rs",
                "pub mod a;\npub(crate) mod b;\n    mod c;\npub(in crate::x) mod d;\nmod r#move;\n",
            ),
            ("crates/shop/src/a.rs", "mod deep;\nmod tests {\n    mod cases;\n}\n"),
            ("crates/shop/src/a/deep.rs", ""),
            ("crates/shop/src/a/tests/cases.rs", ""),
            ("crates/shop/src/b/mod.rs", ""),
            ("crates/shop/src/c.rs", ""),
            ("crates/shop/src/d.rs", ""),
            ("crates/shop/src/move.rs", ""),
            ("crates/shop/src/bin/tool.rs", ""),
            ("crates/shop/src/bin/other/main.rs", "mod part;\n"),
            ("crates/shop/src/bin/other/part.rs", ""),
        ];
        assert_eq!(dead(&files), [""; 0]);
    }

    #[test]
    fn a_module_of_another_branch_does_not_count() {
        let files = [
            ("crates/shop/src/lib.rs", "mod a;\nmod b;\nmod deep;\n"),
            ("crates/shop/src/deep.rs", ""),
            ("crates/shop/src/a.rs", "mod deep;\n"),
            ("crates/shop/src/a/deep.rs", ""),
            ("crates/shop/src/b.rs", ""),
            ("crates/shop/src/b/deep.rs", ""),
        ];
        assert_eq!(dead(&files), ["crates/shop/src/b/deep.rs"]);
    }

    #[test]
    fn an_undeclared_part_of_a_test_is_dead() {
        let files = [
            ("crates/shop/tests/api.rs", "mod kit;\n"),
            ("crates/shop/tests/kit/mod.rs", ""),
            ("crates/shop/tests/crash/main.rs", "mod kill;\n"),
            ("crates/shop/tests/crash/kill.rs", ""),
            ("crates/shop/tests/crash/power.rs", ""),
        ];
        assert_eq!(dead(&files), ["crates/shop/tests/crash/power.rs"]);
    }
}
