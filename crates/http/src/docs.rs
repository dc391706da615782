//! The OpenAPI document, generated from the handlers and the route table, and the page that shows it.
//!
//! A handler documents its body, its success and the problems of its own. What follows from the route table (role, ids in
//! the path, problems of every route of its kind) is added here, so that it cannot be forgotten or differ.

mod document;
mod params;

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use utoipa_swagger_ui::Config;

pub(crate) use document::{RouteDoc, document};
pub(crate) use params::{
    CategoryParams, ChangesParams, FreshParam, IdempotencyKey, IdleParam, IfMatchVersion, LastEventId,
    OrdersParams, PageParams, PeriodParams, RequiredIdempotencyKey, SalesParams,
};

/// The content of `/openapi.json` and `/docs`.
pub(crate) struct Docs {
    pub(crate) openapi: Bytes,
    page: Arc<Config<'static>>,
}

impl std::fmt::Debug for Docs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Docs").finish_non_exhaustive()
    }
}

impl Docs {
    pub(crate) fn new(routes: &[RouteDoc]) -> Self {
        let openapi = document(routes).to_json().unwrap_or_else(|_| "{}".to_owned());
        Self { openapi: openapi.into(), page: Arc::new(Config::from("/openapi.json").validator_url("none")) }
    }

    /// A file of the page; the empty path is the page itself.
    pub(crate) fn file(&self, path: &str) -> Option<(HeaderValue, Bytes)> {
        let file = utoipa_swagger_ui::serve(path, Arc::clone(&self.page)).ok()??;
        let content_type = HeaderValue::from_str(&file.content_type).ok()?;
        let bytes = if path.is_empty() || path == "index.html" {
            // Its links are relative, and the page is served at /docs as well as at /docs/.
            let page = String::from_utf8_lossy(&file.bytes);
            page.replacen("<head>", "<head><base href=\"/docs/\">", 1).into_bytes().into()
        } else {
            Bytes::from(file.bytes.into_owned())
        };
        Some((content_type, bytes))
    }
}
