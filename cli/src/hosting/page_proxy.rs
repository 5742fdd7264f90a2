//! The page of a local service, on a port of this machine.

use std::path::Path;

use memctl_daemon::entry;
use memctl_daemon::http::Forwarded;

use crate::exit::Failure;

/// Serves the page of the daemon at `socket` on a port (0: any) until dropped.
///
/// # Errors
/// The port is not free.
pub async fn forwarded(socket: &Path, port: u16) -> Result<Forwarded, Failure> {
    entry::forward(socket, port).await.map_err(|error| Failure::unreachable(error.to_string()))
}
