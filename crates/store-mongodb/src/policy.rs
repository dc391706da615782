//! Read preference, read concern and allowed staleness of each call.
//!
//! A driver refuses `maxStalenessSeconds` below 90, and the table asks for 30 s: the engine measures each member's lag
//! (`lag.rs`) and reads on the primary where no secondary is fresh enough. Reads that a sale or a user's own view
//! depends on always go to the primary, so they cannot be configured.

pub mod lag;

use std::fmt;
use std::time::Duration;

/// The staleness that the table allows most calls.
const STALENESS: Duration = Duration::from_secs(30);

/// A call of the service, as far as reads differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Lists of products by category and price, and the list of categories.
    Catalogue,
    /// One product.
    Product,
    /// Stock that is shown, and decides nothing.
    StockLevel,
    /// Stock and price on which a sale is decided.
    Checkout,
    /// Lists of orders over a period for the back office.
    OrderArchive,
    /// The orders of a user.
    OrderHistory,
    /// One order and its events.
    OrderStatus,
    /// Sums of sales.
    OrderReports,
    /// The active cart, and the carts of an owner.
    Cart,
    /// Merging a guest's cart into a user's.
    CartMerge,
    /// Search for idle carts.
    CartScan,
    /// Sessions and idempotency keys.
    Session,
}

/// The server that a read goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preference {
    Primary,
    /// A fresh secondary; the primary where there is none.
    SecondaryPreferred,
    /// The same: the service never fails because a secondary is missing.
    Secondary,
}

/// What writes of this process make a later read of it go to the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    Products,
    Stock,
    Orders,
    Carts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPolicy {
    pub preference: Preference,
    /// Zero: the result reflects every acknowledged write.
    pub max_staleness: Duration,
}

/// The policy of every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy([ReadPolicy; Call::ALL.len()]);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("there is no call \"{0}\"; `mw policy --store mongodb` lists the calls")]
    NoCall(String),
    #[error("there is no setting \"{0}\"; a call has preference and max_staleness")]
    NoSetting(String),
    #[error("\"{0}\" is no read preference: it is primary, secondaryPreferred or secondary")]
    NoPreference(String),
    #[error("{call} is always read on the primary: {reason}")]
    PrimaryOnly { call: Call, reason: &'static str },
    #[error("\"{0}\" is no staleness: it is 1s or more")]
    NoStaleness(String),
}

impl Call {
    pub const ALL: [Self; 12] = [
        Self::Catalogue,
        Self::Product,
        Self::StockLevel,
        Self::Checkout,
        Self::OrderArchive,
        Self::OrderHistory,
        Self::OrderStatus,
        Self::OrderReports,
        Self::Cart,
        Self::CartMerge,
        Self::CartScan,
        Self::Session,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Catalogue => "catalogue",
            Self::Product => "product",
            Self::StockLevel => "stock_level",
            Self::Checkout => "checkout",
            Self::OrderArchive => "order_archive",
            Self::OrderHistory => "order_history",
            Self::OrderStatus => "order_status",
            Self::OrderReports => "order_reports",
            Self::Cart => "cart",
            Self::CartMerge => "cart_merge",
            Self::CartScan => "cart_scan",
            Self::Session => "session",
        }
    }

    pub const fn collection(self) -> &'static str {
        match self {
            Self::Catalogue | Self::Product | Self::StockLevel | Self::Checkout => "products",
            Self::OrderArchive | Self::OrderHistory | Self::OrderStatus | Self::OrderReports => "orders",
            Self::Cart | Self::CartMerge | Self::CartScan => "carts",
            Self::Session => "user_sessions",
        }
    }

    /// Why a call is read on the primary whatever the configuration says; `None` where it may be stale.
    pub const fn primary_only(self) -> Option<&'static str> {
        match self {
            Self::Checkout => Some("a sale is decided on current stock and the current price"),
            Self::OrderHistory => Some("a user sees an order at once"),
            Self::OrderStatus => Some("the status is that of the last change"),
            Self::Cart => Some("a cart shows its last change, and concurrent changes are decided on it"),
            Self::CartMerge => Some("two carts are read and written together"),
            Self::Session => Some("a repeated request finds the first one"),
            Self::Catalogue
            | Self::Product
            | Self::StockLevel
            | Self::OrderArchive
            | Self::OrderReports
            | Self::CartScan => None,
        }
    }

    /// Writes of the same process after which the call goes to the primary for as long as a secondary may lag: a user reads
    /// their own writes.
    pub(crate) const fn own_writes(self) -> Written {
        match self {
            Self::Catalogue | Self::Product | Self::Checkout => Written::Products,
            Self::StockLevel => Written::Stock,
            Self::OrderArchive | Self::OrderHistory | Self::OrderStatus | Self::OrderReports => {
                Written::Orders
            }
            Self::Cart | Self::CartMerge | Self::CartScan | Self::Session => Written::Carts,
        }
    }

    /// The read concern of the call's reads.
    pub const fn concern(self) -> &'static str {
        match self {
            Self::Checkout | Self::CartMerge => "snapshot",
            _ => "majority",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|call| call.name() == name)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Preference {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::SecondaryPreferred => "secondaryPreferred",
            Self::Secondary => "secondary",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Primary, Self::SecondaryPreferred, Self::Secondary].into_iter().find(|it| it.name() == text)
    }
}

impl ReadPolicy {
    const PRIMARY: Self = Self { preference: Preference::Primary, max_staleness: Duration::ZERO };

    const fn stale(preference: Preference) -> Self {
        Self { preference, max_staleness: STALENESS }
    }
}

/// The table of paper 002.
impl Default for Policy {
    fn default() -> Self {
        Self(Call::ALL.map(|call| match call {
            Call::Catalogue | Call::Product | Call::StockLevel => {
                ReadPolicy::stale(Preference::SecondaryPreferred)
            }
            Call::OrderArchive | Call::OrderReports | Call::CartScan => {
                ReadPolicy::stale(Preference::Secondary)
            }
            _ => ReadPolicy::PRIMARY,
        }))
    }
}

impl Policy {
    /// Every call on the primary.
    pub fn primary_only() -> Self {
        Self(Call::ALL.map(|_| ReadPolicy::PRIMARY))
    }

    /// Whether any call may read on a secondary.
    pub fn has_stale_reads(&self) -> bool {
        self.0.iter().any(|policy| policy.preference != Preference::Primary)
    }

    pub fn of(&self, call: Call) -> ReadPolicy {
        let index = Call::ALL.iter().position(|it| *it == call);
        index.and_then(|index| self.0.get(index)).copied().unwrap_or(ReadPolicy::PRIMARY)
    }

    /// Sets `preference` of a call.
    pub fn set_preference(&mut self, call: &str, text: &str) -> Result<(), PolicyError> {
        let preference = Preference::parse(text).ok_or_else(|| PolicyError::NoPreference(text.to_owned()))?;
        self.change(call, preference != Preference::Primary, |policy| {
            policy.preference = preference;
            policy.max_staleness = match preference {
                Preference::Primary => Duration::ZERO,
                _ if policy.max_staleness.is_zero() => STALENESS,
                _ => policy.max_staleness,
            };
        })
    }

    /// Sets `max_staleness` of a call.
    pub fn set_max_staleness(&mut self, call: &str, staleness: Duration) -> Result<(), PolicyError> {
        if staleness < Duration::from_secs(1) {
            return Err(PolicyError::NoStaleness(format!("{staleness:?}")));
        }
        self.change(call, true, |policy| {
            if policy.preference != Preference::Primary {
                policy.max_staleness = staleness;
            }
        })
    }

    fn change(
        &mut self,
        name: &str,
        becomes_stale: bool,
        change: impl FnOnce(&mut ReadPolicy),
    ) -> Result<(), PolicyError> {
        let call = Call::named(name).ok_or_else(|| PolicyError::NoCall(name.to_owned()))?;
        if let (Some(reason), true) = (call.primary_only(), becomes_stale) {
            return Err(PolicyError::PrimaryOnly { call, reason });
        }
        let index = Call::ALL.iter().position(|it| *it == call);
        if let Some(policy) = index.and_then(|index| self.0.get_mut(index)) {
            change(policy);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_table_of_the_paper() {
        let policy = Policy::default();
        let stale = |call| (policy.of(call).preference.name(), policy.of(call).max_staleness.as_secs());
        assert_eq!(stale(Call::Catalogue), ("secondaryPreferred", 30));
        assert_eq!(stale(Call::Product), ("secondaryPreferred", 30));
        assert_eq!(stale(Call::OrderReports), ("secondary", 30));
        assert_eq!(stale(Call::CartScan), ("secondary", 30));
        for call in Call::ALL.into_iter().filter(|call| call.primary_only().is_some()) {
            assert_eq!(stale(call), ("primary", 0), "{call}");
        }
        assert!(Call::ALL.iter().all(|call| Policy::primary_only().of(*call) == ReadPolicy::PRIMARY));
    }

    #[test]
    fn a_call_is_changed_by_name_and_a_sale_stays_on_the_primary() {
        let mut policy = Policy::default();
        policy.set_preference("catalogue", "primary").unwrap();
        assert_eq!(policy.of(Call::Catalogue), ReadPolicy::PRIMARY);
        policy.set_preference("catalogue", "secondary").unwrap();
        policy.set_max_staleness("catalogue", Duration::from_secs(5)).unwrap();
        assert_eq!(policy.of(Call::Catalogue).max_staleness, Duration::from_secs(5));
        let refused = |result: Result<(), PolicyError>| result.unwrap_err().to_string();
        assert_eq!(
            refused(policy.set_preference("checkout", "secondary")),
            "checkout is always read on the primary: a sale is decided on current stock and the current price"
        );
        policy.set_preference("checkout", "primary").unwrap();
        assert!(refused(policy.set_preference("checkuot", "primary")).contains("there is no call"));
        assert!(refused(policy.set_preference("cart_scan", "nearest")).contains("is no read preference"));
        assert!(refused(policy.set_max_staleness("cart", STALENESS)).contains("always read on the primary"));
        assert!(refused(policy.set_max_staleness("product", Duration::ZERO)).contains("is no staleness"));
    }
}
