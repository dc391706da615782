//! `dashboards/alerts.yml` and `dashboards/mw.json`: every metric and label that they name exists, and Prometheus accepts the alerts
//! where its tool is installed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Labels that Prometheus adds, and the bounds of histograms.
const FOREIGN_LABELS: [&str; 2] = ["instance", "le"];
/// Columns of a dashboard.
const WIDTH: u64 = 24;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join("dashboards").join(name)).unwrap()
}

/// The text of every source file of the crates.
fn sources() -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        add_sources(&entry.unwrap().path().join("src"), &mut text);
    }
    text
}

fn add_sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

/// The words of an expression.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(move |c: char| !is_part(c)).filter(|word| !word.is_empty())
}

/// The metrics of an expression, without the endings that the series of a histogram have.
fn metrics(expression: &str) -> BTreeSet<String> {
    let named = words(expression).filter(|word| word.starts_with("mw_"));
    let endings = ["_bucket", "_sum", "_count"];
    named
        .map(|name| endings.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned())
        .collect()
}

/// The parts of an expression between two texts.
fn between<'a>(expression: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    expression.split(open).skip(1).filter_map(move |rest| rest.split(close).next())
}

/// The labels by which an expression selects and sums.
fn labels(expression: &str) -> BTreeSet<&str> {
    let matchers = between(expression, "{", '}').flat_map(|inside| inside.split(','));
    let selected = matchers.filter_map(|matcher| matcher.split(['=', '!']).next()).map(str::trim);
    selected.chain(summed_by(expression)).collect()
}

fn summed_by(expression: &str) -> BTreeSet<&str> {
    between(expression, "by (", ')').flat_map(words).collect()
}

/// What is wrong with an expression; nothing if all that it names exists.
fn unknown(expression: &str, sources: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        if expression.matches(open).count() != expression.matches(close).count() {
            wrong.push(format!("{open} is not closed"));
        }
    }
    let is_text_of_source = |name: &str| sources.contains(&format!("\"{name}\""));
    let named = metrics(expression);
    if named.is_empty() {
        wrong.push("it names no metric".to_owned());
    }
    wrong.extend(named.into_iter().filter(|name| !is_text_of_source(name)));
    let own = labels(expression).into_iter().filter(|label| !FOREIGN_LABELS.contains(label));
    wrong.extend(own.filter(|label| !is_text_of_source(label)).map(|label| format!("label {label}")));
    wrong
}

/// The alerts: their text from one `- alert:` to the next.
fn alerts() -> Vec<String> {
    read("alerts.yml").split("- alert:").skip(1).map(str::to_owned).collect()
}

#[test]
fn what_does_not_exist_is_found() {
    let sources = r#""mw_http_requests_total" "mw_x_seconds" "class""#;
    let right = r#"sum by (class, le) (rate(mw_http_requests_total{class="5xx"}[5m])) > mw_x_seconds_sum"#;
    assert!(unknown(right, sources).is_empty(), "{:?}", unknown(right, sources));
    for (wrong, what) in [
        ("rate(mw_http_requests[5m])", "mw_http_requests"),
        ("sum by (clas) (mw_x_seconds)", "label clas"),
        (r#"mw_x_seconds{kind="a"}"#, "label kind"),
        ("rate(mw_x_seconds[5m]", "( is not closed"),
        ("1 > 0", "it names no metric"),
    ] {
        assert_eq!(unknown(wrong, sources), [what], "{wrong}");
    }
}

#[test]
fn every_metric_and_label_of_the_alerts_exists() {
    let sources = sources();
    let alerts = alerts();
    assert!(alerts.len() >= 10, "{}", alerts.len());
    let mut names = BTreeSet::new();
    for alert in &alerts {
        let name = alert.lines().next().unwrap().trim();
        assert!(names.insert(name), "{name} is there twice");
        let line = |member: &str| {
            let mut lines = alert.lines().filter_map(|line| line.trim_start().strip_prefix(member));
            let found = lines.next();
            assert!(found.is_some() && lines.next().is_none(), "{name} has one {member}");
            found.unwrap().trim()
        };
        let expression = line("expr:");
        assert_eq!(unknown(expression, &sources), Vec::<String>::new(), "{name}: {expression}");
        assert!(["{severity: page}", "{severity: ticket}"].contains(&line("labels:")), "{name}");
        // What the text says of a label, the expression must keep.
        let shown = line("summary:").to_owned() + line("next:");
        let kept = summed_by(expression);
        let sums = ["sum", "max", "min"].iter().any(|sum| expression.contains(&format!("{sum}(")));
        let drops_all = kept.is_empty() && sums;
        for label in between(&shown, "$labels.", ' ') {
            let is_kept = kept.contains(label) || (kept.is_empty() && !drops_all);
            assert!(is_kept, "{name} says {label}, which its expression drops");
        }
    }
}

#[test]
fn every_metric_and_label_of_the_dashboard_exists() {
    let sources = sources();
    let dashboard: Value = serde_json::from_str(&read("mw.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut ids, mut cells, mut shown) = (BTreeSet::new(), BTreeSet::new(), String::new());
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is there twice");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        for column in place("x")..place("x") + place("w") {
            for line in place("y")..place("y") + place("h") {
                assert!(column < WIDTH && cells.insert((column, line)), "{title} lies on another panel");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} shows nothing");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            assert_eq!(unknown(expression, &sources), Vec::<String>::new(), "{title}: {expression}");
            let legend = target["legendFormat"].as_str().unwrap();
            let kept = summed_by(expression);
            for label in between(legend, "{{", '}') {
                assert!(kept.contains(label), "{title}: the legend has {label}, the expression has not");
            }
            shown.push_str(expression);
        }
    }
    // The metric of every alert is on the dashboard.
    let shown = metrics(&shown);
    for alert in alerts() {
        let expression = alert.lines().find(|line| line.trim_start().starts_with("expr:")).unwrap();
        for metric in metrics(expression) {
            assert!(shown.contains(&metric), "no panel shows {metric}");
        }
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
