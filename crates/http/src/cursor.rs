//! Cursors of lists: opaque to the client, bound to the list they came from.
//!
//! A cursor is base64url of a version byte, four bytes of a hash of the list's scope (the route and its filters), and
//! the engine's own position. A cursor with other filters is refused instead of returning a wrong page.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use crate::error::{Code, Problem};

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 5;
/// An engine's position is a key of a few ids.
const TEXT_MAX: usize = 2_048;

/// Identifies a list: its name and its filters.
#[derive(Debug, Clone)]
pub(crate) struct Scope(Sha256);

impl Scope {
    pub(crate) fn of(list: &str) -> Self {
        Self(Sha256::new()).with(list)
    }

    #[must_use]
    pub(crate) fn with(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        // With its length, so that different sequences of parts never hash alike.
        self.0.update(part.len().to_be_bytes());
        self.0.update(part);
        self
    }

    fn hash(&self) -> [u8; 4] {
        let digest: [u8; 32] = self.0.clone().finalize().into();
        let [a, b, c, d, ..] = digest;
        [a, b, c, d]
    }

    pub(crate) fn encode(&self, position: &[u8]) -> String {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + position.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.hash());
        bytes.extend_from_slice(position);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    pub(crate) fn decode(&self, text: &str) -> Result<Vec<u8>, Problem> {
        let bad = || {
            Problem::new(
                Code::InvalidCursor,
                "send next_cursor of the same list with the same filters, unchanged",
            )
        };
        if text.len() > TEXT_MAX {
            return Err(bad());
        }
        let mut bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
        match bytes.split_at_checked(HEAD_BYTES) {
            Some(([VERSION, hash @ ..], position)) if *hash == self.hash() && !position.is_empty() => {
                Ok(bytes.split_off(HEAD_BYTES))
            }
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_valid_for_its_own_list_only() {
        let scope = Scope::of("orders").with("u1").with("2026");
        let text = scope.encode(b"position");
        assert_eq!(scope.decode(&text).unwrap(), b"position");
        for other in [Scope::of("orders").with("u12").with("026"), Scope::of("orders").with("u1")] {
            assert_eq!(other.decode(&text).unwrap_err().code(), Code::InvalidCursor);
        }
    }

    #[test]
    fn malformed_cursors_are_refused() {
        let scope = Scope::of("orders");
        let other_version = URL_SAFE_NO_PAD.encode([2, 0, 0, 0, 0, 1]);
        for text in ["", "!", "AQ", "AQAAAAAA", &other_version, &"A".repeat(4_096), &scope.encode(b"")] {
            assert_eq!(scope.decode(text).unwrap_err().code(), Code::InvalidCursor, "{text}");
        }
    }
}
