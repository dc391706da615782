//! The operations that are compared, and the size of the data set. Both are the same on every side.

/// One kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    CartRead,
    CartWrite,
    Checkout,
    HotOrder,
    ProductRead,
}

pub(crate) const ON_ONE_MACHINE: &[Work] = &[Work::CartRead, Work::CartWrite, Work::Checkout, Work::HotOrder];
pub(crate) const ON_CASSANDRA: &[Work] = &[Work::ProductRead, Work::CartRead, Work::CartWrite];

impl Work {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CartRead => "cart read",
            Self::CartWrite => "cart write",
            Self::Checkout => "checkout",
            Self::HotOrder => "order of one hot product",
            Self::ProductRead => "product read",
        }
    }
}

/// The data before the first request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) products: u64,
    pub(crate) zones: u64,
    /// Users whose carts are changed; each begins with a line.
    pub(crate) users: u64,
    /// Users whose carts are read and checked out; each begins with two lines.
    pub(crate) buyers: u64,
    /// Of each product in each zone: enough for every order.
    pub(crate) units: u64,
}

impl Sizes {
    pub(crate) const ON_ONE_MACHINE: Self =
        Self { products: 10_000, zones: 5, users: 20_000, buyers: 60_000, units: 100_000_000 };
    pub(crate) const ON_CASSANDRA: Self =
        Self { products: 1_000, zones: 1, users: 2_000, buyers: 2_000, units: 100_000_000 };
}

/// Products that one user puts into the cart.
pub(crate) const WISHES: u64 = 8;

/// Scatters consecutive numbers, so that clients do not access neighbouring rows.
pub(crate) const fn scattered(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

/// The two products in the cart of a buyer.
pub(crate) const fn basket(buyer: u64, products: u64) -> [u64; 2] {
    let first = scattered(buyer) % products;
    [first, (first + 1 + scattered(!buyer) % (products - 1)) % products]
}

/// The user of a request, and the product that goes into the cart.
pub(crate) const fn wish(sequence: u64, sizes: &Sizes) -> (u64, u64) {
    let sampled = scattered(sequence);
    let user = sampled % sizes.users;
    (user, scattered(user * WISHES + (sampled >> 40) % WISHES) % sizes.products)
}

pub(crate) const fn zone(sequence: u64, zones: u64) -> u64 {
    scattered(sequence) % zones
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_basket_has_two_different_products() {
        for products in [2, 10, 10_000] {
            for buyer in 0..5_000 {
                let [first, second] = basket(buyer, products);
                assert!(first != second && first < products && second < products, "{buyer} {products}");
            }
        }
    }

    #[test]
    fn a_user_has_a_few_products_and_every_user_occurs() {
        let sizes = Sizes { users: 50, ..Sizes::ON_ONE_MACHINE };
        let sampled: BTreeSet<(u64, u64)> = (0..20_000).map(|sequence| wish(sequence, &sizes)).collect();
        let users: BTreeSet<u64> = sampled.iter().map(|(user, _)| *user).collect();
        assert_eq!(users.len(), 50);
        assert!(sampled.len() <= 50 * 8, "{}", sampled.len());
        assert!(sampled.len() > 50 * 6, "{}", sampled.len());
    }
}
