//! The page of a local service, on a port of this machine.

use std::path::Path;

use memctl_daemon::entry;
use memctl_daemon::http::Forwarded;

use crate::exit::Failure;

/// Serves the page that a daemon serves at `socket`, on a port or, for 0, any, until it is dropped.
///
/// # Errors
/// The port cannot be had.
pub async fn forwarded(socket: &Path, port: u16) -> Result<Forwarded, Failure> {
    entry::forward(socket, port).await.map_err(|error| Failure::unreachable(error.to_string()))
}
