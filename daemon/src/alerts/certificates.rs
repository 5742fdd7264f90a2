//! Reads certificates from PEM files. They are checked when the rules are read, and used for trust and client
//! authentication when a receiver is notified.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};

/// The certificates of a PEM file.
pub fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(format!("{shown} contains no PEM certificate")),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{shown} cannot be read as PEM: {error}")),
    }
}

/// The TLS configuration for a receiver. It trusts the authorities of a file or of the system, and presents a client
/// certificate if one is given.
pub fn client(
    is_encrypted: bool,
    ca_file: Option<&Path>,
    identity: Option<(PathBuf, PathBuf)>,
) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            for certificate in read(path)? {
                roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        // Loading the system's certificates takes time, so they are loaded only for HTTPS.
        None if is_encrypted => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                return Err(
                    "no certificates of this system were found; install ca-certificates, or name a file with the authority"
                        .into(),
                );
            }
        }
        None => {}
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let config = config.with_root_certificates(roots);
    Ok(match identity {
        Some((cert, key)) => config.with_client_cert_resolver(Arc::new(Identity { cert, key })),
        None => config.with_no_client_auth(),
    })
}

/// A certificate with its key.
pub fn identity(cert: &Path, key: &Path) -> Result<Arc<CertifiedKey>, String> {
    let chain = read(cert)?;
    let shown = key.display();
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{shown} contains no key in PEM: {error}"))?;
    let made = CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider());
    made.map(Arc::new).map_err(|error| format!("{} does not go with the key {shown}: {error}", cert.display()))
}

/// A client certificate whose files may be replaced. They are read for every connection.
#[derive(Debug)]
pub struct Identity {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let read = identity(&self.cert, &self.key);
        // If the files cannot be read, no certificate is sent, and the receiver decides.
        read.inspect_err(|reason| tracing::warn!(reason, "no client certificate is sent to a receiver")).ok()
    }

    fn has_certs(&self) -> bool {
        true
    }
}
