//! The OpenAPI document and the page that shows it.

use std::path::PathBuf;

use http::Method;
use mw_http::Code;
use serde_json::Value;

use crate::client::client;

fn document() -> Value {
    serde_json::from_str(&mw_http::openapi().unwrap()).unwrap()
}

/// `cargo test -p mw-http` with `MW_BLESS=1` in the environment writes the document anew.
#[test]
fn the_document_is_the_committed_one() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let made = format!("{}\n", mw_http::openapi().unwrap());
    if std::env::var_os("MW_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == made, "openapi.json is out of date: MW_BLESS=1 cargo test -p mw-http");
}

#[tokio::test]
async fn the_served_document_is_the_same() {
    assert_eq!(client().get("/openapi.json").await.ok(), document());
}

fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            all.push((method.to_uppercase(), path.clone(), operation.clone()));
        }
    }
    all
}

/// A path with well-formed ids of nothing.
fn filled(path: &str) -> String {
    ["{order_id}", "{reservation_id}"]
        .into_iter()
        .fold(path.to_owned(), |path, id| path.replace(id, "01890a5d-ac96-774b-bcce-b302099a8057"))
        .replace(['{', '}'], "")
}

#[tokio::test]
async fn every_documented_call_is_routed_and_every_route_documented() {
    let client = client();
    let operations = operations(&document());
    for (method, path, _) in &operations {
        let path = filled(path);
        let response = client.call(method.parse::<Method>().unwrap(), &path, &[], &Value::Null).await;
        let code = response.json["code"].as_str().unwrap_or_default();
        assert!(
            !["route_not_found", "method_not_allowed"].contains(&code),
            "{method} {path}: {}",
            response.text
        );
    }
    let metrics = client.get("/metrics").await.text;
    let mut routes: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("mw_http_request_duration_seconds_count{"))
        .map(|line| {
            let label =
                |name: &str| line.split(&format!("{name}=\"")).nth(1).unwrap().split('"').next().unwrap();
            (label("method").to_owned(), label("route").to_owned())
        })
        .filter(|(_, route)| route != "unmatched" && !route.starts_with("/docs") && route != "/openapi.json")
        .collect();
    routes.sort_unstable();
    let mut documented: Vec<_> = operations.into_iter().map(|(method, path, _)| (method, path)).collect();
    documented.sort_unstable();
    assert_eq!(routes, documented);
}

#[test]
fn every_code_is_documented_where_it_may_occur() {
    let document = document();
    let operations = operations(&document);
    let everything: String =
        operations.iter().map(|(_, _, operation)| operation["responses"].to_string()).collect();
    for code in Code::ALL {
        let is_of_no_route = matches!(code, Code::RouteNotFound | Code::MethodNotAllowed);
        let is_documented = everything.contains(&format!("`{}`", code.name()));
        assert_eq!(is_documented, !is_of_no_route, "{}", code.name());
    }
    let listed = &document["components"]["schemas"]["ProblemCode"]["enum"];
    assert_eq!(listed.as_array().unwrap().len(), Code::ALL.len());
}

#[test]
fn every_reference_has_its_target_and_every_id_is_unique() {
    let document = document();
    let text = document.to_string();
    for piece in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
        let name = piece.split('"').next().unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
    }
    let mut ids: Vec<_> =
        operations(&document).iter().map(|(_, _, operation)| operation["operationId"].to_string()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    for (method, path, operation) in operations(&document) {
        assert!(operation["summary"].is_string(), "{method} {path}");
        let is_open = ["/healthz", "/readyz"].contains(&path.as_str());
        assert_eq!(operation.get("security").is_none(), is_open, "{method} {path}");
    }
}

#[tokio::test]
async fn every_call_refuses_parameters_it_does_not_document() {
    let client = client();
    for (method, path, operation) in operations(&document()) {
        if !path.starts_with("/v1") {
            continue;
        }
        let mut target = format!("{}?stranger=1", filled(&path));
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            if parameter["in"] == "query" && parameter["required"] == true {
                target = format!("{target}&{}=2026-01-01", parameter["name"].as_str().unwrap());
            }
        }
        if path == "/v1/orders" {
            target.push_str("&date=2026-01-01");
        }
        let key = [("idempotency-key", "k")];
        client.call(method.parse().unwrap(), &target, &key, &Value::Null).await.invalid_parameter("stranger");
    }
}

#[tokio::test]
async fn the_page_loads_nothing_from_other_hosts() {
    let client = client();
    for path in ["/docs", "/docs/"] {
        let page = client.get(path).await;
        assert_eq!(page.status, 200);
        assert!(page.headers["content-type"].to_str().unwrap().starts_with("text/html"));
        assert!(!page.text.contains("http://") && !page.text.contains("https://"), "{}", page.text);
        let mut files: Vec<&str> = page.text.split("href=\"./").skip(1).collect();
        files.extend(page.text.split("src=\"./").skip(1));
        assert!(files.len() >= 4, "{}", page.text);
        for file in files {
            let file = file.split('"').next().unwrap();
            let request =
                http::Request::get(format!("/docs/{file}")).body(axum::body::Body::empty()).unwrap();
            let response = tower::ServiceExt::oneshot(client.api.router(), request).await.unwrap();
            assert_eq!(response.status(), 200, "{file}");
        }
    }
    let script = client.get("/docs/swagger-initializer.js").await.text;
    assert!(script.contains("/openapi.json"), "{script}");
    assert!(!script.contains("https://"), "{script}");
    assert_eq!(script.matches("\"validatorUrl\": \"none\"").count(), 1, "{script}");
}
