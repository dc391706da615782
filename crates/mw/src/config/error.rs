//! Errors of a configuration: each names the origin, the key and what to change.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The origin of a value.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    Default,
    File(Arc<FileLines>),
    Environment(String),
    Flag(&'static str),
    Set,
}

/// A file and the line of every key in it, elements of arrays too (`tokens[1].role`).
#[derive(Debug)]
pub(crate) struct FileLines {
    pub(crate) path: PathBuf,
    pub(crate) lines: BTreeMap<String, usize>,
}

impl Origin {
    /// The exact origin of the key.
    pub(crate) fn of(&self, key: &str) -> String {
        match self {
            Self::Default => "default".to_owned(),
            Self::File(file) => match file.lines.get(key) {
                Some(line) => format!("{}:{line}", file.path.display()),
                None => file.path.display().to_string(),
            },
            Self::Environment(name) => format!("environment variable {name}"),
            Self::Flag(name) => (*name).to_owned(),
            Self::Set => "--set".to_owned(),
        }
    }
}

/// One error of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// `mw.toml:3`, `environment variable MW_…`, `--set`; empty where there is none.
    pub(crate) place: String,
    /// The full key; empty where the text could not be read at all.
    pub(crate) key: String,
    pub(crate) what: String,
}

impl Problem {
    pub(crate) fn new(origin: &Origin, key: impl Into<String>, what: impl Into<String>) -> Self {
        let key = key.into();
        Self { place: origin.of(&key), key, what: what.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.place, &self.key] {
            if !part.is_empty() {
                write!(f, "{part}: ")?;
            }
        }
        f.write_str(&self.what)
    }
}

/// All errors of a configuration, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigError(pub(crate) Vec<Problem>);

impl ConfigError {
    pub(crate) fn check(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self(problems)) }
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [problem] => write!(f, "read the configuration: {problem}"),
            problems => {
                write!(f, "read the configuration: {} problems", problems.len())?;
                problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}
