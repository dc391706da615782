//! The stored format of every noun: compact and versioned, so that a later release reads the bytes of this one.
//!
//! A value begins with its version. In tables whose rows expire the next eight bytes are the expiry, so that compaction
//! can drop a row without reading the rest. Numbers are variable-length, text has its length before it. `fixtures/`
//! holds a value of every released version; a test reads each. Every engine that stores bytes uses this format.

pub mod carts;
pub mod changes;
pub mod export;
pub mod idempotency;
pub mod intents;
pub mod migration;
pub mod orders;
pub mod products;
pub mod sessions;
pub mod spool;
pub mod stock;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use mw_domain::{Attributes, Timestamp};
use mw_store::StoreError;

/// The version that this release writes.
pub const VERSION: u8 = 1;

/// Stored bytes that cannot be decoded, and the kind of value they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {0}")]
pub struct Damaged(pub &'static str);

impl From<Damaged> for StoreError {
    fn from(damaged: Damaged) -> Self {
        Self::Corrupt(damaged.to_string())
    }
}

/// Writes a value.
#[derive(Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn new(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.push(VERSION);
        Self(bytes)
    }

    /// A value of a table whose rows expire.
    pub fn expiring(capacity: usize, expires_at: Timestamp) -> Self {
        let mut writer = Self::new(capacity);
        writer.0.extend_from_slice(&expires_at.as_millis().to_be_bytes());
        writer
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }

    pub fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub fn unsigned(&mut self, mut number: u64) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                return self.0.push(low & 0x7f);
            }
            self.0.push(low | 0x80);
        }
    }

    /// Small numbers of either sign are short.
    pub fn signed(&mut self, number: i64) {
        self.unsigned(((number << 1) ^ (number >> 63)).cast_unsigned());
    }

    pub fn time(&mut self, at: Timestamp) {
        self.signed(at.as_millis());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub fn text(&mut self, text: &str) {
        self.unsigned(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub fn optional<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.byte(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub fn optional_text(&mut self, text: Option<&str>) {
        self.optional(text.as_ref(), |writer, text| writer.text(text));
    }

    pub fn text_map<'t>(&mut self, map: impl ExactSizeIterator<Item = (&'t str, &'t str)>) {
        self.unsigned(map.len() as u64);
        for (key, value) in map {
            self.text(key);
            self.text(value);
        }
    }
}

/// Reads a value. Every step checks the number of remaining bytes.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Starts reading a value of the current version; `what` names the kind of value in an error.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Result<Self, Damaged> {
        match bytes.split_first() {
            Some((&VERSION, rest)) => Ok(Self { rest, what }),
            _ => Err(Damaged(what)),
        }
    }

    /// Starts reading a value of a table whose rows expire.
    pub fn expiring(bytes: &'a [u8], what: &'static str) -> Result<(Self, Timestamp), Damaged> {
        let mut reader = Self::new(bytes, what)?;
        let expires_at = i64::from_be_bytes(reader.array()?);
        Ok((reader, Timestamp::from_millis(expires_at)))
    }

    pub const fn damaged(&self) -> Damaged {
        Damaged(self.what)
    }

    /// Ends reading; fails if bytes remain.
    pub fn end(self) -> Result<(), Damaged> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.damaged()) }
    }

    pub const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> Result<u8, Damaged> {
        let (byte, rest) = self.rest.split_first().ok_or(Damaged(self.what))?;
        self.rest = rest;
        Ok(*byte)
    }

    pub fn unsigned(&mut self) -> Result<u64, Damaged> {
        // Fast path: most numbers are lengths of one byte.
        if let Some((&byte @ ..0x80, rest)) = self.rest.split_first() {
            self.rest = rest;
            return Ok(byte.into());
        }
        self.long_unsigned()
    }

    fn long_unsigned(&mut self) -> Result<u64, Damaged> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.damaged())
    }

    pub fn small(&mut self) -> Result<u32, Damaged> {
        u32::try_from(self.unsigned()?).map_err(|_| self.damaged())
    }

    pub fn signed(&mut self) -> Result<i64, Damaged> {
        let number = self.unsigned()?;
        Ok((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    pub fn time(&mut self) -> Result<Timestamp, Damaged> {
        self.signed().map(Timestamp::from_millis)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or(Damaged(self.what))?;
        self.rest = rest;
        Ok(*array)
    }

    pub fn text(&mut self) -> Result<&'a str, Damaged> {
        let text = self.sized_bytes()?;
        std::str::from_utf8(text).map_err(|_| self.damaged())
    }

    /// Bytes with their length before them.
    pub fn sized_bytes(&mut self) -> Result<&'a [u8], Damaged> {
        let len = usize::try_from(self.unsigned()?).map_err(|_| self.damaged())?;
        let (text, rest) = self.rest.split_at_checked(len).ok_or(Damaged(self.what))?;
        self.rest = rest;
        Ok(text)
    }

    /// A checked id.
    pub fn id<T, E>(&mut self, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<T, Damaged> {
        let text = self.text()?;
        parse(text).map_err(|_| self.damaged())
    }

    pub fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Damaged>,
    ) -> Result<Option<T>, Damaged> {
        match self.byte()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(self.damaged()),
        }
    }

    pub fn optional_text(&mut self) -> Result<Option<String>, Damaged> {
        self.optional(|reader| reader.text().map(String::from))
    }

    pub fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Damaged>,
    ) -> Result<Vec<T>, Damaged> {
        let len = self.unsigned()?;
        // A damaged length must not reserve memory: every item has at least one byte.
        let mut list = Vec::with_capacity(usize::try_from(len).unwrap_or(usize::MAX).min(self.rest.len()));
        for _ in 0..len {
            list.push(read(self)?);
        }
        Ok(list)
    }

    pub fn text_map(&mut self) -> Result<BTreeMap<String, String>, Damaged> {
        let pairs = self.list(|reader| Ok((reader.text()?.to_owned(), reader.text()?.to_owned())))?;
        Ok(pairs.into_iter().collect())
    }

    /// A text map as the attributes of a product. Their text is checked once, as a whole.
    pub fn attributes(&mut self) -> Result<Attributes, Damaged> {
        let texts = usize::try_from(self.unsigned()?).unwrap_or(usize::MAX).saturating_mul(2);
        // A damaged length must not reserve memory: neither can exceed the remaining bytes.
        let mut ends = Vec::with_capacity(texts.min(self.rest.len()));
        let mut bytes = Vec::with_capacity(if texts == 0 { 0 } else { self.rest.len() });
        for _ in 0..texts {
            bytes.extend_from_slice(self.sized_bytes()?);
            ends.push(u32::try_from(bytes.len()).map_err(|_| self.damaged())?);
        }
        let text = String::from_utf8(bytes).map_err(|_| self.damaged())?;
        Attributes::from_parts(text, ends).ok_or(self.damaged())
    }
}
