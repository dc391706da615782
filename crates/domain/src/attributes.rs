//! The attributes of a product: text by name, sorted by name.
//!
//! Products are read far more often than written, and a listing reads many at once. All attributes therefore share one
//! allocation for their text.

use std::collections::BTreeMap;
use std::fmt;

/// Text by name. No name occurs twice.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Names and values, one after another.
    text: String,
    /// The end offset of each name and each value in `text`.
    ends: Vec<u32>,
}

impl Attributes {
    /// Builds attributes from their stored parts: `ends` holds the end offset of each name and each value in `text`.
    /// `None` if an offset does not fit the text or the names do not ascend.
    pub fn from_parts(text: String, ends: Vec<u32>) -> Option<Self> {
        let whole = ends.last().map_or(0, |end| *end as usize) == text.len() && ends.len().is_multiple_of(2);
        let made = Self { text, ends };
        (whole && made.is_sound()).then_some(made)
    }

    fn is_sound(&self) -> bool {
        let mut start = 0;
        let mut before = None;
        for end in self.ends.as_chunks::<2>().0 {
            let [name, value] = end.map(|end| end as usize);
            let (Some(this), Some(_)) = (self.text.get(start..name), self.text.get(name..value)) else {
                return false;
            };
            if before.is_some_and(|before| before >= this) {
                return false;
            }
            (start, before) = (value, Some(this));
        }
        true
    }

    pub fn len(&self) -> usize {
        self.ends.len() / 2
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find_map(|(this, value)| (this == name).then_some(value))
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let mut start = 0;
        self.ends.as_chunks::<2>().0.iter().map(move |end| {
            let [name, value] = end.map(|end| end as usize);
            let pair = (self.text.get(start..name), self.text.get(name..value));
            start = value;
            (pair.0.unwrap_or_default(), pair.1.unwrap_or_default())
        })
    }

    /// Bytes of all names and values.
    pub fn text_len(&self) -> usize {
        self.text.len()
    }

    /// Appends an entry; `name` must sort after every present name.
    fn push(&mut self, name: &str, value: &str) {
        for text in [name, value] {
            self.text.push_str(text);
            // The limits of a product keep its text far below 4 GiB; a longer one is refused earlier.
            self.ends.push(u32::try_from(self.text.len()).unwrap_or(u32::MAX));
        }
    }
}

/// Of a repeated name the last value counts, as in a map.
impl<N: AsRef<str> + Ord, V: AsRef<str>> FromIterator<(N, V)> for Attributes {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        pairs.into_iter().collect::<BTreeMap<N, V>>().into()
    }
}

impl<N: AsRef<str> + Ord, V: AsRef<str>> From<BTreeMap<N, V>> for Attributes {
    fn from(map: BTreeMap<N, V>) -> Self {
        let mut made = Self::default();
        for (name, value) in &map {
            made.push(name.as_ref(), value.as_ref());
        }
        made
    }
}

impl<N: AsRef<str> + Ord, V: AsRef<str>, const LEN: usize> From<[(N, V); LEN]> for Attributes {
    fn from(pairs: [(N, V); LEN]) -> Self {
        pairs.into_iter().collect()
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_equal_a_map_of_the_same_entries() {
        let map = BTreeMap::from([("цвет", "чёрный"), ("a", ""), ("", "empty"), ("b", "2")]);
        let attributes = Attributes::from(map.clone());
        assert!(attributes.iter().eq(map.iter().map(|(name, value)| (*name, *value))));
        assert_eq!((attributes.len(), attributes.is_empty()), (4, false));
        for (name, value) in &map {
            assert_eq!(attributes.get(name), Some(*value));
        }
        assert_eq!(attributes.get("none"), None);
        assert_eq!(format!("{attributes:?}"), format!("{map:?}"));
        let repeated = Attributes::from([("b", "1"), ("a", "2"), ("b", "3")]);
        assert_eq!(repeated, Attributes::from([("a", "2"), ("b", "3")]));
        assert!(Attributes::default().iter().next().is_none());
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let made = |text: &str, ends: &[u32]| Attributes::from_parts(text.to_owned(), ends.to_vec());
        assert_eq!(made("a1b2", &[1, 2, 3, 4]), Some(Attributes::from([("a", "1"), ("b", "2")])));
        assert_eq!(made("", &[]), Some(Attributes::default()));
        for (text, ends) in [
            ("a1b2", &[1, 2, 3][..]),
            ("a1b2", &[1, 2]),
            ("a1b2", &[1, 2, 3, 5]),
            ("a1b2", &[2, 1, 3, 4]),
            ("b1a2", &[1, 2, 3, 4]),
            ("a1a2", &[1, 2, 3, 4]),
            ("я", &[1, 2]),
            ("a", &[]),
        ] {
            assert_eq!(made(text, ends), None, "{text} {ends:?}");
        }
    }
}
