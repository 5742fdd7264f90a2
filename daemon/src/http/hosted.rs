//! Serves a router of the program that links the daemon, on a port with the limits of the HTTP port.
//!
//! Guarantees: connections are accepted, limited and encrypted like those of the daemon's HTTP port.
//! Refuses: addresses that other machines can reach, without TLS and without `insecure`. Decides nothing about callers.

use std::net::SocketAddr;

use axum::Router;
use tokio::task::JoinSet;

use super::serve;
use crate::listen::{self, BindError, Certificates, Connections, Encryption, Listen, Speaks, TlsError, TlsFiles};

/// A router that is served until this is dropped.
pub struct Hosted {
    /// Its address, with the port that the system chose.
    pub address: String,
    _serving: JoinSet<()>,
}

/// The reason why a router is not served.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The port cannot be bound.
    #[error(transparent)]
    Listen(#[from] BindError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Other machines could read what is sent.
    #[error(
        "{0} can be reached from other machines, and what is sent could be read on its way: name a certificate with --tls-cert and --tls-key, or give --insecure if a proxy encrypts"
    )]
    Open(SocketAddr),
}

/// Serves a router on a port (0: any).
///
/// # Errors
/// See [`HostError`].
pub async fn host(
    address: SocketAddr,
    tls: Option<TlsFiles>,
    insecure: bool,
    router: Router,
) -> Result<Hosted, HostError> {
    if tls.is_none() && !insecure && !address.ip().to_canonical().is_loopback() {
        return Err(HostError::Open(address));
    }
    let encryption = if tls.is_some() { Encryption::Tls } else { Encryption::Plain };
    let certificates = tls.map(Certificates::load).transpose()?;
    let bound = listen::bind(&[Listen::Tcp { address, encryption }], Speaks::Http, certificates).await?;
    let address = bound.places().concat();
    let mut serving = JoinSet::new();
    let connections = Connections::new(serve::limits(listen::raise_limit()));
    serving.spawn(serve::serve(bound.accept(&connections), router));
    Ok(Hosted { address, _serving: serving })
}
