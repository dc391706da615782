//! Carts in JSON.

use mw_domain::{Cart, CartChange, CartLine, CartStatus, MergeChange, MergeMode, Owner, SessionId};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use super::scalars::{At, Id};
use super::{deserialize, schema};

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Owner)]
pub(crate) struct OwnerView<'a> {
    #[schema(value_type = OwnerKind)]
    kind: &'static str,
    #[schema(value_type = schema::Name)]
    id: &'a str,
}

#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum OwnerKind {
    User,
    Session,
}

impl<'a> From<&'a Owner> for OwnerView<'a> {
    fn from(owner: &'a Owner) -> Self {
        let kind = match owner {
            Owner::User(_) => "user",
            Owner::Session(_) => "session",
        };
        Self { kind, id: owner.id() }
    }
}

/// A cart; where there is none its `cart_id` is null, its `version` 0, and the times are absent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Cart)]
pub(crate) struct CartView<'a> {
    #[schema(value_type = Option<schema::Uuid>, required)]
    cart_id: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = OwnerView, required = false)]
    owner: Option<OwnerView<'a>>,
    #[schema(value_type = CartStatusName)]
    status: &'static str,
    version: u64,
    /// By product id.
    #[schema(value_type = Vec<CartLineView>)]
    lines: Lines<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Time, required = false)]
    created_at: Option<At>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Time, required = false)]
    updated_at: Option<At>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Time, required = false)]
    expires_at: Option<At>,
    /// The user's cart that the guest's lines went into.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Uuid, required = false)]
    merged_into: Option<Id>,
    /// The order that the cart became.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = schema::Uuid, required = false)]
    order_id: Option<Id>,
}

#[derive(Debug, ToSchema)]
#[schema(as = CartStatus, rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum CartStatusName {
    Active,
    Ordered,
    Abandoned,
}

#[derive(Debug)]
struct Lines<'a>(&'a [CartLine]);

impl Serialize for Lines<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|line| CartLineView {
            product_id: line.product_id.as_str(),
            quantity: line.quantity,
            updated_at: At(line.updated_at),
        }))
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CartLine)]
pub(crate) struct CartLineView<'a> {
    #[schema(value_type = schema::Name)]
    product_id: &'a str,
    #[schema(minimum = 1, maximum = 10_000)]
    quantity: u32,
    #[schema(value_type = schema::Time)]
    updated_at: At,
}

impl<'a> From<&'a Cart> for CartView<'a> {
    fn from(cart: &'a Cart) -> Self {
        Self {
            cart_id: Some(Id(cart.cart_id.uuid())),
            owner: Some((&cart.owner).into()),
            status: cart.status.as_str(),
            version: cart.version,
            lines: Lines(&cart.lines),
            created_at: Some(At(cart.created_at)),
            updated_at: Some(At(cart.updated_at)),
            expires_at: Some(At(cart.expires_at)),
            merged_into: cart.merged_into.map(|id| Id(id.uuid())),
            order_id: cart.order_id.map(|id| Id(id.uuid())),
        }
    }
}

impl<'a> CartView<'a> {
    /// The empty cart of an owner without one.
    pub(crate) fn none(owner: Option<&'a Owner>) -> Self {
        Self {
            cart_id: None,
            owner: owner.map(OwnerView::from),
            status: CartStatus::Active.as_str(),
            version: 0,
            lines: Lines(&[]),
            created_at: None,
            updated_at: None,
            expires_at: None,
            merged_into: None,
            order_id: None,
        }
    }

    pub(crate) fn of(cart: Option<&'a Cart>, owner: &'a Owner) -> Self {
        cart.map_or_else(|| Self::none(Some(owner)), Self::from)
    }

    /// An estimate of the bytes of the JSON.
    pub(crate) fn size(&self) -> usize {
        384 + self.lines.0.len() * 128
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CartChange)]
pub(crate) struct CartChangeView<'a> {
    #[schema(value_type = schema::Time)]
    at: At,
    #[schema(value_type = schema::Uuid)]
    cart_id: Id,
    #[schema(value_type = schema::Name)]
    product_id: &'a str,
    /// 0: the line was removed.
    quantity: u32,
}

impl<'a> From<&'a CartChange> for CartChangeView<'a> {
    fn from(change: &'a CartChange) -> Self {
        Self {
            at: At(change.at),
            cart_id: Id(change.cart_id.uuid()),
            product_id: change.product_id.as_str(),
            quantity: change.quantity,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Merged)]
pub(crate) struct MergedView<'a> {
    #[schema(value_type = CartView)]
    pub(crate) cart: CartView<'a>,
    /// By product; lines that stayed as they were are not listed.
    pub(crate) changes: Vec<MergeChangeView<'a>>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MergeChange)]
pub(crate) struct MergeChangeView<'a> {
    #[schema(value_type = schema::Name)]
    product_id: &'a str,
    /// 0 for a new line.
    from: u32,
    to: u32,
}

impl<'a> From<&'a MergeChange> for MergeChangeView<'a> {
    fn from(change: &'a MergeChange) -> Self {
        Self { product_id: change.product_id.as_str(), from: change.from, to: change.to }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SetLine)]
pub(crate) struct LineBody {
    #[serde(deserialize_with = "deserialize::quantity")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub(crate) quantity: u32,
}

/// Who decides the quantity of a product in both carts.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = MergeMode)]
pub(crate) enum ModeBody {
    #[default]
    Sum,
    Max,
    Guest,
    User,
}

impl From<ModeBody> for MergeMode {
    fn from(mode: ModeBody) -> Self {
        match mode {
            ModeBody::Sum => Self::Sum,
            ModeBody::Max => Self::Max,
            ModeBody::Guest => Self::Guest,
            ModeBody::User => Self::User,
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Merge)]
pub(crate) struct MergeBody {
    #[serde(deserialize_with = "deserialize::id")]
    #[schema(value_type = schema::Name)]
    pub(crate) session_id: SessionId,
    #[serde(default)]
    pub(crate) mode: Option<ModeBody>,
}

/// A body without fields, which is optional.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoFields {}
