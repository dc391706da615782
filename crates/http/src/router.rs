//! Every route with the role it needs, one line each.

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use http::Method;
use mw_store::request::RequestLabel;

use crate::app::App;
use crate::docs::RouteDoc;
use crate::metrics::Metrics;
use crate::middleware::{MiddlewareStack, Route, RouteKind, WithMiddleware};
use crate::routes::{
    backup, carts, changes, export, import, operations, orders, partitions, products, repair, reports,
    reservations, sessions, stock,
};
use crate::settings::Role::{self, Backoffice, Operator, Storefront};

pub(crate) fn table(stack: &Arc<MiddlewareStack>, metrics: &Metrics) -> (Router<App>, Vec<RouteDoc>) {
    RouteTable::new(stack, metrics).carts().sessions().catalogue().orders().service().finish()
}

impl RouteTable<'_> {
    fn carts(self) -> Self {
        self.get("/v1/users/{user_id}/cart", Storefront, carts::read)
            .put("/v1/users/{user_id}/cart/lines/{product_id}", Storefront, carts::set_line)
            .delete("/v1/users/{user_id}/cart/lines/{product_id}", Storefront, carts::remove_line)
            .post("/v1/users/{user_id}/cart/abandon", Storefront, carts::abandon)
            .post("/v1/users/{user_id}/cart/merge", Storefront, carts::merge)
            .post("/v1/users/{user_id}/cart/checkout", Storefront, carts::checkout)
            .query("/v1/users/{user_id}/cart/history", Storefront, carts::history)
            .query("/v1/users/{user_id}/carts", Storefront, carts::list)
            .get("/v1/sessions/{session_id}/cart", Storefront, carts::read)
            .put("/v1/sessions/{session_id}/cart/lines/{product_id}", Storefront, carts::set_line)
            .delete("/v1/sessions/{session_id}/cart/lines/{product_id}", Storefront, carts::remove_line)
            .post("/v1/sessions/{session_id}/cart/abandon", Storefront, carts::abandon)
            .query("/v1/sessions/{session_id}/cart/history", Storefront, carts::history)
            .query("/v1/sessions/{session_id}/carts", Storefront, carts::list)
    }

    fn sessions(self) -> Self {
        self.post("/v1/sessions", Storefront, sessions::create)
            .get("/v1/sessions/{session_id}", Storefront, sessions::read)
            .patch("/v1/sessions/{session_id}", Storefront, sessions::touch)
            .delete("/v1/sessions/{session_id}", Storefront, sessions::delete)
            .post("/v1/sessions/{session_id}/login", Storefront, sessions::login)
            .query("/v1/users/{user_id}/sessions", Storefront, sessions::list)
            .delete("/v1/users/{user_id}/sessions", Storefront, sessions::revoke)
    }

    fn catalogue(self) -> Self {
        self.query("/v1/products", Storefront, products::list)
            .query("/v1/products/{product_id}", Storefront, products::read)
            .put("/v1/products/{product_id}", Backoffice, products::put)
            .patch("/v1/products/{product_id}", Backoffice, products::patch)
            .delete("/v1/products/{product_id}", Backoffice, products::delete)
            .stream("/v1/products/import", Backoffice, import::import)
            .query("/v1/categories", Storefront, products::categories)
            .get("/v1/products/{product_id}/stock", Storefront, stock::of_product)
            .get("/v1/products/{product_id}/stock/{geo_zone}", Storefront, stock::read)
            .put("/v1/products/{product_id}/stock/{geo_zone}", Backoffice, stock::put)
            .post("/v1/products/{product_id}/stock/{geo_zone}/adjust", Backoffice, stock::adjust)
    }

    fn orders(self) -> Self {
        self.post("/v1/reservations", Storefront, reservations::create)
            .get("/v1/reservations/{reservation_id}", Storefront, reservations::read)
            .delete("/v1/reservations/{reservation_id}", Storefront, reservations::release)
            .post("/v1/reservations/{reservation_id}/confirm", Storefront, reservations::confirm)
            .post("/v1/orders", Storefront, orders::place)
            .query("/v1/orders", Backoffice, orders::list)
            .get("/v1/orders/{order_id}", Storefront, orders::read)
            .query("/v1/orders/{order_id}/events", Storefront, orders::events)
            .post("/v1/orders/{order_id}/status", Backoffice, orders::set_status)
            .query("/v1/users/{user_id}/orders", Storefront, orders::of_user)
            .post("/v1/users/{user_id}/orders/{order_id}/cancel", Storefront, orders::cancel)
            .query("/v1/reports/sales", Backoffice, reports::sales)
            .query("/v1/reports/abandoned-carts", Backoffice, reports::abandoned_carts)
            .feed("/v1/changes", Backoffice, changes::read)
    }

    fn service(self) -> Self {
        self.query("/v1/operations/partitions", Operator, partitions::list)
            .query("/v1/operations/partitions/plans", Operator, partitions::plans)
            .post("/v1/operations/partitions/plans", Operator, partitions::set_plan)
            .post("/v1/operations/partitions/plans/end", Operator, partitions::end_plan)
            .query("/v1/operations/audit", Operator, partitions::audit)
            .report("/v1/operations/nodes", Operator, repair::nodes)
            .report("/v1/operations/repair", Operator, repair::list)
            .report("/v1/operations/repair/{table}", Operator, repair::read)
            .get("/v1/operations/repair/windows", Operator, repair::windows)
            .post("/v1/operations/repair/run", Operator, repair::run)
            .post("/v1/operations/repair/pause", Operator, repair::pause)
            .post("/v1/operations/repair/resume", Operator, repair::resume)
            .probe("/healthz", None, operations::health)
            .probe("/readyz", None, operations::ready)
            .probe("/metrics", Some(Operator), operations::metrics)
            .download("/v1/operations/export", Operator, export::export)
            .report("/v1/operations/stock/audit", Operator, backup::audit)
            .report("/v1/operations/backup", Operator, backup::status)
            .post("/v1/operations/backup", Operator, backup::start)
            .probe("/openapi.json", None, operations::openapi)
            .probe("/docs", None, operations::docs)
            .probe("/docs/", None, operations::docs)
            .probe("/docs/{*file}", None, operations::docs)
    }
}

struct RouteTable<'a> {
    stack: &'a Arc<MiddlewareStack>,
    metrics: &'a Metrics,
    router: Router<App>,
    docs: Vec<RouteDoc>,
}

/// The route label of requests that match no route.
const UNMATCHED: &str = "unmatched";

impl<'a> RouteTable<'a> {
    fn new(stack: &'a Arc<MiddlewareStack>, metrics: &'a Metrics) -> Self {
        Self { stack, metrics, router: Router::new(), docs: Vec::new() }
    }

    fn get<H: Handler<T, App>, T: 'static>(self, path: &'static str, role: Role, handler: H) -> Self {
        self.add(Method::GET, path, Some(role), RouteKind::Read, false, handler)
    }

    /// A GET with query parameters.
    fn query<H: Handler<T, App>, T: 'static>(self, path: &'static str, role: Role, handler: H) -> Self {
        self.add(Method::GET, path, Some(role), RouteKind::Read, true, handler)
    }

    fn put<H: Handler<T, App>, T: 'static>(self, path: &'static str, role: Role, handler: H) -> Self {
        self.add(Method::PUT, path, Some(role), RouteKind::Write, false, handler)
    }

    fn post<H: Handler<T, App>, T: 'static>(self, path: &'static str, role: Role, handler: H) -> Self {
        self.add(Method::POST, path, Some(role), RouteKind::Write, false, handler)
    }

    fn patch<H: Handler<T, App>, T: 'static>(self, path: &'static str, role: Role, handler: H) -> Self {
        self.add(Method::PATCH, path, Some(role), RouteKind::Write, false, handler)
    }

    fn delete<H: Handler<T, App>, T: 'static>(self, path: &'static str, role: Role, handler: H) -> Self {
        self.add(Method::DELETE, path, Some(role), RouteKind::Write, false, handler)
    }

    /// A POST that responds while it still reads the body.
    fn stream<H: Handler<T, App>, T: 'static>(self, path: &'static str, role: Role, handler: H) -> Self {
        self.add(Method::POST, path, Some(role), RouteKind::Stream, false, handler)
    }

    /// A GET whose body is a stream without an end in sight; not for auditors.
    fn download<H: Handler<T, App>, T: 'static>(self, path: &'static str, role: Role, handler: H) -> Self {
        self.add(Method::GET, path, Some(role), RouteKind::Stream, false, handler)
    }

    /// A GET of an operator that may take long.
    fn report<H: Handler<T, App>, T: 'static>(self, path: &'static str, role: Role, handler: H) -> Self {
        self.add(Method::GET, path, Some(role), RouteKind::Probe, false, handler)
    }

    /// A GET that may wait or stream.
    fn feed<H: Handler<T, App>, T: 'static>(self, path: &'static str, role: Role, handler: H) -> Self {
        self.add(Method::GET, path, Some(role), RouteKind::Feed, true, handler)
    }

    /// A GET about the service itself; without a role it needs no token.
    fn probe<H: Handler<T, App>, T: 'static>(
        self,
        path: &'static str,
        role: Option<Role>,
        handler: H,
    ) -> Self {
        self.add(Method::GET, path, role, RouteKind::Probe, true, handler)
    }

    fn add<H: Handler<T, App>, T: 'static>(
        mut self,
        method: Method,
        path: &'static str,
        role: Option<Role>,
        kind: RouteKind,
        takes_query: bool,
        handler: H,
    ) -> Self {
        let metrics = self.metrics.route(path, method.as_str());
        let (filter, name) = filter(&method);
        let label = RequestLabel { method: name, route: path };
        let wrapped = self.wrap(Route { path, label, role, kind, takes_query, metrics }, handler);
        self.router = self.router.route(path, on(filter, wrapped));
        self.docs.push(RouteDoc { method, path, role, kind });
        self
    }

    fn wrap<H>(&self, route: Route, handler: H) -> WithMiddleware<H> {
        WithMiddleware { handler, route: Arc::new(route), stack: Arc::clone(self.stack) }
    }

    fn finish(self) -> (Router<App>, Vec<RouteDoc>) {
        let unmatched = || Route {
            path: UNMATCHED,
            label: RequestLabel { method: "any", route: UNMATCHED },
            role: None,
            kind: RouteKind::Probe,
            takes_query: true,
            metrics: self.metrics.route(UNMATCHED, "any"),
        };
        let no_method = self.wrap(unmatched(), operations::no_method);
        let no_route = self.wrap(unmatched(), operations::no_route);
        (self.router.method_not_allowed_fallback(no_method).fallback(no_route), self.docs)
    }
}

/// The filter of a method of the table, and its name.
fn filter(method: &Method) -> (MethodFilter, &'static str) {
    match *method {
        Method::PUT => (MethodFilter::PUT, "PUT"),
        Method::POST => (MethodFilter::POST, "POST"),
        Method::PATCH => (MethodFilter::PATCH, "PATCH"),
        Method::DELETE => (MethodFilter::DELETE, "DELETE"),
        _ => (MethodFilter::GET, "GET"),
    }
}
