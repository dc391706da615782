//! The HTTP API of the shop: the only crate that knows HTTP and JSON.
//!
//! [`Api::new`] builds the routes on a [`Shop`](mw_shop::Shop); [`Server::bind`] opens a socket and [`Server::run`]
//! serves until shutdown. `router.rs` lists the routes, `middleware.rs` is the path of a request, `error.rs` lists every
//! response that is not a success. Handlers translate HTTP into calls of the shop and do nothing else.

mod api;
mod app;
mod auth;
mod compression;
mod conditional;
mod connection;
mod cursor;
mod docs;
mod encoded_products;
mod error;
pub mod export_format;
mod extract;
mod feed_lag;
mod local_site;
mod malformed_head;
mod metrics;
mod middleware;
mod personal_data;
mod rate_limit;
mod request_id;
mod response;
mod router;
mod routes;
mod server;
mod settings;
mod store_error;
mod tls;
mod unread_body;
mod wire;

pub use api::{Api, openapi};
pub use error::{Code, Problem};
pub use metrics::Metrics;
pub use prometheus;
pub use server::{ReloadHandle, Server, ServerError};
pub use settings::{Role, ServerSettings, TlsFiles, Token, Tokens, UnknownRole};
pub use tls::TlsError;
pub use wire::cluster::{NodeListView, NodeView, RepairListView, RepairView, WindowListView, WindowView};
pub use wire::partitions::{ChangedPlanView, PartitionListView, PlanListView, PlanView};
