//! The state that every handler can reach.

use std::ops::Deref;
use std::sync::Arc;

use mw_shop::Shop;
use mw_shop::operations::Operations;

use crate::docs::Docs;
use crate::encoded_products::EncodedProducts;
use crate::extract::BodyLimits;
use crate::middleware::MiddlewareStack;

#[derive(Debug, Clone)]
pub(crate) struct App(Arc<Parts>);

#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) shop: Shop,
    pub(crate) body_limits: BodyLimits,
    pub(crate) stack: Arc<MiddlewareStack>,
    pub(crate) docs: Docs,
    pub(crate) encoded_products: EncodedProducts,
    /// `None` where the shop is served without its operations, as in tests.
    pub(crate) operations: Option<Operations>,
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}
