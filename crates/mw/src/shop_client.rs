//! A client of a running shop, for commands with `--url`: one request a connection, HTTP/1.1, with or without TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a response that is read whole.
const BODY_BYTES_MAX: usize = 64 << 20;

/// The shop that a command talks to.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Running shop")]
pub(crate) struct RemoteArgs {
    /// Use the shop that runs here instead of a data directory
    #[arg(long, value_name = "URL", conflicts_with_all = ["data", "store", "config", "sets"])]
    pub(crate) url: Option<String>,

    /// Bearer token of an operator, where the shop has tokens
    #[arg(long, value_name = "TOKEN", requires = "url")]
    token: Option<String>,

    /// PEM file with the certificate of an https shop, or of its authority
    #[arg(long, value_name = "FILE", requires = "url")]
    ca: Option<PathBuf>,
}

impl RemoteArgs {
    pub(crate) fn client(&self) -> Result<Option<ShopClient>> {
        let Some(url) = &self.url else { return Ok(None) };
        let uri: Uri = url.trim_end_matches('/').parse().with_context(|| format!("read --url {url}"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => bail!("read --url {url}: it must begin with http:// or https://"),
        };
        ensure!(uri.host().is_some(), "read --url {url}: it names no host");
        ensure!(is_tls || self.ca.is_none(), "read --ca: it is for https only");
        let tls = is_tls.then(|| tls(self.ca.as_ref())).transpose()?;
        Ok(Some(ShopClient {
            url: url.trim_end_matches('/').to_owned(),
            uri,
            token: self.token.clone(),
            tls,
        }))
    }
}

fn tls(ca: Option<&PathBuf>) -> Result<TlsConnector> {
    let path = ca.context("use an https shop: name its certificate with --ca FILE")?;
    let reading = || format!("read {}", path.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).with_context(reading)? {
        roots.add(certificate.with_context(reading)?).with_context(reading)?;
    }
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

pub(crate) struct ShopClient {
    url: String,
    uri: Uri,
    token: Option<String>,
    tls: Option<TlsConnector>,
}

impl ShopClient {
    /// A response with a success status; anything else is an error with the detail of the response.
    pub(crate) async fn get(
        &self,
        path: &str,
        accept_encoding: Option<&'static str>,
    ) -> Result<Response<Incoming>> {
        self.call(Method::GET, path, accept_encoding, None).await
    }

    pub(crate) async fn get_json(&self, path: &str) -> Result<Value> {
        json(self.call(Method::GET, path, None, None).await?).await
    }

    pub(crate) async fn post_json(&self, path: &str, body: &Value) -> Result<Value> {
        json(self.call(Method::POST, path, None, Some(body)).await?).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        accept_encoding: Option<&'static str>,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>> {
        let calling = || format!("call {method} {}{path}", self.url);
        let base = self.uri.path().trim_end_matches('/');
        let mut request = Request::builder().method(&method).uri(format!("{base}{path}"));
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        request = request.header(HOST, authority);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(encoding) = accept_encoding {
            request = request.header(ACCEPT_ENCODING, encoding);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).with_context(calling)?;
        let response = self.send(request).await.with_context(calling)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let problem = json(response).await.unwrap_or_default();
        let text = |name: &str| problem.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        bail!("{}: {status}, {}: {}", calling(), text("code"), text("detail"));
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let host = self.uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = self.uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port)));
        let stream = connecting.await.context("connect: no answer in time")?.context("connect")?;
        match &self.tls {
            None => exchange(stream, request).await,
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).context("read the host of --url")?;
                exchange(tls.connect(name, stream).await.context("begin TLS")?, request).await
            }
        }
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the response; an error is also one of the response.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

async fn json(response: Response<Incoming>) -> Result<Value> {
    let body = http_body_util::Limited::new(response.into_body(), BODY_BYTES_MAX);
    let body = body.collect().await.map_err(|error| anyhow::anyhow!("read the response: {error}"))?;
    serde_json::from_slice(&body.to_bytes()).context("read the response")
}
