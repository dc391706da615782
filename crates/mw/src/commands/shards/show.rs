//! The reports of `mw shards` as text and as JSON.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use mw_store_mongodb::shards::{Advice, KeyAdvice, ShardReport};
use serde_json::{Value, json};

use crate::terminal::columns;

pub(super) fn report_json(report: &ShardReport) -> Result<String> {
    let collections: Vec<Value> = report
        .collections
        .iter()
        .map(|collection| {
            let shards: Vec<Value> = collection
                .parts
                .iter()
                .map(|part| {
                    json!({
                        "shard": part.shard, "documents": part.documents, "bytes": part.bytes,
                        "ranges": part.ranges, "share": part.share,
                    })
                })
                .collect();
            json!({
                "name": collection.name, "shard_key": collection.shard_key,
                "sharded": collection.shard_key.is_some(), "shards": shards, "imbalance": collection.imbalance,
            })
        })
        .collect();
    let members: Vec<Value> = report
        .members
        .iter()
        .map(|it| json!({"shard": it.shard, "member": it.member, "state": it.state, "lag_seconds": it.lag_seconds}))
        .collect();
    let targeting: Vec<Value> = report
        .targeting
        .iter()
        .map(|it| json!({"call": it.call, "one": it.one, "several": it.several, "all": it.all}))
        .collect();
    let hot: Vec<Value> =
        report.hot.iter().map(|it| json!({"kind": it.kind, "key": it.key, "share": it.share})).collect();
    pretty(&json!({
        "collections": collections, "members": members, "targeting": targeting, "hot": hot,
        "balancer": {"enabled": report.balancer.enabled, "window": report.balancer.window},
    }))
}

fn pretty(value: &Value) -> Result<String> {
    let text = serde_json::to_string_pretty(value).context("write the report as JSON")?;
    Ok(format!("{text}\n"))
}

pub(super) fn report_text(report: &ShardReport) -> String {
    let mut text = String::new();
    let mut lines = vec![heads(["collection", "shard key", "shard", "documents", "MiB", "ranges", "share"])];
    for collection in &report.collections {
        let key = collection.shard_key.clone().unwrap_or_else(|| "not sharded".to_owned());
        for part in &collection.parts {
            lines.push(vec![
                collection.name.to_owned(),
                key.clone(),
                part.shard.clone(),
                part.documents.to_string(),
                format!("{:.1}", mebibytes(part.bytes)),
                part.ranges.to_string(),
                percent(part.share),
            ]);
        }
    }
    text.push_str(&columns(&lines));
    for collection in &report.collections {
        let _ = writeln!(text, "{}: imbalance {}", collection.name, percent(collection.imbalance));
    }
    let mut lines = vec![heads(["shard", "member", "state", "lag"])];
    lines.extend(report.members.iter().map(|it| {
        let lag = it.lag_seconds.map_or_else(|| "not known".to_owned(), |lag| format!("{lag:.1} s"));
        vec![it.shard.clone(), it.member.clone(), it.state.to_owned(), lag]
    }));
    let _ = write!(text, "\n{}", columns(&lines));
    let _ = write!(text, "\n{}", counts_text(report));
    let window =
        report.balancer.window.as_ref().map_or_else(String::new, |window| format!(", from {window}"));
    let state = if report.balancer.enabled { "on" } else { "off" };
    let _ = writeln!(text, "\nbalancer: {state}{window}");
    text
}

fn counts_text(report: &ShardReport) -> String {
    let mut lines = vec![heads(["call", "one shard", "several", "all"])];
    let counted = report.targeting.iter().filter(|it| it.one + it.several + it.all > 0);
    lines.extend(
        counted
            .map(|it| vec![it.call.clone(), it.one.to_string(), it.several.to_string(), it.all.to_string()]),
    );
    if lines.len() == 1 {
        return "No process has stored counts of calls in the last day.\n".to_owned();
    }
    let mut hot = vec![heads(["hot", "key", "share"])];
    hot.extend(report.hot.iter().map(|it| vec![it.kind.to_owned(), it.key.clone(), percent(it.share)]));
    format!("{}\n{}", columns(&lines), columns(&hot))
}

fn heads<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

pub(super) fn advice_json(advice: &Advice) -> Result<String> {
    let key = |it: &KeyAdvice| {
        json!({
            "collection": it.collection, "key": it.key, "configured": it.configured,
            "values": it.values, "sampled": it.sampled, "most_common_share": it.most_common, "analyzed": it.analyzed,
            "calls": {"one": it.one, "several": it.several, "all": it.all},
            "problems": it.problems, "command": it.command,
        })
    };
    pretty(&json!({"keys": advice.keys.iter().map(key).collect::<Vec<_>>(), "drift": advice.drift}))
}

pub(super) fn advice_text(advice: &Advice) -> String {
    let mut lines =
        vec![heads(["collection", "key", "values", "most common", "one shard", "several", "all"])];
    lines.extend(advice.keys.iter().map(|it| {
        let key = if it.configured { format!("{} (configured)", it.key) } else { it.key.clone() };
        vec![
            it.collection.to_owned(),
            key,
            format!("{} of {}", it.values, it.sampled),
            percent(it.most_common),
            it.one.to_string(),
            it.several.to_string(),
            it.all.to_string(),
        ]
    }));
    let mut text = columns(&lines);
    for it in advice.keys.iter().filter(|it| it.configured && !it.problems.is_empty()) {
        let _ = writeln!(text, "\n{} by {}: {}", it.collection, it.key, it.problems.join("; "));
        let better =
            advice.keys.iter().filter(|other| other.collection == it.collection && !other.configured);
        for other in better.filter(|other| other.problems.len() < it.problems.len()) {
            let _ = writeln!(text, "  better: {}", other.command.as_deref().unwrap_or_default());
        }
    }
    for drift in &advice.drift {
        let _ = writeln!(text, "\n{drift}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use mw_store_mongodb::shards::{Balancer, CollectionReport, Hot, MemberReport, ShardPart, TargetingRow};

    fn report() -> ShardReport {
        let part = |shard: &str, share| ShardPart {
            shard: shard.to_owned(),
            documents: 4,
            bytes: 1 << 20,
            ranges: 2,
            share,
        };
        ShardReport {
            collections: vec![CollectionReport {
                name: "orders",
                shard_key: Some("customer_id: hashed".to_owned()),
                parts: vec![part("a", 0.75), part("b", 0.25)],
                imbalance: 0.5,
            }],
            members: vec![MemberReport {
                shard: "a".to_owned(),
                member: "127.0.0.1:1".to_owned(),
                state: "SECONDARY",
                lag_seconds: Some(1.5),
            }],
            targeting: vec![TargetingRow { call: "order_by_id".to_owned(), one: 0, several: 0, all: 7 }],
            hot: vec![Hot { kind: "category", key: "phones".to_owned(), share: 0.9 }],
            balancer: Balancer { enabled: true, window: Some("01:00-05:00".to_owned()) },
        }
    }

    #[test]
    fn the_json_has_the_documented_fields() {
        let json: Value = serde_json::from_str(&report_json(&report()).unwrap()).unwrap();
        assert_eq!(
            json,
            json!({
                "collections": [{
                    "name": "orders", "shard_key": "customer_id: hashed", "sharded": true,
                    "shards": [
                        {"shard": "a", "documents": 4, "bytes": 1 << 20, "ranges": 2, "share": 0.75},
                        {"shard": "b", "documents": 4, "bytes": 1 << 20, "ranges": 2, "share": 0.25},
                    ],
                    "imbalance": 0.5,
                }],
                "members": [{"shard": "a", "member": "127.0.0.1:1", "state": "SECONDARY", "lag_seconds": 1.5}],
                "targeting": [{"call": "order_by_id", "one": 0, "several": 0, "all": 7}],
                "hot": [{"kind": "category", "key": "phones", "share": 0.9}],
                "balancer": {"enabled": true, "window": "01:00-05:00"},
            })
        );
    }

    #[test]
    fn the_text_has_every_part() {
        let text = report_text(&report());
        for wanted in [
            "customer_id: hashed",
            "75.0 %",
            "orders: imbalance 50.0 %",
            "1.5 s",
            "order_by_id",
            "phones",
            "balancer: on, from 01:00-05:00",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        let quiet = ShardReport { targeting: Vec::new(), hot: Vec::new(), ..report() };
        assert!(report_text(&quiet).contains("No process has stored counts"), "{}", report_text(&quiet));
    }
}
