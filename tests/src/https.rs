//! A client of the daemon's HTTP port, with or without TLS, as a scraper, a probe or an attacker would be.
//!
//! Guarantees: bytes are sent unchanged, so a test can send what no library would.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::certificates::Identity;

/// The daemon answers within this time, or closes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The port's address, and how to connect to it.
#[derive(Clone)]
pub struct Port {
    /// Its address.
    pub address: SocketAddr,
    /// The trusted authority; without one there is no TLS.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub identity: Option<Identity>,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Everything before the body.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Bytes in both directions.
pub trait Pipe: Read + Write {}
impl<P: Read + Write> Pipe for P {}

impl Port {
    /// A port without TLS.
    #[must_use]
    pub fn plain(address: SocketAddr) -> Self {
        Self { address, ca: None, identity: None }
    }

    /// A port with TLS.
    #[must_use]
    pub fn tls(address: SocketAddr, ca: &Path) -> Self {
        Self { address, ca: Some(ca.to_owned()), identity: None }
    }

    /// A connection; the TLS handshake happens with the first byte.
    ///
    /// # Panics
    /// When nothing listens, or the files cannot be used.
    #[must_use]
    pub fn connect(&self) -> Box<dyn Pipe> {
        let stream = TcpStream::connect(self.address).expect("a listening port");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let Some(ca) = &self.ca else { return Box::new(stream) };
        let mut roots = RootCertStore::empty();
        let read = |path: &Path| CertificateDer::pem_file_iter(path).expect("a file").map(|found| found.expect("PEM"));
        read(ca).for_each(|certificate| roots.add(certificate).expect("an authority"));
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("versions").with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { cert, key }) => {
                let key = PrivateKeyDer::from_pem_file(key).expect("a key");
                builder.with_client_auth_cert(read(cert).collect(), key).expect("its certificate")
            }
        };
        // Prometheus and browsers offer both protocols, so this client does too. The port selects one.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = "localhost".try_into().expect("a name");
        Box::new(StreamOwned::new(ClientConnection::new(Arc::new(config), name).expect("TLS"), stream))
    }

    /// Sends bytes unchanged, and reads one answer to its end; it is an error if the connection ends without one.
    ///
    /// # Errors
    /// The connection broke before an answer, or TLS was refused.
    pub fn send(&self, bytes: &[u8]) -> std::io::Result<Answer> {
        let mut pipe = self.connect();
        // If the client is refused while it still sends, it sees the refusal only when it reads.
        let written = pipe.write_all(bytes).and_then(|()| pipe.flush());
        let mut text = Vec::new();
        let read = pipe.read_to_end(&mut text);
        let answer = parsed(&String::from_utf8_lossy(&text));
        answer.ok_or_else(|| read.err().or(written.err()).unwrap_or_else(|| std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// One request with these header lines, on a connection of its own.
    ///
    /// # Panics
    /// When no answer comes.
    #[must_use]
    pub fn ask(&self, method: &str, path: &str, headers: &[String]) -> Answer {
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
        self.send(request.as_bytes()).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// A page, requested with this token.
    ///
    /// # Panics
    /// When no answer comes.
    #[must_use]
    pub fn page(&self, path: &str, token: Option<&str>) -> Answer {
        let headers: Vec<String> = token.iter().map(|token| format!("Authorization: Bearer {token}")).collect();
        self.ask("GET", path, &headers)
    }
}

fn parsed(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

/// The address in a URL.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn address(url: &str) -> SocketAddr {
    let (_, address) = url.split_once("://").expect("a scheme");
    address.parse().expect("an address and a port")
}

/// An address of this machine that is not on the loopback interface.
///
/// # Panics
/// When the machine has none.
#[must_use]
pub fn off_loopback() -> IpAddr {
    // The address that the system would send from; nothing is sent.
    let found = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    let address = found.expect("this machine needs a network interface besides lo").ip();
    assert!(!address.is_loopback() && !address.is_unspecified(), "{address}");
    address
}
