//! Signals that end a command, and the one that makes a daemon read its configuration again.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

fn no_signals(error: std::io::Error) -> Failure {
    Failure::unreachable(format!("signals cannot be handled: {error}"))
}

/// A stream of SIGHUP. From now on this signal does not end the daemon.
///
/// # Errors
/// Signals cannot be handled.
pub fn hangups() -> Result<Signal, Failure> {
    signal(SignalKind::hangup()).map_err(no_signals)
}

/// A future that completes at the first Ctrl-C or SIGTERM after this call.
///
/// # Errors
/// Signals cannot be handled.
pub fn told_to_stop() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    let mut terminated = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(no_signals)?;
    Ok(async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    })
}
