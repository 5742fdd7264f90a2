//! TLS of the daemon's ports: its certificate, and which clients may connect. Both can be replaced while the daemon
//! runs.
//!
//! Guarantees: changed files apply to new connections, and existing connections continue. Files that cannot be used
//! change nothing and are logged once. The protocol is TLS 1.2 or 1.3, implemented by rustls.
//! Refuses: to start with unusable files, or with a certificate that does not match its key.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use memctl_answers::format::time::rfc3339;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::{Speaks, certificate};
use crate::clock::now_ns;

/// How often the files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The files of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The daemon's certificate with its chain, in PEM.
    pub cert: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// The authorities of clients' certificates, in PEM. Without them, certificates of clients are not requested.
    pub client_ca: Option<PathBuf>,
    /// Whether a client must have a certificate.
    pub client_auth: ClientAuth,
}

/// Whether a client must have a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// A client without a certificate cannot connect.
    #[default]
    Required,
    /// A certificate is verified if the client presents one.
    Optional,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("TLS: {path}: {reason}")]
pub struct TlsError {
    path: String,
    reason: String,
}

impl TlsError {
    fn new(path: &Path, reason: impl ToString) -> Self {
        Self { path: path.display().to_string(), reason: reason.to_string() }
    }
}

/// The modification times and sizes of the files when they were read.
type Stamp = Vec<Option<(SystemTime, u64)>>;

/// The configurations in force. They differ only in the protocol that they offer.
struct Configs {
    grpc: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
}

/// The certificates in force.
pub struct Certificates {
    files: TlsFiles,
    configs: RwLock<Configs>,
    stamp: Mutex<Stamp>,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// The first file that cannot be used.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let stamp = stamp(&files);
        let configs = RwLock::new(configs(&files)?);
        Ok(Arc::new(Self { files, configs, stamp: Mutex::new(stamp) }))
    }

    /// Reads the files again for the next connections.
    ///
    /// # Errors
    /// The first file that cannot be used, or a certificate that is not valid now. The former configuration then stays in
    /// force.
    pub fn reload(&self) -> Result<(), TlsError> {
        // The stamp is taken before reading, so that a change in between is noticed next time.
        let stamp = stamp(&self.files);
        *self.stamp.lock().unwrap_or_else(PoisonError::into_inner) = stamp;
        let configs = configs(&self.files)?;
        self.refuse_invalid()?;
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = configs;
        Ok(())
    }

    /// Reloads the files whenever they change; never returns.
    pub async fn follow(self: Arc<Self>) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            look.tick().await;
            let this = self.clone();
            // The files may be on a network drive, so they are read on a thread of their own.
            let looked = tokio::task::spawn_blocking(move || this.reload_if_changed()).await;
            match looked {
                Ok(Some(Ok(()))) => {
                    tracing::info!(cert = %self.files.cert.display(), "TLS: the certificates were reloaded")
                }
                Ok(Some(Err(error))) => {
                    tracing::error!(%error, "the certificates were not reloaded; the former ones remain in force")
                }
                Ok(None) | Err(_) => {}
            }
        }
    }

    /// Clients refuse a certificate that is not valid now, and the former one may still be valid.
    fn refuse_invalid(&self) -> Result<(), TlsError> {
        let chain = certificates(&self.files.cert)?;
        match chain.first().and_then(why_invalid) {
            Some(why) => Err(TlsError::new(&self.files.cert, why)),
            None => Ok(()),
        }
    }

    fn reload_if_changed(&self) -> Option<Result<(), TlsError>> {
        let has_changed = stamp(&self.files) != *self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        has_changed.then(|| self.reload())
    }

    /// The acceptor for the next connection.
    pub(super) fn acceptor(&self, speaks: Speaks) -> TlsAcceptor {
        let configs = self.configs.read().unwrap_or_else(PoisonError::into_inner);
        let config = match speaks {
            Speaks::Grpc => &configs.grpc,
            Speaks::Http => &configs.http,
        };
        config.clone().into()
    }
}

fn stamp(files: &TlsFiles) -> Stamp {
    let of = |path: &PathBuf| path.metadata().ok().and_then(|found| Some((found.modified().ok()?, found.len())));
    [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()].into_iter().flatten().map(of).collect()
}

fn configs(files: &TlsFiles) -> Result<Configs, TlsError> {
    let config = config(files)?;
    let speaking = |speaks: Speaks| {
        let mut config = config.clone();
        config.alpn_protocols = vec![speaks.alpn().to_vec()];
        Arc::new(config)
    };
    Ok(Configs { grpc: speaking(Speaks::Grpc), http: speaking(Speaks::Http) })
}

fn config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::new(&files.cert, error))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| TlsError::new(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match files.client_auth {
                ClientAuth::Required => verifier,
                ClientAuth::Optional => verifier.allow_unauthenticated(),
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| TlsError::new(path, error))?)
        }
    };
    let chain = certificates(&files.cert)?;
    if chain.first().is_some_and(|own| certificate::is_authority(own)) {
        // Other clients may accept such a certificate, but memctl's do not.
        tracing::warn!(
            cert = %files.cert.display(),
            "TLS: this is an authority's own certificate (CA:TRUE), which memctl's clients refuse as a server's; make one with CA:FALSE"
        );
    }
    if let Some(why) = chain.first().and_then(why_invalid) {
        tracing::warn!(
            cert = %files.cert.display(),
            why,
            "TLS: this certificate is not valid now, so clients refuse it; replace its file, or set this machine's clock"
        );
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| TlsError::new(&files.key, format!("it contains no private key in PEM: {error}")))?;
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        TlsError::new(&files.cert, format!("it does not go with the key {}: {error}", files.key.display()))
    })?;
    // Sessions are never resumed, so that every new connection verifies the certificate. Connections last long, so this
    // costs little.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Why clients refuse a certificate now; `None` if it is valid, or its times cannot be read.
fn why_invalid(own: &CertificateDer<'static>) -> Option<String> {
    let now_s = now_ns() / 1_000_000_000;
    let (first_s, last_s) = (certificate::not_before_s(own)?, certificate::read(own).not_after_s?);
    let at = |seconds: u64| rfc3339(seconds.saturating_mul(1_000_000_000));
    match () {
        () if last_s < now_s => Some(format!("it expired at {}", at(last_s))),
        () if first_s > now_s => Some(format!("it is valid from {}", at(first_s))),
        () => None,
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::new(path, "it contains no certificate in PEM")),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::new(path, format!("it cannot be read as PEM: {error}"))),
    }
}
