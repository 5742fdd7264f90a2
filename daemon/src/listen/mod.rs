//! Listening: addresses, connections and peers.
//!
//! Guarantees: every connection has a peer ([`Peer`]). All addresses are bound before one is served. An error about an
//! address states what to do. Connections and the memory that they hold are limited, in total and per peer.
//!
//! gRPC and HTTP are served in the same way. After [`bind`], [`Bound::accept`] returns a stream of [`Connection`]s for
//! a server. [`Requests`] wraps the service and puts the peer into every request, and [`Peer::of`] reads it.

mod accept;
mod address;
mod certificate;
#[cfg(test)]
mod certificate_tests;
mod connection;
mod connection_limits;
mod descriptors;
mod peer;
mod refusal;
mod tls;
mod unix;
mod upload_budget;
mod watches;

use std::io;
use std::sync::Arc;

use tokio::net::TcpListener;

use accept::Listener;
pub use accept::{Incoming, Stopper};
pub use address::{Encryption, Listen, ListenAddressError, SocketAccess};
pub use connection::{Caller, Connection, STALLED_MAX};
pub use connection_limits::{Admission, ConnectionLimits, Connections};
pub use descriptors::raise_limit;
pub use peer::{ClientCertificate, Peer};
pub use tls::{Certificates, ClientAuth, TlsError, TlsFiles};
pub use upload_budget::{RECEIVING_BYTES, Requests, ResponseGuard, Watched};

/// The protocol of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// gRPC, over HTTP/2.
    Grpc,
    /// HTTP/1.1.
    Http,
}

impl Speaks {
    /// Its name in ALPN.
    const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Grpc => b"h2",
            Self::Http => b"http/1.1",
        }
    }
}

/// An address that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {place}: {source}{hint}")]
pub struct BindError {
    /// The address.
    pub place: String,
    /// The system's error.
    pub source: io::Error,
    /// The remedy.
    pub hint: &'static str,
}

impl BindError {
    fn new(place: &Listen, speaks: Speaks, source: io::Error) -> Self {
        let hint = match (source.kind(), place, speaks) {
            (io::ErrorKind::AddrInUse, Listen::Tcp { .. }, Speaks::Grpc) => {
                "; another program listens there: use --listen with another port, or stop it"
            }
            (io::ErrorKind::AddrInUse, Listen::Tcp { .. }, Speaks::Http) => {
                "; another program listens there: use --http-listen with another port, or stop it"
            }
            (io::ErrorKind::AddrInUse, Listen::Unix { .. }, Speaks::Grpc) => {
                "; another program listens there: use --listen unix:PATH with another path, or stop it"
            }
            (io::ErrorKind::PermissionDenied, Listen::Tcp { .. }, _) => {
                "; ports below 1024 need privileges: use a higher one"
            }
            (_, Listen::Unix { .. }, Speaks::Grpc) => {
                "; use --listen with an address and port, or unix:PATH with another path"
            }
            (_, Listen::Unix { .. }, Speaks::Http) => {
                "; use --http-listen with an address and port, or unix:PATH with another path"
            }
            _ => "",
        };
        Self { place: place.to_string(), source, hint }
    }
}

/// Addresses that are bound but not served yet.
pub struct Bound {
    listeners: Vec<Listener>,
    sockets: Vec<unix::Socket>,
    places: Vec<String>,
    speaks: Speaks,
    certificates: Option<Arc<Certificates>>,
}

/// Binds every address. Ports with TLS use these certificates.
///
/// # Errors
/// The first address that cannot be bound.
pub async fn bind(
    places: &[Listen],
    speaks: Speaks,
    certificates: Option<Arc<Certificates>>,
) -> Result<Bound, BindError> {
    let mut bound = Bound { listeners: Vec::new(), sockets: Vec::new(), places: Vec::new(), speaks, certificates };
    for place in places {
        bound.add(place).await.map_err(|source| BindError::new(place, speaks, source))?;
    }
    Ok(bound)
}

impl Bound {
    async fn add(&mut self, place: &Listen) -> io::Result<()> {
        match place {
            Listen::Unix { path, own_folder, access } => {
                let (listener, socket) = unix::bound(path, *own_folder, access.mode())?;
                self.listeners.push(Listener::Unix(listener));
                self.sockets.push(socket);
                self.places.push(place.to_string());
            }
            Listen::Tcp { address, .. } => {
                let listener = TcpListener::bind(address).await?;
                let encrypted = place.is_encrypted(self.certificates.is_some());
                let certificates = self.certificates.clone().filter(|_| encrypted);
                if encrypted && certificates.is_none() {
                    return Err(io::Error::other("there is no certificate for https://: set --tls-cert and --tls-key"));
                }
                let scheme = if encrypted { "https" } else { "http" };
                self.places.push(format!("{scheme}://{}", listener.local_addr()?));
                self.listeners.push(Listener::Tcp(listener, certificates));
            }
        }
        Ok(())
    }

    /// The addresses in the form that clients use, with the ports that the system chose.
    #[must_use]
    pub fn places(&self) -> &[String] {
        &self.places
    }

    /// Starts to accept connections. Every connection takes a place among `connections`.
    #[must_use]
    pub fn accept(self, connections: &Arc<Connections>) -> Incoming {
        Incoming::start(self.listeners, self.sockets, self.speaks, connections)
    }
}
