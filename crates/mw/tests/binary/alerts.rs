//! `dashboards/alerts.yml`: every metric that it names exists, and Prometheus accepts it where its tool is installed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The metrics of a text: words that begin with `mw_`.
fn metrics(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c: char| !is_name(c)).filter(|word| word.starts_with("mw_"));
    // The series of a histogram have endings of their own.
    words.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

/// The text of every source file below a folder.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    text
}

#[test]
fn every_metric_of_the_alerts_exists() {
    let alerts = std::fs::read_to_string(root().join("dashboards/alerts.yml")).unwrap();
    let expressions: String =
        alerts.lines().filter(|line| line.trim_start().starts_with("expr:")).collect::<Vec<_>>().join("\n");
    let named = metrics(&expressions);
    assert!(named.len() >= 10, "{named:?}");
    let mut registered = String::new();
    for name in ["http", "operate", "mw"] {
        registered.push_str(&sources(&root().join("crates").join(name).join("src")));
    }
    for metric in &named {
        assert!(registered.contains(&format!("\"{metric}\"")), "no crate registers {metric}");
    }
    let rules = alerts.matches("- alert:").count();
    for member in ["expr:", "severity:", "summary:", "next:"] {
        assert_eq!(alerts.matches(member).count(), rules, "every alert has its {member}");
    }
}

#[test]
fn prometheus_accepts_the_alerts() {
    let check =
        Command::new("promtool").args(["check", "rules"]).arg(root().join("dashboards/alerts.yml")).output();
    // The tool comes with Prometheus, which is not needed for anything else.
    if let Ok(checked) = check {
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}
