//! Ids in the path. The type of an id determines its parameter name; a malformed id is 400 `invalid_parameter`.

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;
use mw_domain::{GeoZone, InvalidId, OrderId, Owner, ProductId, ReservationId, SessionId, UserId};

use crate::error::{Code, Problem};

/// One id of the path, or a tuple of them.
#[derive(Debug)]
pub(crate) struct Path<T>(pub(crate) T);

impl<T: FromPath, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| {
            Problem::new(Code::InvalidParameter, "the path is not UTF-8").with("parameter", "path")
        })?;
        T::from_path(&params).map(Self)
    }
}

pub(crate) trait FromPath: Sized {
    fn from_path(params: &RawPathParams) -> Result<Self, Problem>;
}

fn find<'a>(params: &'a RawPathParams, name: &str) -> Option<&'a str> {
    params.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn take<T>(
    params: &RawPathParams,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, InvalidId>,
) -> Result<T, Problem> {
    let value =
        find(params, name).ok_or_else(|| Problem::internal(format_args!("the route has no {{{name}}}")))?;
    parse(value).map_err(|error| Problem::parameter(name, error))
}

macro_rules! from_path {
    ($($id:ident $name:literal,)*) => {$(
        impl FromPath for $id {
            fn from_path(params: &RawPathParams) -> Result<Self, Problem> {
                take(params, $name, $id::parse)
            }
        }
    )*};
}

from_path! {
    UserId "user_id",
    SessionId "session_id",
    ProductId "product_id",
    GeoZone "geo_zone",
    OrderId "order_id",
    ReservationId "reservation_id",
}

/// A table by its name, whether it exists or not.
#[derive(Debug)]
pub(crate) struct RepairedTable(pub(crate) String);

impl FromPath for RepairedTable {
    fn from_path(params: &RawPathParams) -> Result<Self, Problem> {
        take(params, "table", |table| Ok(Self(table.to_owned())))
    }
}

impl FromPath for Owner {
    fn from_path(params: &RawPathParams) -> Result<Self, Problem> {
        match find(params, "user_id") {
            Some(_) => UserId::from_path(params).map(Self::User),
            None => SessionId::from_path(params).map(Self::Session),
        }
    }
}

impl<A: FromPath, B: FromPath> FromPath for (A, B) {
    fn from_path(params: &RawPathParams) -> Result<Self, Problem> {
        Ok((A::from_path(params)?, B::from_path(params)?))
    }
}
