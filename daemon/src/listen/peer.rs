//! The other end of a connection, as the connection itself identifies it.
//!
//! Guarantees: nothing here is an unverified claim of the peer. A uid comes from the kernel, an address from the
//! network stack, and a certificate was verified before.
//!
//! Every request contains its peer. [`Peer::of`] reads it, over gRPC and HTTP.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The process that hosts the daemon.
    Embedded,
    /// A process on this machine.
    Unix {
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
        /// The process, if the system reports it. It may have ended, and its number may have been reused.
        pid: Option<i32>,
    },
    /// A client on the network.
    Tcp {
        /// Its address.
        address: SocketAddr,
        /// The certificate that was verified.
        certificate: Option<Arc<ClientCertificate>>,
    },
}

/// The content of a client's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The common name of its subject; empty if there is none.
    pub subject: String,
    /// Its alternative names: DNS names, URIs, email addresses.
    pub names: Vec<String>,
    /// SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
    /// The last second in which it is valid, in seconds since the Unix epoch.
    pub not_after_s: Option<u64>,
}

impl ClientCertificate {
    /// A name to display: the subject's, or the first alternative name. It is text from the client, so it is escaped.
    #[must_use]
    pub fn shown(&self) -> String {
        let name = Some(&self.subject).filter(|subject| !subject.is_empty()).or_else(|| self.names.first());
        name.map_or_else(|| "without a name".to_owned(), |name| name.escape_default().to_string())
    }
}

impl Peer {
    /// The sender of a request; `None` if it did not arrive over one of this crate's connections.
    #[must_use]
    pub fn of(extensions: &tonic::codegen::http::Extensions) -> Option<&Self> {
        extensions.get()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded => f.write_str("this process"),
            Self::Unix { uid, pid: Some(pid), .. } => write!(f, "uid {uid} (pid {pid})"),
            Self::Unix { uid, .. } => write!(f, "uid {uid}"),
            Self::Tcp { address, certificate: None } => address.fmt(f),
            Self::Tcp { address, certificate: Some(certificate) } => write!(f, "{address} ({})", certificate.shown()),
        }
    }
}
