//! The HTTP API of the shop: the only crate that knows HTTP and JSON.
//!
//! [`Api::new`] puts the routes around a [`Shop`](mw_shop::Shop); [`Server::bind`] gives them a socket and
//! [`Server::run`] serves until it is told to stop. `router.rs` lists the routes, `middleware.rs` shows the way of a
//! request, `error.rs` says what is answered when something is wrong.

mod answer;
mod api;
mod app;
mod auth;
mod connection;
mod cursor;
mod docs;
mod error;
mod extract;
mod metrics;
mod middleware;
mod rate;
mod refusal;
mod request_id;
mod router;
mod routes;
mod server;
mod settings;
mod tls;
mod wire;

pub use api::{Api, openapi};
pub use error::{Code, Problem};
pub use metrics::Metrics;
pub use prometheus;
pub use server::{Server, ServerError};
pub use settings::{Role, ServerSettings, TlsFiles, Token, Tokens, UnknownRole};
pub use tls::TlsError;
