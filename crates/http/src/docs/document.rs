//! Assembles the OpenAPI document from the handlers and the route table.

use std::collections::BTreeMap;

use http::Method;
use serde_json::Value;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, Header, HttpMethod, OpenApi, Ref, RefOr, Required, Response};
use utoipa::{OpenApi as _, PartialSchema, ToSchema};

use crate::error::Code;
use crate::middleware::RouteKind;
use crate::routes::{
    backup, carts, changes, export, import, operations, orders, partitions, products, repair, reports,
    reservations, sessions, stock,
};
use crate::settings::Role;
use crate::wire::schema;
use crate::wire::stock::ShortageView;

/// A line of the route table, as far as the document shows it.
#[derive(Debug, Clone)]
pub(crate) struct RouteDoc {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) role: Option<Role>,
    pub(crate) kind: RouteKind,
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Mobile World",
        description = "The storage of a large shop: carts, sessions, orders, catalogue and stock per geo zone.\n\n\
            Errors are RFC 9457 `application/problem+json` with a `code` from a closed list. Money is an exact decimal \
            string. Times are RFC 3339 in UTC. Every response carries `x-request-id`. Unknown fields and parameters are \
            refused. An `Idempotency-Key` lives 24 hours or more; only successes are kept under it.",
    ),
    paths(
        carts::read, carts::set_line, carts::remove_line, carts::abandon, carts::merge, carts::checkout, carts::list,
        carts::history,
        sessions::create, sessions::read, sessions::touch, sessions::login, sessions::delete, sessions::list,
        sessions::revoke,
        products::read, products::put, products::patch, products::delete, products::list, products::categories,
        import::import,
        stock::of_product, stock::read, stock::put, stock::adjust,
        reservations::create, reservations::read, reservations::confirm, reservations::release,
        orders::place, orders::read, orders::events, orders::set_status, orders::cancel, orders::of_user, orders::list,
        reports::sales, reports::abandoned_carts,
        changes::read,
        operations::health, operations::ready, operations::metrics,
        export::export, backup::start, backup::status, backup::audit,
        partitions::list, partitions::plans, partitions::set_plan, partitions::end_plan, partitions::audit,
        repair::nodes, repair::list, repair::read, repair::windows, repair::run, repair::pause, repair::resume,
    ),
    tags(
        (name = "carts", description = "Carts of users and of guests"),
        (name = "sessions", description = "Sessions of users and guests, 24 hours sliding"),
        (name = "products", description = "The catalogue"),
        (name = "stock", description = "Units on hand and reserved, by zone"),
        (name = "reservations", description = "Units held for a while"),
        (name = "orders", description = "Orders, from created to delivered"),
        (name = "reports", description = "For the back office"),
        (name = "changes", description = "The change feed"),
        (name = "operations", description = "Health, readiness, metrics, backups, partitions, nodes, repair, the audit log"),
    ),
)]
struct Handlers;

/// RFC 9457, with the members that some codes add.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Problem {
    /// `urn:mobile-world:problem:` and the code.
    r#type: String,
    title: String,
    status: u16,
    detail: String,
    #[schema(value_type = ProblemCode)]
    code: String,
    request_id: String,
    /// Of `invalid_parameter`: its name.
    #[schema(value_type = String, required = false)]
    parameter: Option<String>,
    /// Of `invalid_field` and `currency_mismatch`: its path, such as `lines[0].quantity`.
    #[schema(value_type = String, required = false)]
    field: Option<String>,
    /// Of `version_mismatch`, `price_changed`, `stock_changed` and `stock_below_reserved`: what is stored now.
    #[schema(value_type = Option<Object>)]
    current: Option<Value>,
    /// Of `out_of_stock`.
    #[schema(value_type = Vec<ShortageView>, required = false)]
    shortages: Option<Value>,
}

struct ProblemCode;

impl PartialSchema for ProblemCode {
    fn schema() -> RefOr<Schema> {
        let names = Code::ALL.iter().map(|code| code.name());
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).build().into()
    }
}

impl ToSchema for ProblemCode {}

pub(crate) fn document(routes: &[RouteDoc]) -> OpenApi {
    let mut api = Handlers::openapi();
    env!("CARGO_PKG_VERSION").clone_into(&mut api.info.version);
    api.info.license = None;
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
        "A token of a service of the shop; its role is storefront, backoffice, operator or auditor",
    ));
    if let Some(components) = &mut api.components {
        let schemas = [
            (Problem::name(), Problem::schema()),
            (ProblemCode::name(), ProblemCode::schema()),
            (ShortageView::name(), ShortageView::schema()),
            (schema::OrderRef::name(), schema::OrderRef::schema()),
        ];
        components.schemas.extend(schemas.map(|(name, schema)| (name.into_owned(), schema)));
        components.add_security_scheme("token", SecurityScheme::Http(scheme.build()));
    }
    add_guest_operations(&mut api, routes);
    for route in routes {
        if let Some(operation) = find(&mut api, &route.method, route.path) {
            finish(operation, route);
        }
    }
    api
}

fn find<'a>(api: &'a mut OpenApi, method: &Method, path: &str) -> Option<&'a mut Operation> {
    let item = api.paths.paths.get_mut(path)?;
    match *method {
        Method::GET => item.get.as_mut(),
        Method::PUT => item.put.as_mut(),
        Method::POST => item.post.as_mut(),
        Method::PATCH => item.patch.as_mut(),
        Method::DELETE => item.delete.as_mut(),
        _ => None,
    }
}

/// A guest's cart has the operations of a user's: the handlers are shared and document the user's path.
fn add_guest_operations(api: &mut OpenApi, routes: &[RouteDoc]) {
    for route in routes {
        let Some(rest) = route.path.strip_prefix("/v1/sessions/{session_id}/cart") else { continue };
        let of_user = format!("/v1/users/{{user_id}}/cart{rest}");
        let Some(mut operation) = find(api, &route.method, &of_user).cloned() else { continue };
        operation.operation_id = operation.operation_id.map(|id| format!("{id}_of_guest"));
        operation.summary = operation.summary.map(|summary| format!("{summary} (guest)"));
        let method = match route.method {
            Method::PUT => HttpMethod::Put,
            Method::POST => HttpMethod::Post,
            Method::DELETE => HttpMethod::Delete,
            _ => HttpMethod::Get,
        };
        api.paths.add_path_operation(route.path, vec![method], operation);
    }
}

fn finish(operation: &mut Operation, route: &RouteDoc) {
    let mut parameters = path_parameters(route.path);
    parameters.extend(operation.parameters.take().unwrap_or_default());
    let extensions = operation.extensions.take().unwrap_or_default();
    let own = own_problems(&extensions);
    if let (Some(body), true) = (&mut operation.request_body, extensions.contains_key("x-optional-body")) {
        body.required = Some(Required::False);
    }
    let problems = problems(operation.request_body.as_ref(), &parameters, own, route);
    let is_keyed = parameters.iter().any(|parameter| parameter.name == "Idempotency-Key");
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            describe_success(response, is_keyed);
        }
    }
    for (status, codes) in problems {
        operation.responses.responses.insert(status.to_string(), problem_response(&codes).into());
    }
    operation.parameters = (!parameters.is_empty()).then_some(parameters);
    if let Some(role) = route.role {
        operation.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], &str>("token", [])]);
        let about = operation.description.take().map(|text| format!("{text}\n\n")).unwrap_or_default();
        operation.description = Some(format!("{about}Role: {}.", role.name()));
    }
}

fn path_parameters(path: &str) -> Vec<Parameter> {
    let names = path.split('/').filter_map(|piece| piece.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        let schema = match name {
            "order_id" => "OrderRef",
            "reservation_id" => "Uuid",
            _ => "Name",
        };
        ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .schema(Some(Ref::from_schema_name(schema)))
            .build()
    };
    names.map(parameter).collect()
}

fn own_problems(extensions: &Extensions) -> Vec<Code> {
    let names = extensions.get("x-problems").and_then(Value::as_array);
    let code = |name: &Value| Code::ALL.iter().copied().find(|code| Some(code.name()) == name.as_str());
    names.into_iter().flatten().filter_map(code).collect()
}

/// All problems of an operation: its own, and those that follow from its parameters, body and kind.
fn problems(
    body: Option<&RequestBody>,
    parameters: &[Parameter],
    own: Vec<Code>,
    route: &RouteDoc,
) -> BTreeMap<u16, Vec<Code>> {
    let takes = |name: &str| parameters.iter().find(|parameter| parameter.name == name);
    let mut codes = own;
    if !parameters.is_empty() {
        codes.push(Code::InvalidParameter);
    }
    if body.is_some() && route.kind == RouteKind::Stream {
        codes.push(Code::UnsupportedMediaType);
    } else if body.is_some() {
        codes.extend([Code::InvalidJson, Code::BodyTooLarge, Code::UnsupportedMediaType, Code::InvalidField]);
    }
    if takes("cursor").is_some() {
        codes.push(Code::InvalidCursor);
    }
    if takes("If-Match").is_some() {
        codes.push(Code::VersionMismatch);
    }
    if let Some(key) = takes("Idempotency-Key") {
        codes.push(Code::IdempotencyKeyReused);
        codes.extend((key.required == Required::True).then_some(Code::IdempotencyKeyRequired));
    }
    if route.role.is_some() {
        codes.extend([Code::Unauthorized, Code::Forbidden, Code::RateLimited]);
    }
    if route.kind != RouteKind::Probe {
        codes.extend([Code::Internal, Code::Overloaded, Code::StoreUnavailable]);
    }
    if route.kind == RouteKind::Write {
        codes.push(Code::OutcomeUnknown);
    }
    let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in Code::ALL.iter().filter(|code| codes.contains(code)) {
        by_status.entry(code.status().as_u16()).or_default().push(*code);
    }
    by_status
}

fn header(description: &str) -> Header {
    let mut header = Header::default();
    header.description = Some(description.to_owned());
    header
}

fn describe_success(response: &mut Response, is_keyed: bool) {
    if response.description.is_empty() {
        "Done".clone_into(&mut response.description);
    }
    response.headers.insert("x-request-id".to_owned(), header("The request's id"));
    if is_keyed {
        let replayed = header("`true` where this replays the first success");
        response.headers.insert("Idempotent-Replayed".to_owned(), replayed);
    }
}

fn problem_response(codes: &[Code]) -> Response {
    let lines: Vec<_> = codes.iter().map(|code| format!("- `{}`: {}", code.name(), code.title())).collect();
    let mut response = Response::new(lines.join("\n"));
    let content = Content::new(Some(Ref::from_schema_name("Problem")));
    response.content.insert("application/problem+json".to_owned(), content);
    response.headers.insert("x-request-id".to_owned(), header("The request's id"));
    let is_retryable = codes
        .iter()
        .any(|code| matches!(code, Code::RateLimited | Code::Overloaded | Code::StoreUnavailable));
    if is_retryable {
        response.headers.insert("Retry-After".to_owned(), header("Seconds to wait before a retry"));
    }
    response
}
