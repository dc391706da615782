//! One HTTP request at a time: to a running `mw`, and to the JMX agents of nodes. Plain HTTP; a service behind TLS is reached
//! through its proxy on the same machine.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Bytes of a response.
const BODY_MAX: usize = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("{0} is not an address such as http://127.0.0.1:8080")]
    Url(String),
    #[error("connect to {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    #[error("call {url}: {cause}")]
    Call { url: String, cause: String },
}

/// A response with its whole body.
#[derive(Debug, Clone)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub body: Bytes,
}

/// Sends one request. `authorization` is the whole value of the header; a body is JSON.
pub async fn send(
    method: Method,
    url: &str,
    authorization: Option<&str>,
    body: Option<Vec<u8>>,
) -> Result<HttpResponse, HttpError> {
    let uri: Uri = url.parse().map_err(|_| HttpError::Url(url.to_owned()))?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
    let authority = authority.ok_or_else(|| HttpError::Url(url.to_owned()))?;
    let address = match authority.port_u16() {
        Some(_) => authority.to_string(),
        None => format!("{authority}:80"),
    };
    let failed = |cause: String| HttpError::Call { url: url.to_owned(), cause };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder().method(method).uri(path).header(HOST, authority.as_str());
    if let Some(value) = authorization {
        request = request.header(AUTHORIZATION, value);
    }
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let body = Full::new(Bytes::from(body.unwrap_or_default()));
    let request = request.body(body).map_err(|error| failed(error.to_string()))?;
    let exchange = async {
        let stream = TcpStream::connect(&address)
            .await
            .map_err(|source| HttpError::Connect { address: address.clone(), source })?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| failed(error.to_string()))?;
        let driver = tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| failed(error.to_string()))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
        let body = body.map_err(|error| failed(error.to_string()))?.to_bytes();
        driver.abort();
        Ok(HttpResponse { status, body })
    };
    tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| Err(failed("timed out".to_owned())))
}
