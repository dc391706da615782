//! Every limit of the shop, named once. The API promises these numbers to clients.

/// Lines in one cart, order or reservation.
pub const LINES_MAX: usize = 100;
/// Units of one product in one line, also after summing a repeated product.
pub const QUANTITY_MAX: u32 = 10_000;
/// Units of one product in one zone that may be put on hand.
pub const ON_HAND_MAX: u64 = 1_000_000_000;
/// Bytes of a shop-made id (`user_id`, `product_id`, `session_id`, `geo_zone`) and of an idempotency key.
pub const ID_BYTES_MAX: usize = 128;
/// Characters of a category.
pub const CATEGORY_CHARS_MAX: usize = 128;
pub const NAME_CHARS_MAX: usize = 256;
pub const DESCRIPTION_CHARS_MAX: usize = 20_000;
/// Entries in a product's attributes or a session's data.
pub const ENTRIES_MAX: usize = 64;
pub const ENTRY_KEY_CHARS_MAX: usize = 64;
pub const ENTRY_VALUE_CHARS_MAX: usize = 1_024;
/// Note, delivery address, payment method, reason, user agent and other short free text.
pub const TEXT_CHARS_MAX: usize = 1_024;
pub const RESERVATION_TTL_SECONDS_MAX: u32 = 86_400;
/// Days in one listing of orders by period.
pub const ORDER_PERIOD_DAYS_MAX: i64 = 31;
/// Days in one sales report.
pub const SALES_PERIOD_DAYS_MAX: i64 = 92;
/// Days that line changes stay readable.
pub const CART_HISTORY_DAYS: i64 = 30;
/// Days that a reservation stays readable after its expiry.
pub const RESERVATION_HISTORY_DAYS: i64 = 30;
/// An idempotency key is remembered this long.
pub const IDEMPOTENCY_HOURS: i64 = 48;

/// A client's value that breaks a limit; `field` is its path in the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct InvalidField {
    pub field: String,
    pub detail: String,
}

impl InvalidField {
    pub fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

/// Checks that a text has at most `chars_max` characters.
pub fn check_text(field: &str, text: &str, chars_max: usize) -> Result<(), InvalidField> {
    if text.len() > chars_max && text.chars().count() > chars_max {
        return Err(InvalidField::new(field, format!("at most {chars_max} characters")));
    }
    Ok(())
}

/// Checks the number of entries of a string map and the length of its keys and values.
pub fn check_entries<'a>(
    field: &str,
    entries: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
) -> Result<(), InvalidField> {
    if entries.len() > ENTRIES_MAX {
        return Err(InvalidField::new(field, format!("at most {ENTRIES_MAX} entries")));
    }
    for (key, value) in entries {
        if key.is_empty() {
            return Err(InvalidField::new(field, "a key has at least 1 character"));
        }
        check_text(field, key, ENTRY_KEY_CHARS_MAX).map_err(|_| {
            InvalidField::new(field, format!("a key has at most {ENTRY_KEY_CHARS_MAX} characters"))
        })?;
        check_text(&format!("{field}.{key}"), value, ENTRY_VALUE_CHARS_MAX)?;
    }
    Ok(())
}

/// Checks that a quantity is 1 to [`QUANTITY_MAX`].
pub fn check_quantity(field: &str, quantity: u64) -> Result<u32, InvalidField> {
    u32::try_from(quantity)
        .ok()
        .filter(|quantity| (1..=QUANTITY_MAX).contains(quantity))
        .ok_or_else(|| InvalidField::new(field, format!("a quantity is 1 to {QUANTITY_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_counted_in_characters() {
        assert!(check_text("name", &"я".repeat(256), NAME_CHARS_MAX).is_ok());
        assert!(check_text("name", &"я".repeat(257), NAME_CHARS_MAX).is_err());
    }

    #[test]
    fn entries_are_bounded_in_number_and_size() {
        let many: Vec<String> = (0..65).map(|at| at.to_string()).collect();
        assert!(check_entries("data", many.iter().map(|key| (key.as_str(), "v"))).is_err());
        assert!(check_entries("data", many.iter().take(64).map(|key| (key.as_str(), "v"))).is_ok());
        let long = "x".repeat(1_025);
        let error = check_entries("data", [("k", long.as_str())].into_iter()).unwrap_err();
        assert_eq!(error.field, "data.k");
        assert!(check_entries("data", [(&*"k".repeat(65), "v")].into_iter()).is_err());
        assert!(check_entries("data", [("", "v")].into_iter()).is_err());
    }

    #[test]
    fn a_quantity_has_both_bounds() {
        assert!(check_quantity("quantity", 0).is_err());
        assert_eq!(check_quantity("quantity", 10_000), Ok(10_000));
        assert!(check_quantity("quantity", 10_001).is_err());
        assert!(check_quantity("quantity", u64::MAX).is_err());
    }
}
