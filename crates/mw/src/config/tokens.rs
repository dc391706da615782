//! The callers of the service: `[[tokens]]`, each with keys of its own.

use std::collections::BTreeSet;

use mw_http::{Role, Token, Tokens};
use toml::{Table, Value};

use super::error::{ConfigError, Origin, Problem};
use super::kind;
use super::layers::Settings;

pub(crate) const MASK: &str = "****";

const SECRET_CHARS_MIN: usize = 16;
const SECRET_CHARS_MAX: usize = 1_024;
const RATE_LIMIT_MAX: u64 = 1_000_000;
const TOKENS_MAX: usize = 1_000;

pub(crate) fn read(settings: &Settings) -> Result<Tokens, ConfigError> {
    let Some(setting) = settings.get("tokens") else {
        return Ok(Tokens::default());
    };
    let tables = setting.value.as_array().map_or(&[][..], Vec::as_slice);
    if tables.len() > TOKENS_MAX {
        let what = format!("at most {TOKENS_MAX} tokens, found {}", tables.len());
        return Err(Problem::new(&setting.origin, "tokens", what).into());
    }
    let mut reader = Reader { origin: &setting.origin, seen: BTreeSet::new(), problems: Vec::new() };
    let tokens = tables.iter().enumerate().filter_map(|(at, value)| reader.token(at, value)).collect();
    ConfigError::check(reader.problems)?;
    Ok(Tokens(tokens))
}

struct Reader<'a> {
    origin: &'a Origin,
    seen: BTreeSet<&'a str>,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    fn token(&mut self, at: usize, value: &'a Value) -> Option<Token> {
        let Value::Table(table) = value else {
            self.problem(format!("tokens[{at}]"), "expected a table with role and token");
            return None;
        };
        for name in table.keys() {
            if !["role", "token", "rate_limit"].contains(&name.as_str()) {
                self.problem(
                    format!("tokens[{at}].{name}"),
                    "unknown key; a token has role, token and rate_limit",
                );
            }
        }
        let role = self.field(at, table, "role", role);
        let secret =
            self.field(at, table, "token", |value| value.ok_or("missing".to_owned()).and_then(secret));
        let rate_limit = self.field(at, table, "rate_limit", rate_limit);
        let secret = secret?;
        if !self.seen.insert(secret) {
            self.problem(
                format!("tokens[{at}].token"),
                "the same token is given twice; give each caller its own",
            );
        }
        Some(Token { role: role?, secret: secret.to_owned(), rate_limit: rate_limit? })
    }

    fn field<T>(
        &mut self,
        at: usize,
        table: &'a Table,
        name: &str,
        read: impl FnOnce(Option<&'a Value>) -> Result<T, String>,
    ) -> Option<T> {
        read(table.get(name)).map_err(|what| self.problem(format!("tokens[{at}].{name}"), what)).ok()
    }

    fn problem(&mut self, key: String, what: impl Into<String>) {
        self.problems.push(Problem::new(self.origin, key, what));
    }
}

fn role(value: Option<&Value>) -> Result<Role, String> {
    let text = value.ok_or("missing")?.as_str().unwrap_or_default();
    text.parse().map_err(|error: mw_http::UnknownRole| error.to_string())
}

/// The error never repeats the value.
pub(super) fn secret(value: &Value) -> Result<&str, String> {
    let text = value.as_str().ok_or("expected text in quotes")?;
    if text == MASK {
        return Err("is masked, as `mw config` shows it; put the real token here".to_owned());
    }
    if !(SECRET_CHARS_MIN..=SECRET_CHARS_MAX).contains(&text.len())
        || !text.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(format!(
            "a token is {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} visible ASCII characters; make one with `openssl rand -hex 32`"
        ));
    }
    Ok(text)
}

fn rate_limit(value: Option<&Value>) -> Result<Option<u32>, String> {
    let Some(value) = value else {
        return Ok(None);
    };
    let range = || format!("requests a second, 1 to {RATE_LIMIT_MAX}");
    let rate = kind::count(value).map_err(|_| range())?;
    if !(1..=RATE_LIMIT_MAX).contains(&rate) {
        return Err(range());
    }
    u32::try_from(rate).map(Some).map_err(|_| range())
}
