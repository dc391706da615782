//! No dead fixtures: every file under a `fixtures/` folder is read by some source of its crate.

use super::Violation;
use super::tree::{File, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let change = "delete this file: no test reads it, by its name or its folder";
    let dead =
        |file: &&File| inside_fixtures(&file.path).is_some_and(|inside| !is_read(tree, &file.path, inside));
    tree.files().filter(dead).map(|file| Violation::new(&file.path, 1, change)).collect()
}

fn inside_fixtures(path: &str) -> Option<&str> {
    path.strip_prefix("fixtures/").or_else(|| path.split_once("/fixtures/").map(|(_, inside)| inside))
}

fn is_read(tree: &Tree, path: &str, inside: &str) -> bool {
    let folder = tree.crate_folder(path);
    tree.rust().any(|source| source.path.starts_with(folder) && mentions(&source.text, inside))
}

/// Whether a source names the file, or as a whole a folder that it is in: `"fixtures/v1"` or `"fixtures/v1/{name}"`.
fn mentions(source: &str, inside: &str) -> bool {
    let name = inside.rsplit_once('/').map_or(inside, |(_, name)| name);
    if source.contains(name) {
        return true;
    }
    let whole = |folder: &str| {
        [format!("{folder}\""), format!("{folder}/\""), format!("{folder}/{{")]
            .iter()
            .any(|text| source.contains(text))
    };
    let mut folder = format!("fixtures/{inside}");
    while let Some((parent, _)) = folder.rsplit_once('/') {
        folder = parent.to_owned();
        if whole(&folder) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead(source: &str) -> usize {
        let tree = Tree::of(&[
            ("crates/shop/Cargo.toml", ""),
            ("crates/shop/tests/format.rs", source),
            ("crates/shop/tests/fixtures/v1/cart.bin", ""),
            ("crates/other/Cargo.toml", ""),
            ("crates/other/tests/format.rs", "\"fixtures/v1/cart.bin\""),
        ]);
        check(&tree).len()
    }

    #[test]
    fn a_fixture_that_its_crate_never_names_is_dead() {
        assert_eq!(dead("read(\"fixtures/v2/cart.bin.old\")".replace("cart.bin", "order").as_str()), 1);
        assert_eq!(dead("// the files of fixtures/ are old\n"), 1);
        assert_eq!(dead("read_dir(\"fixtures/v10\")"), 1);
    }

    #[test]
    fn a_fixture_is_read_by_name_or_by_folder() {
        assert_eq!(dead("include_bytes!(\"fixtures/v1/cart.bin\")"), 0);
        assert_eq!(dead("read_dir(\"tests/fixtures/v1\")"), 0);
        assert_eq!(dead("read_dir(\"tests/fixtures/\")"), 0);
        assert_eq!(dead("read(format!(\"tests/fixtures/v1/{name}.bin\"))"), 0);
    }
}
