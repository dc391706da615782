//! Certificates for a cluster (an authority of its own and one certificate for all members), and the client side of TLS for
//! the testbed's own commands. Valid for the loopback address and for nothing else.

use mw_testbed::{ClusterError, Result, cache};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

#[derive(Debug, Clone)]
pub(crate) struct Certificates {
    /// Certificate and key of the members, in one file as mongod reads it.
    pub(crate) member_pem: PathBuf,
    pub(crate) ca_pem: PathBuf,
}

/// In `dir`; existing ones are used again.
pub(crate) fn certificates(dir: &Path) -> Result<Certificates> {
    let made = Certificates { member_pem: dir.join("member.pem"), ca_pem: dir.join("ca.pem") };
    if made.member_pem.exists() && made.ca_pem.exists() {
        return Ok(made);
    }
    cache::create_dir(dir)?;
    let (ca, member) = make().map_err(|error| failed("make certificates", &error))?;
    cache::write(&made.ca_pem, &ca)?;
    cache::write(&made.member_pem, &member)?;
    Ok(made)
}

fn make() -> std::result::Result<(String, String), rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "Mobile World test authority");
    let ca_key = KeyPair::generate()?;
    let ca = authority.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(authority, ca_key);
    let mut member = CertificateParams::new(NAMES.map(str::to_owned))?;
    member.distinguished_name.push(DnType::CommonName, "Mobile World test member");
    let key = KeyPair::generate()?;
    let certificate = member.signed_by(&key, &issuer)?.pem();
    Ok((ca, certificate + &key.serialize_pem()))
}

/// Trusts what `ca_pem` signed and nothing else.
pub(crate) fn connect(socket: TcpStream, ca_pem: &Path) -> Result<StreamOwned<ClientConnection, TcpStream>> {
    let connection = client(ca_pem).map_err(|error| failed("set up TLS", error.as_ref()))?;
    Ok(StreamOwned::new(connection, socket))
}

fn client(ca_pem: &Path) -> std::result::Result<ClientConnection, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca_pem)? {
        roots.add(certificate?)?;
    }
    // Named, since other crates of the workspace bring a second provider.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::IpAddress(IpAddr::from(Ipv4Addr::LOCALHOST).into());
    Ok(ClientConnection::new(Arc::new(config), name)?)
}

fn failed(doing: &str, error: &dyn Error) -> ClusterError {
    ClusterError::Io { doing: doing.to_owned(), cause: std::io::Error::other(error.to_string()) }
}
