//! Checks the certificate and the key that this client presents to a daemon, before anything is sent.
//!
//! Guarantees: an error names the user's files and their fault, so the daemon does not seem to be the cause. Everything
//! that the TLS library would use is accepted.

use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

/// Why a certificate and a key cannot be presented to a daemon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The key belongs to another certificate.
    #[error("the key {} is not of the certificate {}", key.display(), cert.display())]
    OtherKey {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        cert: PathBuf,
    },
    /// The certificate has the old format without extensions.
    #[error(
        "{} is an X.509 version 1 certificate; version 3 is needed (openssl x509 -req -extfile …)", cert.display()
    )]
    Version1 {
        /// The certificate's file.
        cert: PathBuf,
    },
    /// A file's content cannot be used.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Checks that TLS can use this certificate, with its chain, and this key. Each is given as a file and its content in
/// PEM.
///
/// # Errors
/// See [`IdentityError`].
pub fn check((cert, cert_pem): (&Path, &[u8]), (key, key_pem): (&Path, &[u8])) -> Result<(), IdentityError> {
    let unusable = |path: &Path, reason: String| IdentityError::Unusable { path: path.to_owned(), reason };
    let chain = CertificateDer::pem_slice_iter(cert_pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| unusable(cert, format!("it cannot be read as PEM: {error}")))?;
    let private = PrivateKeyDer::from_pem_slice(key_pem)
        .map_err(|error| unusable(key, format!("it contains no private key in PEM: {error}")))?;
    let signing = rustls::crypto::ring::sign::any_supported_type(&private)
        .map_err(|error| unusable(key, format!("this kind of key cannot be used: {error}")))?;
    match CertifiedKey::new(chain, signing).keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        Err(Error::InconsistentKeys(_)) => Err(IdentityError::OtherKey { key: key.to_owned(), cert: cert.to_owned() }),
        // (The TLS library has no separate variant for this error.)
        Err(error) if format!("{error:?}").contains("UnsupportedCertVersion") => {
            Err(IdentityError::Version1 { cert: cert.to_owned() })
        }
        Err(error) => Err(unusable(cert, format!("this certificate cannot be used: {error}"))),
    }
}
