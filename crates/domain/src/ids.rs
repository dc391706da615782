//! Newtype ids. What the shop names itself is a checked string; what the service makes is a UUID.

use std::borrow::Borrow;
use std::fmt;

use uuid::Uuid;

use crate::limits::{CATEGORY_CHARS_MAX, ID_BYTES_MAX};

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    #[error("an id is 1 to 128 characters of A-Z a-z 0-9 . _ : ~ -")]
    Name,
    #[error("a category is 1 to 128 characters without control characters")]
    Category,
    #[error("not a UUID")]
    Uuid,
    #[error("an order id is a UUID or a 24-digit hexadecimal ObjectId")]
    Order,
    #[error("an idempotency key is 1 to 128 visible ASCII characters")]
    IdempotencyKey,
}

fn is_name(text: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| NAME_BYTES.get(usize::from(byte)) == Some(&true))
}

/// Which bytes a name may have. Ids are checked wherever they are read, so it is looked up.
#[expect(clippy::indexing_slicing, reason = "the index is below 0x80, and the compiler runs this")]
static NAME_BYTES: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0_u8;
    while byte < 0x80 {
        allowed[byte as usize] =
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'~' | b'-');
        byte += 1;
    }
    allowed
};

fn is_category(text: &str) -> bool {
    // Bytes first: four bytes a character at the most, so that a huge text is not counted through.
    (1..=CATEGORY_CHARS_MAX * 4).contains(&text.len())
        && (text.len() <= CATEGORY_CHARS_MAX || text.chars().count() <= CATEGORY_CHARS_MAX)
        && !has_control(text)
}

fn has_control(text: &str) -> bool {
    // Beyond ASCII all control characters begin with this byte, as few others do.
    let suspect = |byte: u8| byte.is_ascii_control() || byte == 0xc2;
    text.bytes().any(suspect) && text.chars().any(char::is_control)
}

fn is_idempotency_key(text: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $check:ident, $error:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                if $check(text) { Ok(Self(text.into())) } else { Err(InvalidId::$error) }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }
    };
}

text_id!(UserId, is_name, Name);
text_id!(ProductId, is_name, Name);
text_id!(SessionId, is_name, Name);
text_id!(GeoZone, is_name, Name);
text_id!(
    /// A category in any script.
    Category,
    is_category,
    Category
);
text_id!(
    /// The client's name for one intended effect; one namespace for the shop.
    IdempotencyKey,
    is_idempotency_key,
    IdempotencyKey
);

impl SessionId {
    /// The id of a session that came without one. Nobody can guess it if nobody can guess the UUID.
    #[must_use]
    pub fn made_of(uuid: Uuid) -> Self {
        Self(uuid.simple().to_string().into())
    }
}

impl IdempotencyKey {
    /// The key of one line of a keyed request of many lines. No client can name it: it contains a space.
    #[must_use]
    pub fn line(&self, line: u64) -> Self {
        Self(format!("{} {line}", self.0).into())
    }

    /// Reads back a key that was stored, of a whole request or of one line.
    pub fn restore(text: &str) -> Result<Self, InvalidId> {
        let (key, line) = text.split_once(' ').unwrap_or((text, "0"));
        let valid = is_idempotency_key(key) && line.parse::<u64>().is_ok();
        if valid { Ok(Self(text.into())) } else { Err(InvalidId::IdempotencyKey) }
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            pub const fn new(uuid: Uuid) -> Self {
                Self(uuid)
            }

            pub const fn uuid(self) -> Uuid {
                self.0
            }

            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }
    };
}

uuid_id!(CartId);
uuid_id!(ReservationId);
uuid_id!(
    /// Also stands for a MongoDB `ObjectId` of an order made before the move; see [`OrderId::object_id`].
    OrderId
);

fn parse_uuid(text: &str) -> Result<Uuid, InvalidId> {
    // Only the canonical form: the crate also reads braces, URNs and bare hexadecimal.
    if text.len() == 36 { Uuid::try_parse(text).map_err(|_| InvalidId::Uuid) } else { Err(InvalidId::Uuid) }
}

impl CartId {
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        parse_uuid(text).map(Self)
    }
}

impl ReservationId {
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        parse_uuid(text).map(Self)
    }
}

impl OrderId {
    /// Reads a UUID, or an `ObjectId` of 24 hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        if text.len() == 24 {
            return Self::from_object_id(text);
        }
        parse_uuid(text).map(Self).map_err(|_| InvalidId::Order)
    }

    /// Spreads the 96 bits around the version (8) and variant fields of a UUID; the last 24 bits are zero.
    fn from_object_id(text: &str) -> Result<Self, InvalidId> {
        if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidId::Order);
        }
        let bits = u128::from_str_radix(text, 16).map_err(|_| InvalidId::Order)?;
        let high = (bits >> 48) << 80;
        let middle = (bits >> 36 & 0xfff) << 64;
        let low = (bits & 0xf_ffff_ffff) << 24;
        Ok(Self(Uuid::from_u128(high | 0x8 << 76 | middle | 0x8 << 60 | low)))
    }

    /// The `ObjectId` this id stands for, if it was made from one.
    pub fn object_id(self) -> Option<String> {
        let bits = self.0.as_u128();
        let (version, variant) = (bits >> 76 & 0xf, bits >> 60 & 0xf);
        if version != 8 || variant != 8 || bits & 0xff_ffff != 0 {
            return None;
        }
        let object = (bits >> 80) << 48 | (bits >> 64 & 0xfff) << 36 | bits >> 24 & 0xf_ffff_ffff;
        Some(format!("{object:024x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_take_the_promised_characters_only() {
        for good in ["a", "A-1._:~", &"x".repeat(128)] {
            assert!(UserId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a/b", "é", "a\0", "a%", &"x".repeat(129)] {
            assert_eq!(UserId::parse(bad), Err(InvalidId::Name), "{bad}");
        }
    }

    #[test]
    fn categories_are_of_any_script_without_control_characters() {
        assert!(Category::parse("Телефоны и планшеты").is_ok());
        assert!(Category::parse(&"я".repeat(128)).is_ok());
        assert_eq!(Category::parse(&"я".repeat(129)), Err(InvalidId::Category));
        for control in ["a\nb", "\u{7f}", "я\u{80}", "\u{9f}я"] {
            assert_eq!(Category::parse(control), Err(InvalidId::Category), "{control:?}");
        }
        assert!(Category::parse("\u{a0}é\u{bf}").is_ok());
    }

    #[test]
    fn an_object_id_is_one_uuid_and_back() {
        let id = OrderId::parse("507f1f77bcf86cd799439011").unwrap();
        assert_eq!(id.to_string(), "507f1f77-bcf8-86cd-8799-439011000000");
        assert_eq!(OrderId::parse(&id.to_string()), Ok(id));
        assert_eq!(id.object_id().unwrap(), "507f1f77bcf86cd799439011");
        for text in ["000000000000000000000000", "ffffffffffffffffffffffff", "0123456789abcdef01234567"] {
            assert_eq!(OrderId::parse(text).unwrap().object_id().as_deref(), Some(text));
        }
    }

    #[test]
    fn an_ordinary_uuid_is_no_object_id() {
        let id = OrderId::parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap();
        assert_eq!(id.object_id(), None);
        for bad in [
            "",
            "507f1f77bcf86cd79943901",
            "507f1f77bcf86cd79943901g",
            "{01890a5d-ac96-774b-bcce-b302099a805}",
        ] {
            assert_eq!(OrderId::parse(bad), Err(InvalidId::Order), "{bad}");
        }
    }
}
