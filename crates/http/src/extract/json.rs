//! JSON bodies. A body is parsed once, straight into its type; only where that fails is it parsed again to find out
//! whether it is not JSON (400) or which field is wrong (422).

use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_path_to_error::{Path, Segment};

use super::body::{BodyLimits, is_json_type};
use crate::app::App;
use crate::error::{Code, Problem};

const DEPTH_MAX: usize = 32;

/// A required body.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        parse(&read(request, app.body_limits).await?).map(Self)
    }
}

/// An optional body; no body is the same as `{}`.
#[derive(Debug)]
pub(crate) struct JsonOptional<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for JsonOptional<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        parse(&read_optional(request, app.body_limits).await?).map(Self)
    }
}

pub(super) async fn read(request: Request, limits: BodyLimits) -> Result<Bytes, Problem> {
    if !is_json_type(request.headers()) {
        return Err(unsupported_type());
    }
    limits.read(request).await
}

pub(super) async fn read_optional(request: Request, limits: BodyLimits) -> Result<Bytes, Problem> {
    let is_json = is_json_type(request.headers());
    let body = limits.read(request).await?;
    match (body.is_empty(), is_json) {
        (true, _) => Ok(Bytes::from_static(b"{}")),
        (false, true) => Ok(body),
        (false, false) => Err(unsupported_type()),
    }
}

fn unsupported_type() -> Problem {
    Problem::new(Code::UnsupportedMediaType, "send content-type: application/json")
}

/// Reads one JSON object into its type.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // A derived type of named fields would also accept an array of their values.
    if body.trim_ascii_start().first() == Some(&b'{')
        && let Ok(value) = serde_json::from_slice(body)
    {
        return Ok(value);
    }
    Err(explain::<T>(body))
}

fn explain<T: DeserializeOwned>(body: &[u8]) -> Problem {
    let invalid = |detail: String| Problem::new(Code::InvalidJson, detail);
    let Ok(text) = std::str::from_utf8(body) else { return invalid("the body is not UTF-8".into()) };
    if is_too_deep(body) {
        return invalid(format!("the body is nested deeper than {DEPTH_MAX} levels"));
    }
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        return invalid(format!("the body is not JSON: {error}"));
    }
    if !text.trim_ascii_start().starts_with('{') {
        return invalid("the body is JSON, but not an object".into());
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => invalid("the body is not JSON".into()),
        Err(error) => {
            let message = error.inner().to_string();
            if error.inner().is_syntax() && !message.starts_with("number out of range") {
                return invalid(format!("the body is not JSON: {message}"));
            }
            let (field, detail) = name_field(error.path(), &message);
            Problem::field(&field, detail)
        }
    }
}

/// Counts brackets outside of strings; whether the text is JSON is checked elsewhere.
fn is_too_deep(body: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The field of an error and its detail. A missing or unknown field is not part of serde's path, but named in its
/// message.
fn name_field(path: &Path, message: &str) -> (String, String) {
    let mut field = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => {
                field.push('[');
                field.push_str(&index.to_string());
                field.push(']');
            }
            Segment::Map { key } | Segment::Enum { variant: key } => push_name(&mut field, key),
            Segment::Unknown => {}
        }
    }
    let quoted = |prefix: &str| message.strip_prefix(prefix)?.split_once('`').map(|(name, _)| name);
    if let Some(name) = quoted("missing field `") {
        push_name(&mut field, name);
        return (field, "is required".into());
    }
    if let Some(name) = quoted("unknown field `") {
        if !is_last(&field, name) {
            push_name(&mut field, name);
        }
        return (field, "is not a field of this body".into());
    }
    if let Some(name) = quoted("duplicate field `") {
        if !is_last(&field, name) {
            push_name(&mut field, name);
        }
        return (field, "must be sent once".into());
    }
    let detail = message.rsplit_once(" at line ").map_or(message, |(detail, _)| detail);
    (field, detail.to_owned())
}

fn push_name(field: &mut String, name: &str) {
    if !field.is_empty() {
        field.push('.');
    }
    field.push_str(name);
}

fn is_last(field: &str, name: &str) -> bool {
    field.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only whether it parses matters")]
    struct Order {
        lines: Vec<Line>,
        note: Option<String>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only whether it parses matters")]
    struct Line {
        quantity: u32,
    }

    fn refuse(body: &str) -> (Code, Value) {
        let problem = parse::<Order>(body.as_bytes()).unwrap_err();
        let body: Value = serde_json::from_slice(&problem.body("r")).unwrap();
        (problem.code(), body.get("field").cloned().unwrap_or(Value::Null))
    }

    #[test]
    fn a_valid_body_is_parsed() {
        parse::<Order>(b" {\"lines\":[{\"quantity\":1}]} ").unwrap();
    }

    #[test]
    fn anything_but_a_json_object_is_invalid_json() {
        let deep = format!("{{\"lines\":{}{}}}", "[".repeat(33), "]".repeat(33));
        let bottomless = "[".repeat(500_000);
        for body in [
            "",
            "{",
            "[]",
            "[[]]",
            "1",
            "null",
            "{\"a\":}",
            "{} {}",
            "{\"note\":\"\\ud800\"}",
            &deep,
            &bottomless,
        ] {
            assert_eq!(refuse(body).0, Code::InvalidJson, "{}", &body[..body.len().min(40)]);
        }
        assert_eq!(parse::<Order>(b"{\"note\":\"\xff\"}").unwrap_err().code(), Code::InvalidJson);
    }

    #[test]
    fn an_invalid_field_is_named() {
        for (body, field) in [
            (r#"{"lines":[{"quantity":"2"}]}"#, "lines[0].quantity"),
            (r#"{"lines":[{"quantity":1},{"quantity":1.5}]}"#, "lines[1].quantity"),
            (r#"{"lines":[{"quantity":-1}]}"#, "lines[0].quantity"),
            (r#"{"lines":[{"quantity":1e999}]}"#, "lines[0].quantity"),
            (r#"{"lines":[{"quantity":123456789012345678901234567890}]}"#, "lines[0].quantity"),
            (r#"{"lines":[{}]}"#, "lines[0].quantity"),
            (r#"{"lines":[{"quantity":1,"price":1}]}"#, "lines[0].price"),
            (r#"{"lines":{}}"#, "lines"),
            (r#"{"lines":[7]}"#, "lines[0]"),
            ("{}", "lines"),
            (r#"{"lines":[],"x":1}"#, "x"),
            (r#"{"lines":[],"lines":[]}"#, "lines"),
            (r#"{"lines":[],"note":7}"#, "note"),
        ] {
            assert_eq!(refuse(body), (Code::InvalidField, Value::from(field)), "{body}");
        }
    }

    #[test]
    fn brackets_in_strings_do_not_count_as_depth() {
        let text = format!("{{\"lines\":[],\"note\":\"{}\\\"\"}}", "[".repeat(64));
        parse::<Order>(text.as_bytes()).unwrap();
        assert_eq!(refuse(&text.replace("\"note\"", "\"nope\"")), (Code::InvalidField, "nope".into()));
    }
}
