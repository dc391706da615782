//! The id that connects a response with its log lines: the client's, if it sent a safe one, or a generated one.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const LENGTH_MAX: usize = 128;

#[derive(Debug, Clone)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        match headers.get(X_REQUEST_ID) {
            Some(value) if is_safe(value.as_bytes()) => Self(value.clone()),
            _ => Self::generate(),
        }
    }

    pub(crate) fn generate() -> Self {
        static SEED: OnceLock<u64> = OnceLock::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let seed = *SEED.get_or_init(|| RandomState::new().hash_one(std::process::id()));
        // An odd factor makes this a permutation: the ids of one process never repeat.
        let next = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hex = seed.wrapping_add(next);
        let mut text = [0_u8; 16];
        for (at, byte) in text.iter_mut().enumerate() {
            let nibble = (hex >> (60 - 4 * at) & 0xf) as u8;
            *byte = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        }
        Self(HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("-")))
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or("-")
    }

    pub(crate) fn into_header(self) -> HeaderValue {
        self.0
    }
}

/// Visible characters without quotes and backslashes, so that an id needs no escaping in a log.
fn is_safe(value: &[u8]) -> bool {
    (1..=LENGTH_MAX).contains(&value.len())
        && value.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:~+/=@#".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &[u8]) -> String {
        let value = HeaderValue::from_bytes(value).unwrap();
        RequestId::of(&HeaderMap::from_iter([(X_REQUEST_ID, value)])).as_str().to_owned()
    }

    #[test]
    fn a_safe_id_is_kept() {
        assert_eq!(of(b"a-1_2:3"), "a-1_2:3");
        assert_eq!(of("x".repeat(128).as_bytes()).len(), 128);
    }

    #[test]
    fn an_unsafe_id_is_replaced() {
        for bad in [&b""[..], b"a b", b"a\"b", b"<script>", b"\xc3\xa9", "x".repeat(129).as_bytes()] {
            let made = of(bad);
            assert_eq!(made.len(), 16, "{made}");
            assert!(made.bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
    }

    #[test]
    fn generated_ids_differ() {
        assert_ne!(RequestId::generate().as_str(), RequestId::generate().as_str());
    }
}
