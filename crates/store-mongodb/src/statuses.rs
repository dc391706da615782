//! The status words of orders. The engine writes its own words; those of other programs are read by a map.

use std::collections::BTreeMap;

use mw_domain::OrderStatus;

/// The words that other programs write, and what they mean.
const DEFAULTS: &[(&str, OrderStatus)] = &[
    ("new", OrderStatus::Created),
    ("created", OrderStatus::Created),
    ("pending", OrderStatus::Created),
    ("paid", OrderStatus::Paid),
    ("processing", OrderStatus::Paid),
    ("shipped", OrderStatus::Shipped),
    ("sent", OrderStatus::Shipped),
    ("delivered", OrderStatus::Delivered),
    ("completed", OrderStatus::Delivered),
    ("done", OrderStatus::Delivered),
    ("cancelled", OrderStatus::Cancelled),
    ("canceled", OrderStatus::Cancelled),
    ("returned", OrderStatus::Returned),
    ("refunded", OrderStatus::Returned),
];

/// Order statuses by word. The engine's own words always have their own meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statuses(BTreeMap<String, OrderStatus>);

impl Default for Statuses {
    fn default() -> Self {
        Self::new(DEFAULTS.iter().map(|(word, status)| ((*word).to_owned(), *status)))
    }
}

impl Statuses {
    pub fn new(words: impl IntoIterator<Item = (String, OrderStatus)>) -> Self {
        let own = OrderStatus::ALL.map(|status| (status.as_str().to_owned(), status));
        Self(words.into_iter().chain(own).collect())
    }

    /// Adds a word of another program. The engine's own words keep their meaning.
    pub fn insert(&mut self, word: &str, status: OrderStatus) {
        self.0.insert(word.to_owned(), OrderStatus::parse(word).unwrap_or(status));
    }

    pub fn read(&self, word: &str) -> Option<OrderStatus> {
        self.0.get(word).copied()
    }

    /// The words of a status, for queries over documents of several programs.
    pub fn words(&self, status: OrderStatus) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(_, is)| **is == status).map(|(word, _)| word.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_programs_are_read_and_unknown_ones_are_not() {
        let statuses = Statuses::default();
        assert_eq!(statuses.read("pending"), Some(OrderStatus::Created));
        assert_eq!(statuses.read("canceled"), Some(OrderStatus::Cancelled));
        assert_eq!(statuses.read("Paid"), None);
        let words: Vec<&str> = statuses.words(OrderStatus::Shipped).collect();
        assert_eq!(words, ["sent", "shipped"]);
    }

    #[test]
    fn our_own_words_keep_their_meaning() {
        let statuses = Statuses::new([("paid".to_owned(), OrderStatus::Returned)]);
        assert_eq!(statuses.read("paid"), Some(OrderStatus::Paid));
        assert_eq!(statuses.read("new"), None);
    }
}
