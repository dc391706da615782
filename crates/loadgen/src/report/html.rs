//! The report as one HTML page without external resources.

use std::fmt::Write;

use super::chart::{Axis, Bars, Line, OverTime};
use super::table::{grouped, headline, remarks, time};
use super::{Report, SecondReport, Summary};
use crate::numbers::{float, whole};

const STYLE: &str = include_str!("page.css");

pub(super) fn render(report: &Report) -> String {
    let settings = &report.settings;
    let title = escaped(&format!("mw bench {}", settings.workload));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n<p>{}</p>\n<p class=\"quiet\">{}, {}</p>\n",
        escaped(&headline(report)),
        escaped(&settings.about),
        escaped(&settings.started_at),
    );
    page.push_str(&verdict(report));
    page.push_str(&tiles(report));
    let seconds: Vec<&SecondReport> = report.rounds.iter().flat_map(|round| &round.seconds).collect();
    page.push_str("<h2>Latency over time</h2>\n");
    page.push_str(&latency_chart(report, &seconds));
    page.push_str("<h2>Responses a second</h2>\n");
    page.push_str(&rate_chart(report, &seconds));
    page.push_str("<h2>Latencies by size</h2>\n");
    page.push_str(&histogram(&report.total));
    page.push_str("<h2>By call</h2>\n");
    page.push_str(&calls(report));
    page.push_str("<h2>Notes</h2>\n<ul>\n");
    for remark in remarks(report) {
        // Writing to a string cannot fail; so below.
        let _ = writeln!(page, "<li>{}</li>", escaped(&remark));
    }
    page.push_str("</ul>\n<h2>Settings</h2>\n");
    page.push_str(&settings_table(report));
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn verdict(report: &Report) -> String {
    let (class, text) = match (&report.check, report.error_count()) {
        (Some(check), _) if !check.passed => ("bad", "The check failed: the server broke a guarantee."),
        (_, errors) if errors > 0 => ("bad", "There were errors."),
        (Some(_), _) => ("good", "No errors. Every acknowledged order is readable and no unit was oversold."),
        (None, _) => ("good", "No errors."),
    };
    format!("<p class=\"verdict {class}\">{text}</p>\n")
}

fn tiles(report: &Report) -> String {
    let total = &report.total;
    let tiles = [
        ("requests a second", grouped(whole(total.rate))),
        ("p50", time(total.p50_us)),
        ("p99", time(total.p99_us)),
        ("p99.9", time(total.p999_us)),
        ("max", time(total.max_us)),
        ("errors", grouped(report.error_count())),
    ];
    let tiles = tiles.map(|(name, value)| format!("<div><b>{value}</b><span>{name}</span></div>"));
    format!("<div class=\"tiles\">{}</div>\n", tiles.concat())
}

/// Where rounds meet, counted in seconds that were measured.
fn breaks(report: &Report) -> Vec<usize> {
    let mut sum = 0;
    let mut breaks: Vec<usize> = report
        .rounds
        .iter()
        .map(|round| {
            sum += round.seconds.len();
            sum
        })
        .collect();
    breaks.pop();
    breaks
}

fn latency_chart(report: &Report, seconds: &[&SecondReport]) -> String {
    let values = |pick: fn(&SecondReport) -> u64| seconds.iter().map(|it| float(pick(it).max(1))).collect();
    let lowest = seconds.iter().map(|it| it.p50_us).min().unwrap_or(1).max(1);
    let highest = seconds.iter().map(|it| it.max_us).max().unwrap_or(1).max(1);
    let tip = |it: &&SecondReport| {
        let (p50, p99, max) = (time(it.p50_us), time(it.p99_us), time(it.max_us));
        format!("second {}: p50 {p50}, p99 {p99}, max {max}", it.second + 1)
    };
    let chart = OverTime {
        title: "Latency of each second",
        axis: Axis::Log(float(lowest), float(highest)),
        lines: vec![
            Line { name: "max", class: "c3", values: values(|it| it.max_us) },
            Line { name: "p99", class: "c2", values: values(|it| it.p99_us) },
            Line { name: "p50", class: "c1", values: values(|it| it.p50_us) },
        ],
        breaks: breaks(report),
        tips: seconds.iter().map(tip).collect(),
        label: |us| time(whole(us)),
    };
    chart.render()
}

fn rate_chart(report: &Report, seconds: &[&SecondReport]) -> String {
    let most = seconds.iter().map(|it| it.answered).max().unwrap_or(1).max(1);
    let mut lines = vec![Line {
        name: "answered",
        class: "c1",
        values: seconds.iter().map(|it| float(it.answered)).collect(),
    }];
    if seconds.iter().any(|it| it.errors > 0) {
        let values = seconds.iter().map(|it| float(it.errors)).collect();
        lines.push(Line { name: "errors", class: "c4", values });
    }
    let tip = |it: &&SecondReport| {
        format!("second {}: {} answered, {} errors", it.second + 1, grouped(it.answered), it.errors)
    };
    let chart = OverTime {
        title: "Responses of each second",
        axis: Axis::Linear(float(most) * 1.05),
        lines,
        breaks: breaks(report),
        tips: seconds.iter().map(tip).collect(),
        label: |count| grouped(whole(count)),
    };
    chart.render()
}

fn histogram(total: &Summary) -> String {
    let marks = [(total.p50_us, "p50"), (total.p99_us, "p99"), (total.p999_us, "p99.9")];
    let bars = Bars {
        title: "How many requests took how long",
        steps: &total.steps,
        marks: marks.into_iter().filter(|(us, _)| *us > 0).collect(),
        label: time,
    };
    bars.render()
}

fn calls(report: &Report) -> String {
    let heads = ["call", "requests", "rate/s", "mean", "p50", "p90", "p99", "p99.9", "max", "errors"];
    let mut table = String::from("<div class=\"wide\"><table>\n<tr>");
    for head in heads {
        let _ = write!(table, "<th>{head}</th>");
    }
    table.push_str("</tr>\n");
    let all = std::iter::once(("all", &report.total));
    for (name, figures) in report.calls.iter().map(|call| (call.name.as_str(), &call.figures)).chain(all) {
        let errors: u64 = figures.errors.values().sum();
        let cells = [
            escaped(name),
            grouped(figures.answered),
            grouped(whole(figures.rate)),
            time(whole(figures.mean_us)),
            time(figures.p50_us),
            time(figures.p90_us),
            time(figures.p99_us),
            time(figures.p999_us),
            time(figures.max_us),
            grouped(errors),
        ];
        let cells = cells.map(|cell| format!("<td>{cell}</td>"));
        let _ = writeln!(table, "<tr>{}</tr>", cells.concat());
    }
    table + "</table></div>\n"
}

fn settings_table(report: &Report) -> String {
    let settings = &report.settings;
    let data = &settings.data;
    let rows = [
        ("connections", settings.connections.to_string()),
        ("requests at once on each", settings.depth.to_string()),
        ("generator threads", settings.threads.to_string()),
        ("CPU cores", settings.cores.to_string()),
        ("products", grouped(data.products)),
        ("users", grouped(data.users)),
        ("zones", grouped(data.zones)),
        ("units of each product in each zone", grouped(data.units)),
        ("carts before the run", grouped(data.carts)),
        ("baskets before the run", grouped(data.baskets)),
        ("orders before the run", grouped(data.orders)),
        ("skew", data.skew.to_string()),
        ("hit products", format!("{}, for {} of choices", data.hits, data.hit_share)),
        ("seed", settings.seed.to_string()),
        ("ids begin with", settings.prefix.clone()),
    ];
    let rows = rows.map(|(name, value)| format!("<tr><td>{name}</td><td>{}</td></tr>\n", escaped(&value)));
    format!("<div class=\"wide\"><table class=\"settings\">\n{}</table></div>\n", rows.concat())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::sample;

    #[test]
    fn a_page_has_its_numbers_and_charts_and_no_external_resources() {
        let mut report = sample::report(&[1_000, 1_100, 900, 1_000]);
        report.settings.workload = "a<b>&c".to_owned();
        let page = report.to_html();
        for wanted in ["a&lt;b&gt;&amp;c", "Latency over time", "Latencies by size", "second 4: p50", "p99.9"]
        {
            assert!(page.contains(wanted), "{wanted}");
        }
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.contains("prefers-color-scheme: dark"));
        for outside in ["http://", "https://", "//cdn", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn a_failed_check_is_the_first_thing_seen() {
        let mut report = sample::report(&[1_000; 3]);
        assert!(report.to_html().contains("verdict good"));
        report.check.as_mut().unwrap().passed = false;
        assert!(report.to_html().contains("verdict bad"));
        report.check.as_mut().unwrap().passed = true;
        report.total.errors.insert("503 overloaded".to_owned(), 2);
        let page = report.to_html();
        assert!(page.contains("verdict bad") && page.contains("503 overloaded 2"));
    }

    #[test]
    fn an_empty_run_still_makes_a_page() {
        let page = sample::report(&[]).to_html();
        assert!(page.ends_with("</html>\n"));
    }
}
