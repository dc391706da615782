//! The operator who calls: the name of the token and the address, for the audit log.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::extract::FromRequestParts;
use http::request::Parts;
use mw_store::audit::Operator;

/// The address of the connection. Only requests below `/v1/operations` carry it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) SocketAddr);

/// The name of the token that the middleware admitted.
#[derive(Debug, Clone)]
pub(crate) struct TokenName(pub(crate) String);

#[derive(Debug)]
pub(crate) struct Caller(pub(crate) Operator);

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let token = parts.extensions.get::<TokenName>().map_or_else(String::new, |name| name.0.clone());
        let address =
            parts.extensions.get::<PeerAddress>().map_or_else(String::new, |peer| peer.0.ip().to_string());
        Ok(Self(Operator { token, address }))
    }
}
