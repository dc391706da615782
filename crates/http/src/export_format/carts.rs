//! Carts and their history.

use mw_domain::carts::MergeChange;
use mw_domain::{
    Cart, CartChange, CartId, CartLine, CartStatus, OrderId, Owner, ProductId, SessionId, Timestamp, UserId,
};
use serde::{Deserialize, Serialize};

use super::form::{form, list, one, optional};

#[derive(Serialize, Deserialize)]
#[serde(remote = "Owner", rename_all = "snake_case")]
enum OwnerForm {
    User(#[serde(with = "one")] UserId),
    Session(#[serde(with = "one")] SessionId),
}
form!(Owner as OwnerForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "CartStatus", rename_all = "snake_case")]
enum CartStatusForm {
    Active,
    Ordered,
    Abandoned,
}
form!(CartStatus as CartStatusForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "CartLine", deny_unknown_fields)]
struct CartLineForm {
    #[serde(with = "one")]
    product_id: ProductId,
    quantity: u32,
    #[serde(with = "one")]
    updated_at: Timestamp,
}
form!(CartLine as CartLineForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Cart", deny_unknown_fields)]
struct CartForm {
    #[serde(with = "one")]
    cart_id: CartId,
    #[serde(with = "one")]
    owner: Owner,
    #[serde(with = "one")]
    status: CartStatus,
    version: u64,
    #[serde(with = "list")]
    lines: Vec<CartLine>,
    #[serde(with = "one")]
    created_at: Timestamp,
    #[serde(with = "one")]
    updated_at: Timestamp,
    #[serde(with = "one")]
    expires_at: Timestamp,
    #[serde(with = "optional", default, skip_serializing_if = "Option::is_none")]
    merged_into: Option<CartId>,
    #[serde(with = "optional", default, skip_serializing_if = "Option::is_none")]
    order_id: Option<OrderId>,
}
form!(Cart as CartForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "CartChange", deny_unknown_fields)]
struct CartChangeForm {
    #[serde(with = "one")]
    at: Timestamp,
    #[serde(with = "one")]
    cart_id: CartId,
    version: u64,
    #[serde(with = "one")]
    product_id: ProductId,
    quantity: u32,
}
form!(CartChange as CartChangeForm);

#[derive(Serialize, Deserialize)]
#[serde(remote = "MergeChange", deny_unknown_fields)]
struct MergeChangeForm {
    #[serde(with = "one")]
    product_id: ProductId,
    from: u32,
    to: u32,
}
form!(MergeChange as MergeChangeForm);
