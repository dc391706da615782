//! How many shards an operation of the engine asks under each shard key. A query that has the whole key, or a prefix of a
//! range key, is sent to the shards that own those values; any other one to all shards.

use mw_domain::Owner;

use crate::shard_keys::{KeyKind, ShardKey, ShardKeys};

/// An operation of the engine on a sharded collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    OrderInsert,
    OrderById,
    UserOrders,
    OrdersOfPeriod,
    ProductById,
    ProductsOfCategory,
    Categories,
    StockChange,
    CartInsert,
    CartOfUser,
    CartOfSession,
    CartChange,
    IdleCarts,
}

/// How many shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Targeting {
    One,
    /// Those that own a range of values.
    Several,
    All,
}

impl Targeting {
    pub const ALL: [Self; 3] = [Self::One, Self::Several, Self::All];

    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Several => "several",
            Self::All => "all",
        }
    }
}

impl Operation {
    pub const ALL: [Self; 13] = [
        Self::OrderInsert,
        Self::OrderById,
        Self::UserOrders,
        Self::OrdersOfPeriod,
        Self::ProductById,
        Self::ProductsOfCategory,
        Self::Categories,
        Self::StockChange,
        Self::CartInsert,
        Self::CartOfUser,
        Self::CartOfSession,
        Self::CartChange,
        Self::IdleCarts,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::OrderInsert => "order_insert",
            Self::OrderById => "order_by_id",
            Self::UserOrders => "user_orders",
            Self::OrdersOfPeriod => "orders_of_period",
            Self::ProductById => "product_by_id",
            Self::ProductsOfCategory => "products_of_category",
            Self::Categories => "categories",
            Self::StockChange => "stock_change",
            Self::CartInsert => "cart_insert",
            Self::CartOfUser => "cart_of_user",
            Self::CartOfSession => "cart_of_session",
            Self::CartChange => "cart_change",
            Self::IdleCarts => "idle_carts",
        }
    }

    pub const fn collection(self) -> &'static str {
        match self {
            Self::OrderInsert | Self::OrderById | Self::UserOrders | Self::OrdersOfPeriod => "orders",
            Self::ProductById | Self::ProductsOfCategory | Self::Categories | Self::StockChange => "products",
            _ => "carts",
        }
    }

    /// Finding the cart of an owner.
    pub(crate) const fn cart_of(owner: &Owner) -> Self {
        match owner {
            Owner::User(_) => Self::CartOfUser,
            Owner::Session(_) => Self::CartOfSession,
        }
    }

    /// The fields that the operation's filter fixes to one value; an insert has all fields.
    pub const fn fixed_fields(self) -> &'static [&'static str] {
        match self {
            Self::OrderInsert => &["_id", "customer_id", "user_id"],
            Self::OrderById | Self::ProductById | Self::StockChange => &["_id"],
            Self::UserOrders => &["customer_id", "user_id"],
            Self::ProductsOfCategory => &["category"],
            Self::OrdersOfPeriod | Self::Categories | Self::IdleCarts => &[],
            Self::CartInsert => &["_id", "owner", "user_id", "session_id"],
            Self::CartOfUser => &["owner", "user_id"],
            // A guest's cart has no user.
            Self::CartOfSession => &["owner", "session_id", "user_id"],
            Self::CartChange => &["_id", "owner"],
        }
    }

    /// The shards that it asks under the configured keys.
    pub fn targeting(self, keys: &ShardKeys) -> Targeting {
        let key = match self.collection() {
            "orders" => &keys.orders,
            "products" => &keys.products,
            _ => &keys.carts,
        };
        targeting(self.fixed_fields(), key)
    }

    pub fn targeting_of_key(self, key: &ShardKey) -> Targeting {
        targeting(self.fixed_fields(), key)
    }
}

fn targeting(fixed: &[&str], key: &ShardKey) -> Targeting {
    let mut known = key.kinds().take_while(|(field, _)| fixed.contains(field));
    let prefix = known.by_ref().count();
    if prefix == key.kinds().count() {
        return Targeting::One;
    }
    let is_range = key.kinds().all(|(_, kind)| kind == KeyKind::Range);
    if prefix > 0 && is_range { Targeting::Several } else { Targeting::All }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(operation: Operation, key: &str) -> &'static str {
        operation.targeting_of_key(&ShardKey::parse(key).unwrap()).name()
    }

    #[test]
    fn a_whole_key_is_one_shard_and_a_prefix_of_a_range_key_several() {
        assert_eq!(of(Operation::ProductById, "_id: hashed"), "one");
        assert_eq!(of(Operation::ProductById, "category: 1, _id: 1"), "all");
        assert_eq!(of(Operation::ProductsOfCategory, "category: 1, _id: 1"), "several");
        assert_eq!(of(Operation::ProductsOfCategory, "category: hashed"), "one");
        assert_eq!(of(Operation::ProductsOfCategory, "_id: hashed"), "all");
        assert_eq!(of(Operation::UserOrders, "customer_id: 1"), "one");
        assert_eq!(of(Operation::OrderById, "customer_id: hashed"), "all");
        assert_eq!(of(Operation::CartOfUser, "session_id: hashed"), "all");
        assert_eq!(of(Operation::CartOfSession, "session_id: hashed"), "one");
        assert_eq!(of(Operation::CartChange, "owner: hashed"), "one");
    }
}
