//! TLS with certificates from files, and the errors of unusable files.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use mw_http::{Server, ServerSettings, TlsFiles, Tokens};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::client_with;

struct Made {
    _folder: tempfile::TempDir,
    paths: TlsFiles,
    certificate: CertifiedKey<rcgen::KeyPair>,
}

fn files() -> Made {
    let certificate = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files = TlsFiles { certificate: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
    std::fs::write(&files.certificate, certificate.cert.pem()).unwrap();
    std::fs::write(&files.key, certificate.signing_key.serialize_pem()).unwrap();
    Made { _folder: folder, paths: files, certificate }
}

async fn bind(files: TlsFiles) -> Result<Server, String> {
    let settings = ServerSettings { tls: Some(files), ..ServerSettings::default() };
    let client = client_with(&settings, &Tokens::default());
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), settings, client.api).await;
    server.map_err(|error| error.to_string())
}

#[tokio::test]
async fn requests_are_served_over_tls_and_plain_text_is_not() {
    let files = files();
    let server = bind(files.paths).await.unwrap();
    let address = server.address();
    tokio::spawn(server.run(std::future::pending()));

    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut response = Vec::new();
    let _ = plain.read_to_end(&mut response).await;
    assert!(!response.starts_with(b"HTTP/"), "{response:?}");

    let mut stream = connect(address, &files.certificate).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
}

/// A connection of a client that trusts this certificate alone.
async fn connect(
    address: SocketAddr,
    certificate: &CertifiedKey<rcgen::KeyPair>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

#[tokio::test]
async fn a_renewed_certificate_is_used_after_a_reload() {
    let (old, new) = (files(), files());
    let server = bind(old.paths.clone()).await.unwrap();
    let (address, handle) = (server.address(), server.reload_handle());
    tokio::spawn(server.run(std::future::pending()));
    connect(address, &old.certificate).await.unwrap();
    std::fs::write(&old.paths.key, "no key").unwrap();
    handle.reload(&Tokens::default()).unwrap_err();
    connect(address, &old.certificate).await.unwrap();
    std::fs::copy(&new.paths.certificate, &old.paths.certificate).unwrap();
    std::fs::copy(&new.paths.key, &old.paths.key).unwrap();
    handle.reload(&Tokens::default()).unwrap();
    connect(address, &new.certificate).await.unwrap();
    assert!(connect(address, &old.certificate).await.is_err());
}

#[tokio::test]
async fn unusable_tls_files_are_named() {
    let good = files();
    let other = files();
    let missing = Path::new("/nonexistent/cert.pem");
    let swapped = TlsFiles { certificate: good.paths.key.clone(), key: good.paths.key.clone() };
    let no_key = TlsFiles { key: good.paths.certificate.clone(), ..good.paths.clone() };
    let mismatched = TlsFiles { key: other.paths.key.clone(), ..good.paths.clone() };
    let absent = TlsFiles { certificate: missing.to_owned(), ..good.paths.clone() };
    for (files, start, path) in [
        (swapped, "read certificate", &good.paths.key),
        (no_key, "read private key", &good.paths.certificate),
        (mismatched, "use certificate", &other.paths.key),
        (absent, "read certificate", &missing.to_owned()),
    ] {
        let error = bind(files).await.unwrap_err();
        assert!(error.starts_with(start) && error.contains(&path.display().to_string()), "{error}");
    }
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let settings = ServerSettings::default();
    let client = client_with(&settings, &Tokens::default());
    let first =
        Server::bind("127.0.0.1:0".parse().unwrap(), settings.clone(), client.api.clone()).await.unwrap();
    let error = Server::bind(first.address(), settings, client.api).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("listen on {}", first.address())), "{error}");
}
