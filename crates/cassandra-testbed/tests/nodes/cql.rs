//! A minimal CQL client (binary protocol v4): logs in over TLS and runs a statement.

use mw_cassandra_testbed::CQL_PORT;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

const STARTUP: u8 = 0x01;
const QUERY: u8 = 0x07;
const AUTH_RESPONSE: u8 = 0x0f;

pub(crate) const ERROR: u8 = 0x00;
pub(crate) const AUTHENTICATE: u8 = 0x03;
const RESULT: u8 = 0x08;
const AUTH_SUCCESS: u8 = 0x10;

const LOCAL_QUORUM: u16 = 0x0006;

pub(crate) struct Client<S> {
    stream: S,
}

pub(crate) type TlsClient = Client<StreamOwned<ClientConnection, TcpStream>>;

pub(crate) fn connect(address: Ipv4Addr, timeout: Duration) -> io::Result<Client<TcpStream>> {
    let stream = TcpStream::connect((address, CQL_PORT))?;
    stream.set_read_timeout(Some(timeout))?;
    Ok(Client { stream })
}

/// Trusts what `ca_pem` signed and nothing else.
pub(crate) fn connect_tls(address: Ipv4Addr, ca_pem: &Path) -> io::Result<TlsClient> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca_pem).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    // Named, since other crates of the workspace bring a second provider.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::IpAddress(std::net::IpAddr::from(address).into());
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = connect(address, TIMEOUT)?.stream;
    Ok(Client { stream: StreamOwned::new(connection, socket) })
}

impl<S: Read + Write> Client<S> {
    /// Returns the opcode of the server's response.
    pub(crate) fn start(&mut self) -> io::Result<u8> {
        let mut body = 1_u16.to_be_bytes().to_vec();
        for text in ["CQL_VERSION", "3.0.0"] {
            body.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
            body.extend(text.as_bytes());
        }
        self.request(STARTUP, &body).map(|(kind, _)| kind)
    }

    pub(crate) fn log_in(&mut self, user: &str, password: &str) -> io::Result<bool> {
        assert_eq!(self.start()?, AUTHENTICATE);
        let token = format!("\0{user}\0{password}");
        let mut body = u32::try_from(token.len()).unwrap().to_be_bytes().to_vec();
        body.extend(token.as_bytes());
        self.request(AUTH_RESPONSE, &body).map(|(kind, _)| kind == AUTH_SUCCESS)
    }

    /// The body of the result, which has the values somewhere.
    pub(crate) fn run(&mut self, statement: &str) -> io::Result<String> {
        let mut body = u32::try_from(statement.len()).unwrap().to_be_bytes().to_vec();
        body.extend(statement.as_bytes());
        body.extend(LOCAL_QUORUM.to_be_bytes());
        body.push(0);
        let (kind, body) = self.request(QUERY, &body)?;
        let body = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(kind, RESULT, "{statement}: {body}");
        Ok(body)
    }

    fn request(&mut self, opcode: u8, body: &[u8]) -> io::Result<(u8, Vec<u8>)> {
        let mut frame = vec![4, 0, 0, 0, opcode];
        frame.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        frame.extend(body);
        self.stream.write_all(&frame)?;
        self.stream.flush()?;
        let mut header = [0; 9];
        self.stream.read_exact(&mut header)?;
        let length = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body)?;
        Ok((header[4], body))
    }
}
