//! What an auditor sees instead of personal data: a stable pseudonym for a user or a session, `***` for the rest.
//!
//! Auditors are few, so their responses are masked as JSON after they were written; no other response pays for it.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::error::Problem;
use crate::settings::{Role, Tokens};

const MASK: &str = "***";
/// Members that are replaced by [`MASK`], whatever they hold.
const MASKED: &[&str] = &["delivery_address", "payment_method", "ip", "user_agent", "data", "note"];
/// Bytes of a pseudonym's hash: enough that two users of one shop never share one.
const PSEUDONYM_BYTES: usize = 10;

/// Makes pseudonyms of ids under a key that auditors do not have: without one, a list of user ids would reveal them all.
#[derive(Debug)]
pub(crate) struct Pseudonyms {
    key: [u8; 32],
}

impl Pseudonyms {
    /// The configured key, or one derived from the tokens of the other roles, which every process of the shop has too.
    pub(crate) fn new(configured: Option<&str>, tokens: &Tokens) -> Self {
        let mut hash = Sha256::new();
        if let Some(key) = configured {
            hash.update(key.as_bytes());
        } else {
            let others = tokens.0.iter().filter(|token| token.role != Role::Auditor);
            let mut secrets: Vec<&str> = others.map(|token| token.secret.as_str()).collect();
            secrets.sort_unstable();
            for secret in secrets {
                hash.update(Sha256::digest(secret.as_bytes()));
            }
        }
        Self { key: hash.finalize().into() }
    }

    fn of(&self, kind: &str, id: &str) -> String {
        // The key is hashed on both sides, as in HMAC, so that no prefix of the input can be extended.
        let inner = Sha256::new()
            .chain_update(self.key)
            .chain_update(kind)
            .chain_update([0])
            .chain_update(id)
            .finalize();
        let outer = Sha256::new().chain_update(inner).chain_update(self.key).finalize();
        let mut pseudonym = String::with_capacity(2 + 2 * PSEUDONYM_BYTES);
        pseudonym.push_str(if kind == "user" { "u-" } else { "s-" });
        for byte in outer.iter().take(PSEUDONYM_BYTES) {
            for nibble in [byte >> 4, byte & 0xf] {
                pseudonym.push(char::from_digit(nibble.into(), 16).unwrap_or('0'));
            }
        }
        pseudonym
    }

    /// Masks a response. One whose JSON cannot be read is not sent at all.
    pub(crate) async fn mask(&self, response: Response) -> Result<Response, Problem> {
        let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|value| value == "application/json");
        if !is_json {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let body = body.collect().await.map_err(Problem::internal)?.to_bytes();
        let mut json: Value = serde_json::from_slice(&body).map_err(Problem::internal)?;
        self.mask_value(&mut json);
        let body = serde_json::to_vec(&json).map_err(Problem::internal)?;
        // The tag is of the unmasked bytes, which an auditor must not be able to guess at.
        parts.headers.remove(ETAG);
        Ok(Response::from_parts(parts, Body::from(Bytes::from(body))))
    }

    fn mask_value(&self, value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.mask_value(item)),
            Value::Object(members) => self.mask_members(members),
            _ => {}
        }
    }

    fn mask_members(&self, members: &mut Map<String, Value>) {
        // The owner of a cart: its kind says whose id it is.
        let owner_kind = match (members.get("kind"), members.get("id")) {
            (Some(Value::String(kind)), Some(Value::String(_))) => Some(kind.clone()),
            _ => None,
        };
        // The key of a partition: its table says whose id it is.
        let key_kind = match members.get("table") {
            Some(Value::String(table)) => kind_of_keys(table),
            _ => None,
        };
        for (name, value) in members.iter_mut() {
            let kind = match name.as_str() {
                "key" => key_kind,
                "user_id" => Some("user"),
                "session_id" => Some("session"),
                "id" => owner_kind.as_deref(),
                _ => None,
            };
            match (kind, &mut *value) {
                (Some(kind), Value::String(id)) => *id = self.of(kind, id),
                _ if MASKED.contains(&name.as_str()) => *value = Value::from(MASK),
                _ => self.mask_value(value),
            }
        }
    }
}

/// Whose ids the keys of a table's partitions are; `None` where they are no personal data. The ids of carts are those of users
/// and of sessions, and are masked as one kind.
fn kind_of_keys(table: &str) -> Option<&'static str> {
    match table {
        "sessions_by_id" | "sessions" => Some("session"),
        "orders_by_customer" | "orders_by_user" | "sessions_by_user" => Some("user"),
        table if table.contains("cart") => Some("user"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::settings::Token;

    fn pseudonyms(key: &str) -> Pseudonyms {
        Pseudonyms::new(Some(key), &Tokens::default())
    }

    #[test]
    fn personal_data_is_masked_and_the_rest_stays() {
        let mut value = json!({
            "items": [{"order_id": "o", "user_id": "anna", "delivery_address": "Tverskaya 1", "lines": [{"product_id": "p"}]}],
            "cart": {"owner": {"kind": "user", "id": "anna"}, "lines": []},
            "session": {"session_id": "s1", "user_id": "anna", "ip": "10.0.0.1", "user_agent": "x", "data": {"a": "b"}},
            "note": "call her",
            "next_cursor": null,
        });
        let pseudonyms = pseudonyms("k");
        pseudonyms.mask_value(&mut value);
        let (anna, session) = (pseudonyms.of("user", "anna"), pseudonyms.of("session", "s1"));
        assert_eq!(
            value,
            json!({
                "items": [{"order_id": "o", "user_id": anna, "delivery_address": "***", "lines": [{"product_id": "p"}]}],
                "cart": {"owner": {"kind": "user", "id": anna}, "lines": []},
                "session": {"session_id": session, "user_id": anna, "ip": "***", "user_agent": "***", "data": "***"},
                "note": "***",
                "next_cursor": null,
            })
        );
    }

    #[test]
    fn a_pseudonym_is_stable_under_its_key_and_differs_under_another() {
        assert_eq!(pseudonyms("k").of("user", "anna"), pseudonyms("k").of("user", "anna"));
        assert_ne!(pseudonyms("k").of("user", "anna"), pseudonyms("l").of("user", "anna"));
        assert_ne!(pseudonyms("k").of("user", "anna"), pseudonyms("k").of("session", "anna"));
        assert!(mw_domain::UserId::parse(&pseudonyms("k").of("user", "anna")).is_ok());
    }

    #[test]
    fn the_auditors_own_token_does_not_decide_the_key() {
        let token = |role, secret: &str| Token { role, secret: secret.into(), rate_limit: None };
        let of = |auditor: &str, operator: &str| {
            let tokens = Tokens(vec![token(Role::Auditor, auditor), token(Role::Operator, operator)]);
            Pseudonyms::new(None, &tokens).of("user", "anna")
        };
        assert_eq!(of("a", "o"), of("b", "o"));
        assert_ne!(of("a", "o"), of("a", "p"));
    }
}
