//! Which crate may depend on which, from `cargo metadata`. A crate exists to enforce an absence; the tables here list the
//! absences. Dev-dependencies are not checked.

use super::Violation;
use super::tree::Tree;
use crate::cargo::{self, Metadata, Package};
use Uses::{All, Only};

/// The crates of the workspace that a crate may use.
enum Uses {
    Only(&'static [&'static str]),
    All,
}

/// `domain ← store ← codec ← store-* ; domain, store ← shop ← http ← mw`. Every crate of the workspace has its row; a `*`
/// stands for any ending.
const LAYERS: &[(&str, Uses)] = &[
    ("mw-domain", Only(&[])),
    ("mw-store", Only(&["mw-domain"])),
    ("mw-codec", Only(&["mw-domain", "mw-store"])),
    ("mw-store-*", Only(&["mw-domain", "mw-store", "mw-codec"])),
    ("mw-shop", Only(&["mw-domain", "mw-store"])),
    ("mw-http", Only(&["mw-domain", "mw-store", "mw-shop"])),
    ("mw-testbed", Only(&[])),
    ("mw-cassandra-testbed", Only(&["mw-testbed"])),
    ("mw-mongodb-testbed", Only(&["mw-testbed"])),
    ("mw-loadgen", Only(&[])),
    ("mw-operate", Only(&["mw-domain", "mw-store"])),
    ("mw-migrate", Only(&["mw-domain", "mw-store", "mw-store-mongodb"])),
    ("mw-bench-baselines", Only(&["mw-loadgen"])),
    ("mw-testkit", All),
    ("mw", All),
    ("xtask", Only(&["mw-cassandra-testbed", "mw-mongodb-testbed", "mw-testbed"])),
];

/// Crates from outside that a crate of ours must do without.
const WITHOUT: &[(&str, &[&str])] = &[("mw-domain", &["axum", "serde", "tokio"])];

/// Crates from outside, and the only ones of ours that may use them.
const HOMES: &[(&str, &[&str])] = &[
    ("anyhow", &["mw", "mw-bench-baselines", "mw-testkit", "xtask"]),
    ("axum", &["mw-http", "mw", "mw-testkit", "xtask"]),
    ("fjall", &["mw-store-embedded"]),
    ("mongodb", &["mw-bench-baselines", "mw-migrate", "mw-store-mongodb", "mw-testkit"]),
    ("redis", &["mw-bench-baselines"]),
    ("scylla", &["mw-bench-baselines", "mw-store-cassandra", "mw-testkit"]),
    (
        "serde_json",
        &["mw-http", "mw-loadgen", "mw-operate", "mw-bench-baselines", "mw", "mw-testkit", "xtask"],
    ),
    ("tokio-postgres", &["mw-bench-baselines"]),
];

/// Crates of the workspace that are for tests alone.
const DEV_ONLY: &[&str] = &["mw-testkit"];

pub(super) fn check(tree: &Tree, metadata: &Metadata) -> Vec<Violation> {
    let ours: Vec<&str> = metadata.packages.iter().map(|it| it.name.as_str()).collect();
    let mut violations = Vec::new();
    for package in &metadata.packages {
        let manifest = manifest_path(package);
        let Some((_, may_use)) = LAYERS.iter().find(|(name, _)| matches(name, &package.name)) else {
            let change = format!("add `{}` to the table in xtask/src/tidy/layers.rs", package.name);
            violations.push(Violation::new(&manifest, 1, change));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|it| !it.is_dev()) {
            if let Some(change) = objection(&package.name, may_use, &dependency.name, &ours) {
                let line = line_of(tree, &manifest, &dependency.name);
                violations.push(Violation::new(&manifest, line, change));
            }
        }
    }
    violations
}

/// The manifest from the workspace root, as the tree names it.
pub(super) fn manifest_path(package: &Package) -> String {
    let root = cargo::root().to_string_lossy();
    let path = package.manifest_path.as_str();
    path.strip_prefix(root.as_ref()).map_or(path, |rest| rest.trim_start_matches('/')).to_owned()
}

/// Why `user` may not have `target` among its ordinary dependencies.
fn objection(user: &str, may_use: &Uses, target: &str, ours: &[&str]) -> Option<String> {
    if DEV_ONLY.contains(&target) {
        return Some(format!("move `{target}` to [dev-dependencies]: it is for tests alone"));
    }
    if ours.contains(&target) {
        return match may_use {
            Only(allowed) if !allowed.contains(&target) => {
                Some(format!("remove `{target}`: {user} may use {}", listed(allowed)))
            }
            Only(_) | All => None,
        };
    }
    if WITHOUT.iter().any(|(name, without)| matches(name, user) && without.contains(&target)) {
        return Some(format!("remove `{target}`: {user} must not depend on it"));
    }
    let (_, homes) = HOMES.iter().find(|(name, _)| *name == target)?;
    (!homes.iter().any(|home| matches(home, user)))
        .then(|| format!("remove `{target}` from {user}: it belongs in {}", listed(homes)))
}

fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "no other crate of the workspace".to_owned() } else { names.join(", ") }
}

fn line_of(tree: &Tree, manifest: &str, dependency: &str) -> usize {
    let declares =
        |line: &str| line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=']));
    tree.get(manifest)
        .and_then(|file| file.lines().find(|(_, line)| declares(line)))
        .map_or(1, |(number, _)| number)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cargo::Dependency;
    use std::path::PathBuf;

    /// A workspace of (name, folder, dependencies); `dev:name` is a dev-dependency.
    pub(in crate::tidy) fn workspace(packages: &[(&str, &str, &[&str])]) -> Metadata {
        let dependency = |text: &&str| match text.strip_prefix("dev:") {
            Some(name) => Dependency { name: name.to_owned(), kind: Some("dev".to_owned()) },
            None => Dependency { name: (*text).to_owned(), kind: None },
        };
        let package = |(name, folder, dependencies): &(&str, &str, &[&str])| Package {
            name: (*name).to_owned(),
            manifest_path: cargo::root().join(folder).join("Cargo.toml").to_string_lossy().into_owned(),
            dependencies: dependencies.iter().map(dependency).collect(),
        };
        Metadata { packages: packages.iter().map(package).collect(), target_directory: PathBuf::new() }
    }

    /// The violations of `user` depending on `target` in a workspace that has all of today's crates.
    fn messages(user: &str, target: &str) -> Vec<String> {
        let mut packages: Vec<(&str, &str, &[&str])> = [
            "mw-domain",
            "mw-store",
            "mw-codec",
            "mw-store-embedded",
            "mw-store-other",
            "mw-shop",
            "mw-http",
            "mw-testkit",
            "mw",
            "xtask",
        ]
        .map(|name| (name, name, &[] as &[&str]))
        .to_vec();
        let target = [target];
        for package in packages.iter_mut().filter(|package| package.0 == user) {
            package.2 = &target;
        }
        check(&Tree::of(&[]), &workspace(&packages)).into_iter().map(|violation| violation.change).collect()
    }

    #[test]
    fn dependencies_against_the_direction_are_refused() {
        let pairs = [
            ("mw-domain", "mw-store"),
            ("mw-store", "mw-shop"),
            ("mw-codec", "mw-store-embedded"),
            ("mw-shop", "mw-codec"),
            ("mw-store-embedded", "mw-shop"),
            ("mw-store-embedded", "mw-store-other"),
            ("mw-shop", "mw-http"),
            ("mw-shop", "mw-store-embedded"),
            ("mw-http", "mw-store-embedded"),
            ("mw-http", "mw"),
            ("xtask", "mw-domain"),
        ];
        for (user, target) in pairs {
            let messages = messages(user, target);
            assert_eq!(messages.len(), 1, "{user} → {target}: {messages:?}");
            assert!(messages[0].starts_with(&format!("remove `{target}`: {user} may use")), "{messages:?}");
        }
    }

    #[test]
    fn dependencies_along_the_direction_are_fine() {
        let pairs = [
            ("mw-store", "mw-domain"),
            ("mw-codec", "mw-store"),
            ("mw-store-other", "mw-store"),
            ("mw-store-other", "mw-codec"),
            ("mw-shop", "mw-store"),
            ("mw-http", "mw-shop"),
            ("mw", "mw-store-embedded"),
            ("mw-testkit", "mw-shop"),
            ("mw-http", "dev:mw-store-embedded"),
            ("mw-http", "dev:mw-testkit"),
            ("mw-domain", "dev:serde_json"),
            ("mw-domain", "jiff"),
            ("mw-http", "axum"),
            ("mw-store-embedded", "fjall"),
        ];
        for (user, target) in pairs {
            assert_eq!(messages(user, target), [""; 0], "{user} → {target}");
        }
    }

    #[test]
    fn what_a_crate_does_without_is_refused() {
        for name in ["tokio", "serde", "axum"] {
            assert_eq!(
                messages("mw-domain", name),
                [format!("remove `{name}`: mw-domain must not depend on it")]
            );
        }
    }

    #[test]
    fn a_crate_from_outside_stays_at_home() {
        let pairs = [
            ("mw-shop", "serde_json"),
            ("mw-store", "serde_json"),
            ("mw-store-embedded", "axum"),
            ("mw-store", "fjall"),
            ("mw-http", "anyhow"),
            ("mw", "tokio-postgres"),
            ("xtask", "redis"),
        ];
        for (user, target) in pairs {
            let messages = messages(user, target);
            assert!(
                messages[0].starts_with(&format!("remove `{target}` from {user}: it belongs in")),
                "{messages:?}"
            );
        }
    }

    #[test]
    fn the_testkit_is_for_tests() {
        assert_eq!(
            messages("mw", "mw-testkit"),
            ["move `mw-testkit` to [dev-dependencies]: it is for tests alone"]
        );
    }

    #[test]
    fn a_crate_without_a_row_is_refused() {
        let found = check(&Tree::of(&[]), &workspace(&[("mw-new", "crates/new", &[])]));
        assert_eq!(
            found,
            [Violation::new(
                "crates/new/Cargo.toml",
                1,
                "add `mw-new` to the table in xtask/src/tidy/layers.rs"
            )]
        );
    }

    #[test]
    fn the_line_of_the_dependency_is_named() {
        let manifest = "[dependencies]\nmw-store-embedded.workspace = true\nmw-store.workspace = true\n";
        let tree = Tree::of(&[("crates/domain/Cargo.toml", manifest)]);
        let metadata =
            workspace(&[("mw-domain", "crates/domain", &["mw-store"]), ("mw-store", "crates/store", &[])]);
        assert_eq!(check(&tree, &metadata)[0].line, 3);
    }
}
