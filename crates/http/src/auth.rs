//! Authentication: bearer tokens, their roles and their rate limits.
//!
//! Secrets are kept as SHA-256 digests, and a request's token is compared with every one of them in constant time. So
//! neither the time of a response nor a memory dump reveals a token.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::error::{Code, Problem};
use crate::rate_limit::RateLimit;
use crate::settings::{Role, Tokens};

#[derive(Debug)]
pub(crate) struct Callers {
    known: Vec<Caller>,
}

#[derive(Debug)]
struct Caller {
    digest: [u8; 32],
    role: Role,
    limit: Option<RateLimit>,
}

impl Callers {
    pub(crate) fn new(tokens: &Tokens) -> Self {
        let known = tokens.0.iter().map(|token| Caller {
            digest: Sha256::digest(token.secret.as_bytes()).into(),
            role: token.role,
            limit: token.rate_limit.map(RateLimit::per_second),
        });
        Self { known: known.collect() }
    }

    /// Whether no tokens are configured: every caller on the machine is an operator.
    pub(crate) fn is_open(&self) -> bool {
        self.known.is_empty()
    }

    /// The name of the caller's token for the audit log: its role, and a part of its digest, which tells tokens of one role apart.
    pub(crate) fn token_name(&self, headers: &HeaderMap) -> String {
        if self.is_open() {
            return "local".to_owned();
        }
        self.identify(headers).map_or_else(
            |_| String::new(),
            |caller| {
                let digest = caller.digest.iter().take(4).map(|byte| format!("{byte:02x}"));
                format!("{}-{}", caller.role.name(), digest.collect::<String>())
            },
        )
    }

    /// Admits a caller whose role includes this one, and counts the request against its rate limit. Returns the caller's role.
    pub(crate) fn admit(&self, headers: &HeaderMap, role: Role, is_read: bool) -> Result<Role, Problem> {
        if self.is_open() {
            return Ok(Role::Operator);
        }
        let caller = self.identify(headers)?;
        if !caller.role.includes(role, is_read) {
            return Err(Problem::new(
                Code::Forbidden,
                format!("this call needs role {}; the token has role {}", role.name(), caller.role.name()),
            ));
        }
        match &caller.limit {
            Some(limit) => limit.try_acquire().map(|()| caller.role).map_err(|wait| {
                Problem::new(Code::RateLimited, "the token's rate limit is used up; wait for Retry-After")
                    .retry_after(wait.as_secs() + u64::from(wait.subsec_nanos() > 0))
            }),
            None => Ok(caller.role),
        }
    }

    fn identify(&self, headers: &HeaderMap) -> Result<&Caller, Problem> {
        let unauthorized = |detail: &'static str| Problem::new(Code::Unauthorized, detail);
        let secret = bearer(headers).ok_or_else(|| unauthorized("send Authorization: Bearer <token>"))?;
        let digest: [u8; 32] = Sha256::digest(secret).into();
        let mut found = None;
        for caller in &self.known {
            let same: Choice = caller.digest.ct_eq(&digest);
            if bool::from(same) {
                found = Some(caller);
            }
        }
        found.ok_or_else(|| unauthorized("the token is not configured here"))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, secret) = value.split_at_checked("Bearer ".len())?;
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !secret.is_empty()).then_some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Token;

    fn callers() -> Callers {
        let token = |role, secret: &str, rate_limit| Token { role, secret: secret.into(), rate_limit };
        Callers::new(&Tokens(vec![
            token(Role::Storefront, "front", None),
            token(Role::Operator, "ops", Some(2)),
        ]))
    }

    fn admit(value: Option<&str>, role: Role) -> Result<Role, Code> {
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(AUTHORIZATION, value.parse().unwrap());
        }
        callers().admit(&headers, role, false).map_err(|problem| problem.code())
    }

    #[test]
    fn a_role_includes_the_lower_ones() {
        assert_eq!(admit(Some("Bearer front"), Role::Storefront), Ok(Role::Storefront));
        assert_eq!(admit(Some("bearer ops"), Role::Storefront), Ok(Role::Operator));
        assert_eq!(admit(Some("Bearer front"), Role::Backoffice), Err(Code::Forbidden));
    }

    #[test]
    fn an_auditor_reads_everything_and_changes_nothing() {
        for role in Role::ALL {
            assert!(Role::Auditor.includes(role, true) && !Role::Auditor.includes(role, false), "{role:?}");
        }
        assert!(!Role::Backoffice.includes(Role::Operator, true));
    }

    #[test]
    fn a_missing_or_wrong_token_is_unauthorized() {
        for value in
            [None, Some("Bearer "), Some("Bearer nope"), Some("Basic front"), Some("front"), Some("é")]
        {
            assert_eq!(admit(value, Role::Storefront), Err(Code::Unauthorized), "{value:?}");
        }
    }

    #[test]
    fn without_tokens_every_caller_is_operator() {
        assert!(Callers::new(&Tokens::default()).admit(&HeaderMap::new(), Role::Operator, false).is_ok());
    }

    #[test]
    fn requests_count_against_the_rate_limit() {
        let callers = callers();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, "Bearer ops".parse().unwrap())]);
        assert!(callers.admit(&headers, Role::Operator, false).is_ok());
        assert!(callers.admit(&headers, Role::Operator, false).is_ok());
        let problem = callers.admit(&headers, Role::Operator, false).unwrap_err();
        assert_eq!((problem.code(), problem.retry_after_seconds()), (Code::RateLimited, Some(1)));
    }
}
