//! A router on a port, with the limits of the daemon's HTTP port.

use std::net::SocketAddr;

use axum::Router;
use memctl_daemon::entry;
use memctl_daemon::http::Hosted;
use memctl_daemon::listen::{ClientAuth, TlsFiles};

use super::Tls;
use crate::exit::Failure;

/// Serves a router on a port (0: any) until dropped. A certificate is used if `tls` names one.
///
/// # Errors
/// The port is not free, the certificate cannot be used, or other machines could read what is sent.
pub async fn hosted(address: SocketAddr, tls: Tls, insecure: bool, router: Router) -> Result<Hosted, Failure> {
    let files = match (tls.cert, tls.key) {
        (Some(cert), Some(key)) => Some(TlsFiles { cert, key, client_ca: None, client_auth: ClientAuth::Optional }),
        (None, None) => None,
        _ => return Err(Failure::usage("a certificate needs its key: give --tls-cert and --tls-key")),
    };
    entry::host(address, files, insecure, router).await.map_err(|error| Failure::usage(error.to_string()))
}
