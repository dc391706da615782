//! TLS from a certificate and a key in PEM files.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::settings::TlsFiles;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("read certificate {path}: {source}")]
    Certificate { path: PathBuf, source: pem::Error },
    #[error("read certificate {path}: the file has no CERTIFICATE section")]
    NoCertificate { path: PathBuf },
    #[error("read private key {path}: {source}")]
    Key { path: PathBuf, source: pem::Error },
    #[error("use certificate {certificate} with key {key}: {source}")]
    Refused { certificate: PathBuf, key: PathBuf, source: rustls::Error },
}

pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let path = &files.certificate;
    let unreadable = |source| TlsError::Certificate { path: path.clone(), source };
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(unreadable)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: path.clone() });
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|source| TlsError::Key { path: files.key.clone(), source })?;
    let refused =
        |source| TlsError::Refused { certificate: files.certificate.clone(), key: files.key.clone(), source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(refused)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
