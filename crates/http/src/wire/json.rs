//! Serialises responses to JSON: the same bytes as `serde_json`, for half of the instructions.
//!
//! Responses are mostly member names, which never need escaping, and text, which hardly ever does: plain text is copied
//! as it is. A comma follows every value, and the last comma of an object or array is overwritten by its end.

use serde::ser::{
    Error as _, Impossible, SerializeMap, SerializeSeq, SerializeStruct, SerializeTuple, SerializeTupleStruct,
};
use serde::{Serialize, Serializer};

pub(crate) type Error = serde_json::Error;

/// Appends the JSON of a value.
pub(crate) fn write<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> Result<(), Error> {
    value.serialize(Json(out))
}

struct Json<'a>(&'a mut Vec<u8>);

/// An object or an array that is not closed yet.
struct Compound<'a> {
    out: &'a mut Vec<u8>,
    end: u8,
}

impl<'a> Json<'a> {
    fn open(self, start: u8, end: u8) -> Compound<'a> {
        self.0.push(start);
        Compound { out: self.0, end }
    }

    fn unsigned(self, number: u64) {
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn signed(self, number: i64) {
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
}

impl Compound<'_> {
    #[inline]
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(Json(self.out))?;
        self.out.push(b',');
        Ok(())
    }

    fn close(self) {
        match self.out.last_mut() {
            Some(last) if *last == b',' => *last = self.end,
            _ => self.out.push(self.end),
        }
    }
}

fn without_fields() -> Error {
    Error::custom("a variant with several fields cannot be serialised")
}

impl<'a> Serializer for Json<'a> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Compound<'a>;
    type SerializeTuple = Compound<'a>;
    type SerializeTupleStruct = Compound<'a>;
    type SerializeTupleVariant = Impossible<(), Error>;
    type SerializeMap = Compound<'a>;
    type SerializeStruct = Compound<'a>;
    type SerializeStructVariant = Impossible<(), Error>;

    fn serialize_bool(self, truth: bool) -> Result<(), Error> {
        self.0.extend_from_slice(if truth { b"true" } else { b"false" });
        Ok(())
    }

    fn serialize_i8(self, number: i8) -> Result<(), Error> {
        self.serialize_i64(number.into())
    }

    fn serialize_i16(self, number: i16) -> Result<(), Error> {
        self.serialize_i64(number.into())
    }

    fn serialize_i32(self, number: i32) -> Result<(), Error> {
        self.serialize_i64(number.into())
    }

    fn serialize_i64(self, number: i64) -> Result<(), Error> {
        self.signed(number);
        Ok(())
    }

    fn serialize_u8(self, number: u8) -> Result<(), Error> {
        self.serialize_u64(number.into())
    }

    fn serialize_u16(self, number: u16) -> Result<(), Error> {
        self.serialize_u64(number.into())
    }

    fn serialize_u32(self, number: u32) -> Result<(), Error> {
        self.serialize_u64(number.into())
    }

    fn serialize_u64(self, number: u64) -> Result<(), Error> {
        self.unsigned(number);
        Ok(())
    }

    fn serialize_f32(self, number: f32) -> Result<(), Error> {
        serde_json::to_writer(self.0, &number)
    }

    fn serialize_f64(self, number: f64) -> Result<(), Error> {
        serde_json::to_writer(self.0, &number)
    }

    fn serialize_char(self, character: char) -> Result<(), Error> {
        self.serialize_str(character.encode_utf8(&mut [0; 4]))
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Result<(), Error> {
        write_text(self.0, text.as_bytes());
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Error> {
        self.collect_seq(bytes)
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.0.extend_from_slice(b"null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Error> {
        self.serialize_str(variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        let mut object = self.open(b'{', b'}');
        SerializeStruct::serialize_field(&mut object, variant, value)?;
        object.close();
        Ok(())
    }

    #[inline]
    fn serialize_seq(self, _: Option<usize>) -> Result<Compound<'a>, Error> {
        Ok(self.open(b'[', b']'))
    }

    fn serialize_tuple(self, _: usize) -> Result<Compound<'a>, Error> {
        Ok(self.open(b'[', b']'))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Compound<'a>, Error> {
        Ok(self.open(b'[', b']'))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<(), Error>, Error> {
        Err(without_fields())
    }

    #[inline]
    fn serialize_map(self, _: Option<usize>) -> Result<Compound<'a>, Error> {
        Ok(self.open(b'{', b'}'))
    }

    #[inline]
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Compound<'a>, Error> {
        Ok(self.open(b'{', b'}'))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<(), Error>, Error> {
        Err(without_fields())
    }
}

impl SerializeStruct for Compound<'_> {
    type Ok = ();
    type Error = Error;

    #[inline]
    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
        debug_assert!(is_plain(name.as_bytes()), "member names need no escaping");
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeMap for Compound<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        let start = self.out.len();
        key.serialize(Json(self.out))?;
        if self.out.get(start) != Some(&b'"') {
            return Err(Error::custom("a member name must be a string"));
        }
        self.out.push(b':');
        Ok(())
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeSeq for Compound<'_> {
    type Ok = ();
    type Error = Error;

    #[inline]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeTuple for Compound<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

impl SerializeTupleStruct for Compound<'_> {
    type Ok = ();
    type Error = Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.item(value)
    }

    fn end(self) -> Result<(), Error> {
        self.close();
        Ok(())
    }
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    if is_plain(text) {
        out.extend_from_slice(text);
    } else {
        write_escaped(out, text);
    }
    out.push(b'"');
}

const fn is_special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Whether text needs no escaping.
fn is_plain(text: &[u8]) -> bool {
    // The last chunk overlaps the one before it, so that no byte is compared alone.
    if let Some(last) = text.last_chunk::<16>() {
        let (chunks, _) = text.as_chunks::<16>();
        chunks.iter().all(is_plain_chunk) && is_plain_chunk(last)
    } else if let (Some(first), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        is_plain_chunk(first) && is_plain_chunk(last)
    } else {
        !text.iter().any(|byte| is_special(*byte))
    }
}

/// Compares all bytes without a branch, so that the compiler uses vector instructions.
fn is_plain_chunk<const N: usize>(chunk: &[u8; N]) -> bool {
    !chunk.iter().fold(false, |special, byte| special | is_special(*byte))
}

#[cold]
fn write_escaped(out: &mut Vec<u8>, text: &[u8]) {
    for run in text.split_inclusive(|byte| is_special(*byte)) {
        let Some((&last, plain)) = run.split_last() else { continue };
        out.extend_from_slice(plain);
        match last {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            control @ ..0x20 => {
                out.extend_from_slice(b"\\u00");
                out.extend([control >> 4, control & 0xf].map(hex_digit));
            }
            plain => out.push(plain),
        }
    }
}

const fn hex_digit(number: u8) -> u8 {
    if number < 10 { b'0' + number } else { b'a' + number - 10 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn same<T: Serialize + ?Sized>(value: &T) {
        let mut written = b"before".to_vec();
        write(&mut written, value).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written.strip_prefix("before"), Some(serde_json::to_string(value).unwrap().as_str()));
    }

    #[test]
    fn every_character_at_every_position_is_written_as_serde_json_writes_it() {
        let some = ['\u{7f}', '\u{80}', 'я', '\u{2028}', '\u{ffff}', '😀', '\u{10ffff}'];
        for character in ('\0'..='\u{7f}').chain(some) {
            for length in 0..40 {
                for position in 0..=length {
                    let text =
                        format!("{}{character}{}", "x".repeat(position), "y".repeat(length - position));
                    same(&text);
                }
            }
        }
        same("");
        same("\"\\\n\u{1}\u{1f}я\"");
    }

    #[test]
    fn every_kind_of_value_is_written_as_serde_json_writes_it() {
        #[derive(Serialize)]
        struct Unit;
        #[derive(Serialize)]
        struct New(u8);
        #[derive(Serialize)]
        struct Two(i8, char);
        #[derive(Serialize)]
        enum Kind {
            Plain,
            Holds(i32),
        }
        #[derive(Serialize)]
        struct All {
            none: Option<u8>,
            some: Option<&'static str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            absent: Option<u8>,
            numbers: (u16, i16, u32, i64, u64, f32, f64),
            empty: [u8; 0],
            unit: Unit,
            new: New,
            two: Two,
            kinds: Vec<Kind>,
            map: BTreeMap<&'static str, bool>,
            no_map: BTreeMap<&'static str, bool>,
        }
        same(&All {
            none: None,
            some: Some(","),
            absent: None,
            numbers: (0, -1, u32::MAX, i64::MIN, u64::MAX, 1.5, f64::NAN),
            empty: [],
            unit: Unit,
            new: New(7),
            two: Two(-128, '"'),
            kinds: vec![Kind::Plain, Kind::Holds(-5)],
            map: BTreeMap::from([("a\n", true), ("b", false)]),
            no_map: BTreeMap::new(),
        });
        same(&json!({ "nested": [{}, [], [null, { "a": [1.25, -3] }]], "text": "," }));
        same(&json!([]));
    }

    #[test]
    fn unsupported_values_are_errors() {
        #[derive(Serialize)]
        enum Kind {
            Pair(u8, u8),
            Named { a: u8 },
        }
        for value in [Kind::Pair(1, 2), Kind::Named { a: 1 }] {
            assert!(write(&mut Vec::new(), &value).is_err());
        }
        assert!(write(&mut Vec::new(), &BTreeMap::from([(1, 2)])).is_err());
    }
}
