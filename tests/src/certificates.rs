//! Test certificate authorities, and the certificates they issue, as files.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: PathBuf,
    /// Its certificate, in PEM.
    pub file: PathBuf,
}

/// A certificate with its key, in PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Authority {
    /// Makes one, with its certificate in a folder.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let file = folder.join(format!("{name}.pem"));
        std::fs::write(&file, params.self_signed(&key).expect("a certificate").pem()).expect("a file");
        Self { issuer: Issuer::new(params, key), folder: folder.to_owned(), file }
    }

    /// Issues a certificate for `localhost`, 127.0.0.1 and this name, for servers and clients, in files of that name.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn issue(&self, name: &str) -> Identity {
        self.issue_until(name, (2999, 1, 1))
    }

    /// The same with a last day: year, month, day.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn issue_until(&self, name: &str, last: (i32, u8, u8)) -> Identity {
        self.issue_between(name, (1975, 1, 1), last)
    }

    /// The same with a first and a last day.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn issue_between(&self, name: &str, first: (i32, u8, u8), last: (i32, u8, u8)) -> Identity {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), format!("{name}.example.org")];
        let mut params = CertificateParams::new(names).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(first.0, first.1, first.2);
        params.not_after = rcgen::date_time_ymd(last.0, last.1, last.2);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        let made = Identity {
            cert: self.folder.join(format!("{name}.cert.pem")),
            key: self.folder.join(format!("{name}.key.pem")),
        };
        std::fs::write(&made.cert, cert.pem()).expect("a file");
        std::fs::write(&made.key, key.serialize_pem()).expect("a file");
        made
    }
}

impl Identity {
    /// The certificate as it goes over the wire.
    ///
    /// # Panics
    /// When the file holds none.
    #[must_use]
    pub fn der(&self) -> Vec<u8> {
        CertificateDer::from_pem_file(&self.cert).expect("a certificate").to_vec()
    }

    /// Replaces another certificate's files with this one's, as a renewal does.
    ///
    /// # Panics
    /// When the files cannot be replaced.
    pub fn replaces(&self, other: &Self) {
        for (new, old) in [(&self.cert, &other.cert), (&self.key, &other.key)] {
            let beside = old.with_extension("new");
            std::fs::copy(new, &beside).expect("a copy");
            std::fs::rename(beside, old).expect("a renewal");
        }
    }
}

/// Concatenates files into a file of trusted authorities, in one step.
///
/// # Panics
/// When a file cannot be read or written.
pub fn put(place: &Path, parts: &[&Path]) {
    let texts: Vec<String> = parts.iter().map(|part| std::fs::read_to_string(part).expect("a file")).collect();
    let beside = place.with_extension("new");
    std::fs::write(&beside, texts.concat()).expect("a file");
    std::fs::rename(beside, place).expect("a file in its place");
}

/// The certificate that a port presents, in DER; `None` if these authorities do not verify it.
///
/// # Panics
/// When the file of authorities cannot be read.
#[must_use]
pub fn served(url: &str, ca: &Path) -> Option<Vec<u8>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).expect("authorities") {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().ok()?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let address = url.trim_start_matches("https://");
    let name = "127.0.0.1".try_into().ok()?;
    let connection = ClientConnection::new(Arc::new(config), name).ok()?;
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address).ok()?);
    // Completes the client's side of the TLS handshake.
    stream.flush().ok()?;
    stream.conn.peer_certificates().and_then(<[_]>::first).map(|certificate| certificate.to_vec())
}
