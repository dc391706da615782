//! Query parameters. A handler takes the ones it knows and then calls [`Query::finish`], which refuses the rest. A
//! parameter that is malformed, unknown or repeated is 400 `invalid_parameter`.

use std::borrow::Cow;
use std::fmt::Display;

use axum::extract::FromRequestParts;
use http::request::Parts;
use mw_domain::Timestamp;
use mw_store::{PageRequest, Position};
use percent_encoding::percent_decode_str;

use crate::cursor::Scope;
use crate::error::Problem;

const LIMIT_DEFAULT: usize = 20;
const LIMIT_MAX: usize = 100;
/// No call has more parameters than this; reading stops at the first one too many.
const PARAMETERS_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.uri.query().map_or(Ok(Self { pairs: Vec::new() }), Self::parse)
    }
}

impl Query {
    fn parse(text: &str) -> Result<Self, Problem> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for piece in text.split('&').filter(|piece| !piece.is_empty()) {
            let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
            let name =
                decode(name).ok_or_else(|| Problem::parameter(name, "must be UTF-8 in percent-encoding"))?;
            let value = decode(value)
                .ok_or_else(|| Problem::parameter(&name, "must be UTF-8 in percent-encoding"))?;
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(Problem::parameter(&name, "must be sent once"));
            }
            if pairs.len() == PARAMETERS_MAX {
                return Err(Problem::parameter(&name, "is one parameter too many"));
            }
            pairs.push((name, value));
        }
        Ok(Self { pairs })
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.pairs.iter().position(|(known, _)| known == name)?;
        Some(self.pairs.swap_remove(at).1)
    }

    pub(crate) fn optional<T, E: Display>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.take(name) else { return Ok(None) };
        parse(&text).map(Some).map_err(|error| Problem::parameter(name, error))
    }

    pub(crate) fn required<T, E: Display>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, Problem> {
        self.optional(name, parse)?.ok_or_else(|| Problem::parameter(name, "is required"))
    }

    /// `true` or `false`; absent is false.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, Problem> {
        let flag = self.optional(name, |text| match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("must be true or false"),
        })?;
        Ok(flag.unwrap_or(false))
    }

    pub(crate) fn integer(&mut self, name: &str, min: u64, max: u64) -> Result<Option<u64>, Problem> {
        self.optional(name, |text| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = if digits { text.parse::<u64>().ok() } else { None };
            number
                .filter(|number| (min..=max).contains(number))
                .ok_or_else(|| format!("must be a whole number from {min} to {max}"))
        })
    }

    /// RFC 3339, or a date as its midnight in UTC.
    pub(crate) fn time(&mut self, name: &str) -> Result<Option<Timestamp>, Problem> {
        self.optional(name, |text| match text.rsplit_once(' ') {
            // The plus of a UTC offset decodes to a space unless the client encoded it.
            Some((time, offset)) if offset.len() == "03:00".len() => {
                Timestamp::parse(&format!("{time}+{offset}"))
            }
            _ => Timestamp::parse(text),
        })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.pairs.iter().any(|(known, _)| known == name)
    }

    /// `limit` and `cursor`, and then no further parameter.
    pub(crate) fn page(mut self, scope: &Scope) -> Result<PageRequest, Problem> {
        let limit = self.integer("limit", 1, LIMIT_MAX as u64)?;
        let cursor = self.take("cursor");
        self.finish()?;
        Ok(PageRequest {
            limit: limit.map_or(LIMIT_DEFAULT, |limit| usize::try_from(limit).unwrap_or(LIMIT_DEFAULT)),
            after: cursor.map(|text| scope.decode(&text).map(Position)).transpose()?,
        })
    }

    pub(crate) fn finish(self) -> Result<(), Problem> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => Err(Problem::parameter(name, "is not a parameter of this call")),
        }
    }
}

fn decode(text: &str) -> Option<String> {
    let spaced: Cow<'_, str> = if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    let mut pieces = spaced.split('%');
    pieces.next();
    // The decoder keeps an invalid escape as it is; here it is an error.
    let whole =
        |piece: &str| piece.as_bytes().get(..2).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
    if !pieces.all(whole) {
        return None;
    }
    percent_decode_str(&spaced).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn refuse<T>(result: Result<T, Problem>) -> (Code, String) {
        let problem = result.err().unwrap();
        (problem.code(), problem.detail().to_owned())
    }

    #[test]
    fn values_are_decoded() {
        let mut query = Query::parse("category=%D0%A2%D0%B5%D0%BB+1&in_stock=true&from=").unwrap();
        assert_eq!(query.required("category", |text| Ok::<_, &str>(text.to_owned())).unwrap(), "Тел 1");
        assert!(query.flag("in_stock").unwrap());
        assert_eq!(query.optional("from", |text| Ok::<_, &str>(text.len())).unwrap(), Some(0));
        query.finish().unwrap();
    }

    #[test]
    fn invalid_escapes_and_repeated_or_unknown_parameters_are_refused() {
        for text in ["a=%zz", "a=%e", "a=%", "a=%ff", "%ff=a", "a=1&a=2", "%61=1&a=2"] {
            assert_eq!(refuse(Query::parse(text)).0, Code::InvalidParameter, "{text}");
        }
        let unknown = Query::parse("offset=3").unwrap().finish();
        assert_eq!(refuse(unknown).1, "offset: is not a parameter of this call");
        let many = (0..33).map(|at| format!("p{at}=1")).collect::<Vec<_>>().join("&");
        assert_eq!(refuse(Query::parse(&many)).0, Code::InvalidParameter);
    }

    #[test]
    fn a_utc_offset_is_parsed_with_its_plus_encoded_or_not() {
        for text in ["from=2026-01-01T03:00:00+03:00", "from=2026-01-01T03:00:00%2B03:00", "from=2026-01-01"]
        {
            let at = Query::parse(text).unwrap().time("from").unwrap().unwrap();
            assert_eq!(at.to_string(), "2026-01-01T00:00:00.000Z", "{text}");
        }
        assert_eq!(refuse(Query::parse("from=today").unwrap().time("from")).0, Code::InvalidParameter);
    }

    #[test]
    fn a_limit_is_one_to_a_hundred() {
        let scope = Scope::of("list");
        let page = |text: &str| Query::parse(text).unwrap().page(&scope);
        assert_eq!(page("").unwrap(), PageRequest { limit: 20, after: None });
        assert_eq!(page("limit=100").unwrap().limit, 100);
        for bad in ["limit=0", "limit=101", "limit=-1", "limit=+1", "limit=1.0", "limit=", "limit=x"] {
            assert_eq!(refuse(page(bad)).0, Code::InvalidParameter, "{bad}");
        }
        assert_eq!(refuse(page("cursor=abc")).0, Code::InvalidCursor);
        let cursor = scope.encode(b"p");
        assert_eq!(page(&format!("cursor={cursor}")).unwrap().after, Some(Position(b"p".to_vec())));
    }
}
