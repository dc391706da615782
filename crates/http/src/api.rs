//! The API as a whole: a shop with its routes, limits, callers and metrics.

use std::sync::Arc;

use axum::Router;
use mw_shop::Shop;
use mw_shop::operations::Operations;
use prometheus::{IntGauge, Registry};

use crate::app::{App, Parts};
use crate::docs::Docs;
use crate::encoded_products::EncodedProducts;
use crate::extract::BodyLimits;
use crate::metrics::Metrics;
use crate::middleware::MiddlewareStack;
use crate::router;
use crate::settings::{ServerSettings, Tokens};

/// The routes with everything they need, without a socket. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Api {
    router: Router,
    metrics: Metrics,
    stack: Arc<MiddlewareStack>,
}

impl Api {
    /// `/metrics` shows `registry` with the series of the API and of the engine added. Fails where the registry has series of these names.
    pub fn new(
        shop: Shop,
        settings: &ServerSettings,
        tokens: &Tokens,
        registry: Registry,
    ) -> Result<Self, prometheus::Error> {
        Self::with_operations(shop, settings, tokens, registry, None)
    }

    /// The same, with the routes below `/v1/operations` that see and steer storage.
    pub fn with_operations(
        shop: Shop,
        settings: &ServerSettings,
        tokens: &Tokens,
        registry: Registry,
        operations: Option<Operations>,
    ) -> Result<Self, prometheus::Error> {
        let metrics = Metrics::new(registry)?;
        metrics.add(shop.collectors())?;
        let stack = Arc::new(MiddlewareStack::new(settings, tokens, metrics.clone()));
        let (router, table) = router::table(&stack, &metrics);
        let body_limits = BodyLimits {
            bytes: settings.body_limit_bytes,
            timeout: settings.body_timeout.min(settings.request_timeout),
        };
        let encoded_products = EncodedProducts::new(shop.currency());
        let docs = Docs::new(&table);
        let parts =
            Parts { shop, body_limits, stack: Arc::clone(&stack), docs, encoded_products, operations };
        let app = App::new(parts);
        Ok(Self { router: router.with_state(app), metrics, stack })
    }

    /// Admits callers by these tokens from now on.
    pub fn reload_tokens(&self, tokens: &Tokens) {
        self.stack.reload_tokens(tokens);
    }

    /// The routes as a service, for tests and for embedding.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Ends streams of the change feed, for a shutdown.
    pub(crate) fn stop_streams(&self) {
        self.stack.stop();
    }

    pub(crate) fn connections(&self) -> IntGauge {
        self.metrics.connections.clone()
    }
}

/// The OpenAPI document of this version.
pub fn openapi() -> Result<String, prometheus::Error> {
    let metrics = Metrics::new(Registry::new())?;
    let stack =
        Arc::new(MiddlewareStack::new(&ServerSettings::default(), &Tokens::default(), metrics.clone()));
    let (_, table) = router::table(&stack, &metrics);
    Ok(crate::docs::document(&table).to_pretty_json().unwrap_or_default())
}
