//! Merges the layers of a configuration and keeps the origin of each value.
//!
//! Each layer is checked by itself, so a bad value is an error even where a higher layer hides it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, FileLines, Origin, Problem};
use super::keys::{self, Key, Match, Presence};

const DEFAULT: &str = include_str!("../../../../config/default.toml");

const PREFIX: &str = "MW_";
/// Read by the tests of this project, not by the service.
const IGNORED: &[&str] = &["MW_TEST_CASSANDRA", "MW_TEST_ENGINE", "MW_TEST_LONG", "MW_SEED", "MW_BLESS"];

/// All layers above the defaults.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    pub(crate) file: Option<PathBuf>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) flags: Vec<Flag>,
    /// `key=value`, later ones above earlier ones.
    pub(crate) sets: Vec<String>,
}

/// A command line option that sets a key.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: String,
}

pub(crate) struct Setting {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// The value of every key that has one, by its full path.
#[derive(Default)]
pub(crate) struct Settings(BTreeMap<String, Setting>);

impl Settings {
    pub(crate) fn merge(sources: &Sources) -> Result<Self, ConfigError> {
        let mut layers = Layers::default();
        layers.file(DEFAULT, Path::new("config/default.toml"), |_| Origin::Default);
        if let Some(path) = &sources.file {
            match std::fs::read_to_string(path) {
                Ok(text) => layers.file(&text, path, Origin::File),
                Err(error) => layers.problems.push(Problem {
                    place: path.display().to_string(),
                    key: String::new(),
                    what: format!("read the file: {error}"),
                }),
            }
        }
        layers.environment(&sources.environment);
        for flag in &sources.flags {
            let value = Value::String(flag.value.clone());
            layers.put(flag.key, value, &Origin::Flag(flag.name));
        }
        for set in &sources.sets {
            layers.set(set);
        }
        ConfigError::check(layers.problems)?;
        Ok(layers.settings)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Setting> {
        self.0.get(key)
    }

    /// The keys with a value that match this one, which may have `*` in it.
    pub(crate) fn like(&self, key: &Key) -> impl Iterator<Item = (&str, &Setting)> {
        let wanted = key.path;
        self.0.iter().filter_map(move |(path, setting)| {
            let same = matches!(keys::find(path), Match::Key(found) if found.path == wanted);
            same.then_some((path.as_str(), setting))
        })
    }

    /// The keys below a table that have a value: the whole key, and what of it is below.
    pub(crate) fn below<'a>(
        &'a self,
        table: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str, &'a Setting)> {
        self.0.iter().filter_map(move |(path, setting)| {
            let rest = path.strip_prefix(table)?.strip_prefix('.')?;
            Some((path.as_str(), rest, setting))
        })
    }

    /// Reads the value of a key that always has one.
    pub(crate) fn read<'a, T>(
        &'a self,
        key: &str,
        read: impl FnOnce(&'a Value) -> Result<T, String>,
    ) -> Result<T, Problem> {
        let missing = || Problem::new(&Origin::Default, key, "has no value");
        let setting = self.get(key).ok_or_else(missing)?;
        read(&setting.value).map_err(|what| Problem::new(&setting.origin, key, what))
    }

    /// Reads the value of a key that may have none.
    pub(crate) fn read_if_set<'a, T>(
        &'a self,
        key: &str,
        read: impl FnOnce(&'a Value) -> Result<T, String>,
    ) -> Result<Option<T>, Problem> {
        self.get(key).map(|_| self.read(key, read)).transpose()
    }
}

#[derive(Default)]
struct Layers {
    settings: Settings,
    problems: Vec<Problem>,
}

impl Layers {
    fn file(&mut self, text: &str, path: &Path, origin: impl FnOnce(Arc<FileLines>) -> Origin) {
        let parsed =
            toml::from_str::<toml::Table>(text).and_then(|values| Ok((values, DeTable::parse(text)?)));
        let (values, spans) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                let line = error.span().map_or(1, |span| line_at(text, span.start));
                self.problems.push(Problem {
                    place: format!("{}:{line}", path.display()),
                    key: String::new(),
                    what: format!("not TOML: {}", error.message()),
                });
                return;
            }
        };
        let mut lines = BTreeMap::new();
        table_lines(text, "", spans.get_ref(), &mut lines);
        let path = path.to_owned();
        let origin = origin(Arc::new(FileLines { path, lines }));
        for (name, value) in values {
            self.put(&name, value, &origin);
        }
    }

    fn environment(&mut self, variables: &[(OsString, OsString)]) {
        for (name, value) in variables {
            let name = name.to_string_lossy();
            let Some(rest) = name.strip_prefix(PREFIX) else {
                continue;
            };
            if IGNORED.contains(&&*name) {
                continue;
            }
            let origin = Origin::Environment(name.to_string());
            let key = rest.to_lowercase().replace("__", ".");
            match value.to_str() {
                Some(text) => self.put(&key, loose(&key, text), &origin),
                None => self.problems.push(Problem::new(&origin, key, "not text in UTF-8")),
            }
        }
    }

    fn set(&mut self, set: &str) {
        let Some((key, value)) = set.split_once('=') else {
            let what = format!("expected key=value, found \"{set}\"");
            self.problems.push(Problem::new(&Origin::Set, "", what));
            return;
        };
        let key = key.trim();
        self.put(key, loose(key, value.trim()), &Origin::Set);
    }

    fn put(&mut self, path: &str, value: Value, origin: &Origin) {
        let what = match keys::find(path) {
            Match::Key(key) => match key.kind.check(&value) {
                Ok(()) => {
                    let origin = origin.clone();
                    self.settings.0.insert(path.to_owned(), Setting { value, origin });
                    return;
                }
                Err(_) if key.presence == Presence::Secret => "expected text in quotes".to_owned(),
                Err(what) => what,
            },
            Match::Table => match value {
                Value::Table(values) => {
                    for (name, value) in values {
                        self.put(&format!("{path}.{name}"), value, origin);
                    }
                    return;
                }
                _ => format!("is a table of keys, not a key: {}", below(path)),
            },
            Match::Unknown => match keys::similar(path) {
                Some(meant) => format!("unknown key; did you mean {meant}?"),
                None => "unknown key; `mw config` lists all there are".to_owned(),
            },
        };
        self.problems.push(Problem::new(origin, path, what));
    }
}

/// The value as TOML, or else as text.
fn loose(path: &str, text: &str) -> Value {
    let bare = || Value::String(text.to_owned());
    let wants_text = matches!(keys::find(path), Match::Key(key) if key.kind.is_text());
    match text.parse::<Value>() {
        Ok(value) if wants_text && !value.is_str() => bare(),
        Ok(value) => value,
        Err(_) => bare(),
    }
}

fn below(table: &str) -> String {
    let prefix = format!("{table}.");
    let names: Vec<&str> =
        keys::KEYS.iter().map(|key| key.path).filter(|path| path.starts_with(&prefix)).collect();
    names.join(", ")
}

fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

fn table_lines(text: &str, path: &str, table: &DeTable<'_>, lines: &mut BTreeMap<String, usize>) {
    for (name, value) in table {
        let path = match path {
            "" => name.get_ref().to_string(),
            _ => format!("{path}.{}", name.get_ref()),
        };
        lines.insert(path.clone(), line_at(text, name.span().start));
        value_lines(text, &path, value.get_ref(), lines);
    }
}

fn value_lines(text: &str, path: &str, value: &DeValue<'_>, lines: &mut BTreeMap<String, usize>) {
    match value {
        DeValue::Table(table) => table_lines(text, path, table, lines),
        DeValue::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let path = format!("{path}[{at}]");
                lines.insert(path.clone(), line_at(text, item.span().start));
                value_lines(text, &path, item.get_ref(), lines);
            }
        }
        _ => {}
    }
}
