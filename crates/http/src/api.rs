//! The API as a whole: a shop with limits, callers and metrics around it.

use std::sync::Arc;

use axum::Router;
use mw_shop::Shop;
use prometheus::{IntGauge, Registry};

use crate::app::{App, Parts};
use crate::docs::Docs;
use crate::extract::BodyLimits;
use crate::metrics::Metrics;
use crate::middleware::Onion;
use crate::router;
use crate::settings::{ServerSettings, Tokens};

/// Everything that is served, before it has a socket. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api {
    router: Router,
    metrics: Metrics,
}

impl Api {
    /// `registry` is what `/metrics` shows, besides the API's own series. Fails where it has series of their names.
    pub fn new(
        shop: Shop,
        settings: &ServerSettings,
        tokens: &Tokens,
        registry: Registry,
    ) -> Result<Self, prometheus::Error> {
        let metrics = Metrics::new(registry)?;
        let onion = Arc::new(Onion::new(settings, tokens, metrics.clone()));
        let (router, rows) = router::table(&onion, &metrics);
        let body_limits = BodyLimits {
            bytes: settings.body_limit_bytes,
            timeout: settings.body_timeout.min(settings.request_timeout),
        };
        let app = App::new(Parts { shop, body_limits, onion, docs: Docs::new(&rows) });
        Ok(Self { router: router.with_state(app), metrics })
    }

    /// The routes as a service, for tests and for embedding.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    pub(crate) fn connections(&self) -> IntGauge {
        self.metrics.connections.clone()
    }
}

/// The OpenAPI document of this version.
pub fn openapi() -> Result<String, prometheus::Error> {
    let metrics = Metrics::new(Registry::new())?;
    let onion = Arc::new(Onion::new(&ServerSettings::default(), &Tokens::default(), metrics.clone()));
    let (_, rows) = router::table(&onion, &metrics);
    Ok(crate::docs::document(&rows).to_pretty_json().unwrap_or_default())
}
