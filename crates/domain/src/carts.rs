//! Carts: lines, status, and merging a guest's cart into a user's.
//!
//! Lines are sorted by product id, one per product. Every change makes the version grow and moves the expiry; a missing cart has
//! version 0. The versions of an owner's next cart are above those of the carts before it.

use crate::ids::{CartId, OrderId, ProductId, SessionId, UserId};
use crate::limits::{LINES_MAX, QUANTITY_MAX};
use crate::stock::Demand;
use crate::time::Timestamp;

/// The owner of a cart: a user, or the session of a guest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    User(UserId),
    Session(SessionId),
}

impl Owner {
    pub fn id(&self) -> &str {
        match self {
            Self::User(id) => id.as_str(),
            Self::Session(id) => id.as_str(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CartStatus {
    Active,
    Ordered,
    Abandoned,
}

impl CartStatus {
    pub const ALL: [Self; 3] = [Self::Active, Self::Ordered, Self::Abandoned];

    /// The name in every representation: JSON, CQL, exports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Ordered => "ordered",
            Self::Abandoned => "abandoned",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CartLine {
    pub product_id: ProductId,
    pub quantity: u32,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cart {
    pub cart_id: CartId,
    pub owner: Owner,
    pub status: CartStatus,
    pub version: u64,
    /// Sorted by product id, one per product.
    pub lines: Vec<CartLine>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub expires_at: Timestamp,
    pub merged_into: Option<CartId>,
    pub order_id: Option<OrderId>,
}

/// One line change in the history; quantity 0 is a removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CartChange {
    pub at: Timestamp,
    pub cart_id: CartId,
    /// The cart's version after the change.
    pub version: u64,
    pub product_id: ProductId,
    pub quantity: u32,
}

/// How long a cart lives after its last change, by the kind of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CartLifetime {
    pub user_ms: i64,
    pub guest_ms: i64,
}

impl CartLifetime {
    pub fn expiry(&self, owner: &Owner, changed_at: Timestamp) -> Timestamp {
        changed_at.plus_millis(match owner {
            Owner::User(_) => self.user_ms,
            Owner::Session(_) => self.guest_ms,
        })
    }
}

/// Decides the quantity of a product that is in both carts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MergeMode {
    #[default]
    Sum,
    Max,
    Guest,
    User,
}

impl MergeMode {
    fn quantity(self, user: u32, guest: u32) -> u32 {
        match self {
            Self::Sum => user.saturating_add(guest).min(QUANTITY_MAX),
            Self::Max => user.max(guest),
            Self::Guest => guest,
            Self::User => user,
        }
    }
}

/// What a merge did to one line of the user's cart; `from` is 0 for a new line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeChange {
    pub product_id: ProductId,
    pub from: u32,
    pub to: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cart holds at most {LINES_MAX} lines")]
pub struct CartTooLarge;

impl Cart {
    /// A new, empty, active cart. It is stored with its first change. `last_version` is the newest version of the owner's earlier
    /// carts that is known, or 0. Those that are forgotten expired long ago: the time alone puts the new versions above theirs.
    pub fn open(cart_id: CartId, owner: Owner, now: Timestamp, last_version: u64) -> Self {
        let now_micros = u64::try_from(now.as_millis()).unwrap_or(0).saturating_mul(1_000);
        Self {
            cart_id,
            owner,
            status: CartStatus::Active,
            version: last_version.max(now_micros),
            lines: Vec::new(),
            created_at: now,
            updated_at: now,
            expires_at: now,
            merged_into: None,
            order_id: None,
        }
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.expires_at
    }

    /// The rule of the idle-cart report: active and unchanged since `idle_since`, or abandoned and not merged.
    pub fn is_idle(&self, idle_since: Timestamp) -> bool {
        match self.status {
            CartStatus::Active => self.updated_at <= idle_since,
            CartStatus::Abandoned => self.merged_into.is_none(),
            CartStatus::Ordered => false,
        }
    }

    /// The stock demands of an order of the whole cart.
    pub fn demands(&self) -> Vec<Demand> {
        let demand =
            |line: &CartLine| Demand { product_id: line.product_id.clone(), quantity: line.quantity };
        self.lines.iter().map(demand).collect()
    }

    /// Adds the line or replaces its quantity.
    pub fn set_line(
        &mut self,
        product_id: ProductId,
        quantity: u32,
        now: Timestamp,
        lifetime: &CartLifetime,
    ) -> Result<(), CartTooLarge> {
        match self.position(&product_id) {
            Err(_) if self.lines.len() >= LINES_MAX => return Err(CartTooLarge),
            Err(at) => self.lines.insert(at, CartLine { product_id, quantity, updated_at: now }),
            Ok(at) => {
                if let Some(line) = self.lines.get_mut(at) {
                    line.quantity = quantity;
                    line.updated_at = now;
                }
            }
        }
        self.changed(now, lifetime);
        Ok(())
    }

    /// Removes the line; `false` without a change if there is no such line.
    pub fn remove_line(&mut self, product_id: &ProductId, now: Timestamp, lifetime: &CartLifetime) -> bool {
        let Ok(at) = self.position(product_id) else {
            return false;
        };
        self.lines.remove(at);
        self.changed(now, lifetime);
        true
    }

    pub fn abandon(&mut self, now: Timestamp, lifetime: &CartLifetime) {
        self.status = CartStatus::Abandoned;
        self.changed(now, lifetime);
    }

    pub fn become_order(&mut self, order_id: OrderId, now: Timestamp, lifetime: &CartLifetime) {
        self.status = CartStatus::Ordered;
        self.order_id = Some(order_id);
        self.changed(now, lifetime);
    }

    /// Merges the guest's lines into this cart and closes the guest's cart. A guest cart without lines stays open and
    /// changes nothing.
    pub fn merge_from(
        &mut self,
        guest: &mut Self,
        mode: MergeMode,
        now: Timestamp,
        lifetime: &CartLifetime,
    ) -> Vec<MergeChange> {
        if guest.lines.is_empty() {
            return Vec::new();
        }
        let changes = merge_changes(&self.lines, &guest.lines, mode);
        for change in &changes {
            let line =
                CartLine { product_id: change.product_id.clone(), quantity: change.to, updated_at: now };
            match self.position(&change.product_id) {
                Ok(at) => {
                    if let Some(slot) = self.lines.get_mut(at) {
                        *slot = line;
                    }
                }
                Err(at) => self.lines.insert(at, line),
            }
        }
        if !changes.is_empty() {
            self.changed(now, lifetime);
        }
        guest.merged_into = Some(self.cart_id);
        guest.abandon(now, lifetime);
        changes
    }

    /// The history rows of the merge that this cart has just gone through.
    pub fn merge_history(&self, changes: &[MergeChange]) -> Vec<CartChange> {
        changes
            .iter()
            .map(|change| CartChange {
                at: self.updated_at,
                cart_id: self.cart_id,
                version: self.version,
                product_id: change.product_id.clone(),
                quantity: change.to,
            })
            .collect()
    }

    /// The history row of the line change that this cart has just gone through.
    pub fn line_history(&self, product_id: &ProductId) -> CartChange {
        let quantity =
            self.position(product_id).ok().and_then(|at| self.lines.get(at)).map_or(0, |line| line.quantity);
        CartChange {
            at: self.updated_at,
            cart_id: self.cart_id,
            version: self.version,
            product_id: product_id.clone(),
            quantity,
        }
    }

    fn position(&self, product_id: &ProductId) -> Result<usize, usize> {
        self.lines.binary_search_by(|line| line.product_id.cmp(product_id))
    }

    /// `updated_at` never decreases, even if the clocks of two requests disagree.
    fn changed(&mut self, now: Timestamp, lifetime: &CartLifetime) {
        self.version += 1;
        self.updated_at = self.updated_at.max(now);
        self.expires_at = lifetime.expiry(&self.owner, self.updated_at);
    }
}

/// The changes of a merge to the user's lines, by product id. Beyond [`LINES_MAX`] lines the user's own are kept and the
/// guest's oldest are dropped.
pub fn merge_changes(user: &[CartLine], guest: &[CartLine], mode: MergeMode) -> Vec<MergeChange> {
    let own = |product_id: &ProductId| {
        user.binary_search_by(|line| line.product_id.cmp(product_id)).ok().and_then(|at| user.get(at))
    };
    let mut new: Vec<&CartLine> = guest.iter().filter(|line| own(&line.product_id).is_none()).collect();
    new.sort_by(|a, b| b.updated_at.cmp(&a.updated_at).then_with(|| a.product_id.cmp(&b.product_id)));
    new.truncate(LINES_MAX.saturating_sub(user.len()));

    let added = new.into_iter().map(|line| MergeChange {
        product_id: line.product_id.clone(),
        from: 0,
        to: line.quantity,
    });
    let replaced = guest.iter().filter_map(|line| {
        let from = own(&line.product_id)?.quantity;
        let to = mode.quantity(from, line.quantity);
        (from != to).then(|| MergeChange { product_id: line.product_id.clone(), from, to })
    });
    let mut changes: Vec<MergeChange> = added.chain(replaced).collect();
    changes.sort_by(|a, b| a.product_id.cmp(&b.product_id));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const LIFETIME: CartLifetime = CartLifetime { user_ms: 1_000, guest_ms: 500 };

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn product(name: &str) -> ProductId {
        ProductId::parse(name).unwrap()
    }

    fn cart(kind: &str, lines: &[(&str, u32)]) -> Cart {
        let owner = match kind {
            "user" => Owner::User(UserId::parse("u").unwrap()),
            _ => Owner::Session(SessionId::parse("s").unwrap()),
        };
        let mut cart = Cart::open(CartId::new(Uuid::from_u128(kind.len() as u128)), owner, at(0), 0);
        for (order, (name, quantity)) in lines.iter().enumerate() {
            cart.set_line(product(name), *quantity, at(i64::try_from(order).unwrap()), &LIFETIME).unwrap();
        }
        cart
    }

    fn quantities(cart: &Cart) -> Vec<(&str, u32)> {
        cart.lines.iter().map(|line| (line.product_id.as_str(), line.quantity)).collect()
    }

    #[test]
    fn lines_are_kept_by_product_and_replaced_in_place() {
        let mut cart = cart("user", &[("b", 1), ("a", 2), ("b", 3)]);
        assert_eq!(quantities(&cart), [("a", 2), ("b", 3)]);
        assert_eq!(cart.version, 3);
        assert!(cart.remove_line(&product("a"), at(9), &LIFETIME));
        assert!(!cart.remove_line(&product("a"), at(10), &LIFETIME));
        assert_eq!((cart.version, cart.updated_at, cart.expires_at), (4, at(9), at(1_009)));
    }

    #[test]
    fn versions_of_the_next_cart_are_above_those_of_the_last() {
        let owner = Owner::User(UserId::parse("u").unwrap());
        let id = CartId::new(Uuid::nil());
        for (now_ms, last_version, first) in
            [(0, 0, 1), (0, 7, 8), (2, 7, 2_001), (2, 2_000, 2_001), (-5, 0, 1)]
        {
            let mut cart = Cart::open(id, owner.clone(), at(now_ms), last_version);
            cart.set_line(product("a"), 1, at(now_ms), &LIFETIME).unwrap();
            assert_eq!(cart.version, first, "{now_ms} ms, {last_version}");
        }
        let latest = Cart::open(id, owner, Timestamp::from_millis(7_258_118_400_000), 0);
        assert!(latest.version < 1 << 53, "a number in JSON until the year 2200");
    }

    #[test]
    fn the_hundred_and_first_line_is_refused_and_a_known_one_is_not() {
        let names: Vec<String> = (0..100).map(|at| format!("p{at}")).collect();
        let lines: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let mut cart = cart("user", &lines);
        assert_eq!(cart.set_line(product("q"), 1, at(1), &LIFETIME), Err(CartTooLarge));
        assert_eq!(cart.set_line(product("p5"), 7, at(1), &LIFETIME), Ok(()));
    }

    #[test]
    fn each_mode_decides_a_product_in_both_carts() {
        for (mode, expected) in
            [(MergeMode::Sum, 7), (MergeMode::Max, 5), (MergeMode::Guest, 2), (MergeMode::User, 5)]
        {
            let mut user = cart("user", &[("a", 5), ("own", 1)]);
            let mut guest = cart("session", &[("a", 2), ("new", 4)]);
            let changes = user.merge_from(&mut guest, mode, at(50), &LIFETIME);
            assert_eq!(quantities(&user), [("a", expected), ("new", 4), ("own", 1)], "{mode:?}");
            assert_eq!(changes.len(), if expected == 5 { 1 } else { 2 }, "{mode:?}");
            assert_eq!((guest.status, guest.merged_into), (CartStatus::Abandoned, Some(user.cart_id)));
        }
    }

    #[test]
    fn a_merge_caps_the_sum_and_drops_the_guests_oldest_lines() {
        let names: Vec<String> = (0..99).map(|at| format!("p{at}")).collect();
        let lines: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 9_999)).collect();
        let mut user = cart("user", &lines);
        let mut guest = cart("session", &[("oldest", 1), ("p1", 2), ("newest", 1)]);
        let changes = user.merge_from(&mut guest, MergeMode::Sum, at(500), &LIFETIME);
        assert_eq!(user.lines.len(), LINES_MAX);
        let listed: Vec<(&str, u32, u32)> =
            changes.iter().map(|change| (change.product_id.as_str(), change.from, change.to)).collect();
        assert_eq!(listed, [("newest", 0, 1), ("p1", 9_999, 10_000)]);
    }

    #[test]
    fn a_merge_without_guest_lines_leaves_both_carts_alone() {
        let mut user = cart("user", &[("a", 1)]);
        let mut guest = cart("session", &[]);
        let before = (user.clone(), guest.clone());
        assert!(user.merge_from(&mut guest, MergeMode::Sum, at(9), &LIFETIME).is_empty());
        assert_eq!((user, guest), before);
    }

    #[test]
    fn a_merge_that_changes_no_line_still_closes_the_guests_cart() {
        let mut user = cart("user", &[("a", 3)]);
        let mut guest = cart("session", &[("a", 2)]);
        assert!(user.merge_from(&mut guest, MergeMode::Max, at(9), &LIFETIME).is_empty());
        assert_eq!((user.version, guest.status), (1, CartStatus::Abandoned));
    }
}
