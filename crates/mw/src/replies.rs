//! Results of commands that ask storage or a running shop: printed as JSON or for people, the same either way.

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

use crate::terminal::{self, columns};

/// The query string of the parameters that have a value; empty without any.
pub(crate) fn query(parameters: &[(&str, Option<&str>)]) -> String {
    let mut query = String::new();
    for (name, value) in parameters.iter().filter_map(|(name, value)| value.map(|value| (name, value))) {
        query.push(if query.is_empty() { '?' } else { '&' });
        query.push_str(name);
        query.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                query.push(char::from(byte));
            } else {
                query.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    query
}

fn digit(value: u8) -> char {
    char::from_digit(value.into(), 16).unwrap_or('0').to_ascii_uppercase()
}

/// Prints a result as JSON, or as its text.
pub(crate) fn print<T: Serialize>(result: &T, json: bool, text: impl FnOnce(&T) -> String) -> Result<()> {
    if json {
        let json = serde_json::to_string_pretty(result).context("write JSON")?;
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&text(result))
}

/// What a shop replied, the same as a value of JSON.
pub(crate) fn value(result: &impl Serialize) -> Result<Value> {
    serde_json::to_value(result).context("write JSON")
}

/// The items of a list, as a table with these members; `none` where the list is empty. A reply that is no list is one item.
pub(crate) fn table(reply: &Value, names: &[&str], none: &str) -> String {
    let alone = std::slice::from_ref(reply);
    let items = reply.get("items").and_then(Value::as_array).map_or(alone, Vec::as_slice);
    if items.is_empty() {
        return format!("{none}\n");
    }
    let mut rows = vec![names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()];
    rows.extend(items.iter().map(|item| names.iter().map(|name| cell(item.get(*name))).collect()));
    columns(&rows)
}

fn cell(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) if text.is_empty() => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(yes)) => if *yes { "yes" } else { "no" }.to_owned(),
        Some(Value::Null) | None => "-".to_owned(),
        // Shares and rates have more digits than people read.
        Some(Value::Number(number)) if number.is_f64() => {
            format!("{:.3}", number.as_f64().unwrap_or_default())
        }
        Some(Value::Object(members)) => members.get("buckets").map_or_else(String::new, Value::to_string),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parameters_are_percent_encoded() {
        assert_eq!(query(&[]), "");
        assert_eq!(query(&[("table", None), ("key", Some("a b/ж"))]), "?key=a%20b%2F%D0%B6");
        assert_eq!(query(&[("by", Some("rate")), ("key", Some("u-1"))]), "?by=rate&key=u-1");
    }

    #[test]
    fn a_list_is_a_table_with_a_row_an_item() {
        let list =
            json!({"items": [{"up": true, "share": 0.123_456, "schema": null, "plan": {"buckets": 4}}]});
        let text = table(&list, &["up", "share", "schema", "plan"], "none");
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines, [["up", "share", "schema", "plan"], ["yes", "0.123", "-", "4"]]);
        assert_eq!(table(&json!({"items": []}), &["up"], "No node."), "No node.\n");
    }
}
