//! TLS to the nodes: whom to trust and, where they ask for it, what to prove ourselves with.

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::Tls;
use super::error::StartError;

const CA: &str = "store.cassandra.tls.ca";
const CERTIFICATE: &str = "store.cassandra.tls.certificate";
const KEY: &str = "store.cassandra.tls.key";

pub(super) fn config(tls: &Tls) -> Result<Arc<ClientConfig>, StartError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CA, &tls.ca)? {
        roots.add(certificate).map_err(|error| wrong(CA, &tls.ca, &error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(CA, &tls.ca, &error))?
        .with_root_certificates(roots);
    let config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let key =
                PrivateKeyDer::from_pem_file(&client.key).map_err(|error| wrong(KEY, &client.key, &error))?;
            builder
                .with_client_auth_cert(certificates(CERTIFICATE, &client.certificate)?, key)
                .map_err(|error| wrong(CERTIFICATE, &client.certificate, &error))?
        }
    };
    Ok(Arc::new(config))
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, StartError> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match certificates.map_err(|error| wrong(key, path, &error))? {
        none if none.is_empty() => Err(wrong(key, path, &"there is no certificate in it")),
        some => Ok(some),
    }
}

fn wrong(key: &'static str, path: &Path, cause: &dyn std::fmt::Display) -> StartError {
    StartError::TlsFile { key, path: path.to_owned(), cause: cause.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::connect::ClientCertificate;
    use std::fs;

    #[test]
    fn files_that_cannot_be_used_are_named_with_their_setting() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty.pem");
        fs::write(&empty, "").unwrap();
        let message = |tls: &Tls| config(tls).unwrap_err().to_string();
        let missing = Tls { ca: folder.path().join("none.pem"), client: None };
        let missing_message = message(&missing);
        assert!(missing_message.starts_with("store.cassandra.tls.ca: read "), "{missing_message}");
        assert!(missing_message.contains("none.pem: "), "{missing_message}");
        let empty_message = message(&Tls { ca: empty.clone(), client: None });
        assert!(empty_message.ends_with("empty.pem: there is no certificate in it"), "{empty_message}");
        assert!(message(&Tls { ca: empty, client: None }).starts_with("store.cassandra.tls.ca: "));
    }

    #[test]
    fn a_client_certificate_needs_a_key_that_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let [ca, key] = ["ca.pem", "key.pem"].map(|name| folder.path().join(name));
        fs::write(&ca, made.cert.pem()).unwrap();
        let client = ClientCertificate { certificate: ca.clone(), key: key.clone() };
        let tls = Tls { ca, client: Some(client) };
        assert!(config(&tls).unwrap_err().to_string().starts_with("store.cassandra.tls.key: read "));
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        config(&tls).unwrap();
    }
}
