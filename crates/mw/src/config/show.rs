//! Writes the configuration in effect as TOML that can be read back, secrets masked, with the origin of every value.

use toml::Value;

use super::keys::{KEYS, Presence};
use super::kind::{Kind, without_password};
use super::layers::{Setting, Settings};
use super::tokens::MASK;

/// Origins are in one column where the values are not too long.
const ORIGIN_COLUMN: usize = 44;

pub(crate) fn show(settings: &Settings) -> String {
    let mut lines = vec!["# The configuration in effect, and where each value came from.".to_owned()];
    let mut table = String::new();
    for key in KEYS {
        if matches!(key.kind, Kind::Tokens) {
            tokens(settings.get(key.path), &mut lines);
            continue;
        }
        let mut found = false;
        for (path, setting) in settings.like(key) {
            found = true;
            let name = open_table(path, &mut table, &mut lines);
            let value = match (key.presence, key.kind, &setting.value) {
                (Presence::Secret, ..) => Value::String(MASK.to_owned()),
                (_, Kind::Uri, Value::String(uri)) => Value::String(without_password(uri)),
                (.., value) => value.clone(),
            };
            let line = format!("{} = {value}", quoted(name));
            lines.push(with_origin(&line, &setting.origin.of(path)));
        }
        if !found && !key.path.contains('*') {
            let name = open_table(key.path, &mut table, &mut lines);
            lines.push(format!("# {name} is not set"));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Writes the header of the key's table at its first key; returns the key's own name.
fn open_table<'a>(path: &'a str, table: &mut String, lines: &mut Vec<String>) -> &'a str {
    let (above, name) = path.rsplit_once('.').unwrap_or(("", path));
    if above != table {
        lines.push(String::new());
        let names: Vec<String> = above.split('.').map(quoted).collect();
        lines.push(format!("[{}]", names.join(".")));
        above.clone_into(table);
    }
    name
}

/// A name that the operator chose may need quotes.
fn quoted(name: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if name.bytes().all(bare) { name.to_owned() } else { Value::String(name.to_owned()).to_string() }
}

fn with_origin(line: &str, origin: &str) -> String {
    format!("{line:<ORIGIN_COLUMN$} # {origin}")
}

fn tokens(setting: Option<&Setting>, lines: &mut Vec<String>) {
    let tables = setting.and_then(|setting| setting.value.as_array());
    let Some((setting, tables)) = setting.zip(tables).filter(|(_, tables)| !tables.is_empty()) else {
        lines.push("\n# No [[tokens]]: every client has all rights.".to_owned());
        return;
    };
    for (at, token) in tables.iter().enumerate() {
        let origin = setting.origin.of(&format!("tokens[{at}]"));
        lines.push(format!("\n{}", with_origin("[[tokens]]", &origin)));
        for (name, value) in token.as_table().into_iter().flatten() {
            let value = match name.as_str() {
                "token" => &Value::String(MASK.to_owned()),
                _ => value,
            };
            lines.push(format!("{name} = {value}"));
        }
    }
}
