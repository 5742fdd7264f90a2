//! Signals that end a command.

use crate::exit::Failure;

/// Ends at the first Ctrl-C or SIGTERM from now on.
///
/// # Errors
/// Signals cannot be handled.
pub fn told_to_stop() -> Result<impl Future<Output = ()> + Send + 'static, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let no_signals = |error: std::io::Error| Failure::unreachable(format!("signals cannot be handled: {error}"));
    let mut terminated = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupted = signal(SignalKind::interrupt()).map_err(no_signals)?;
    Ok(async move {
        tokio::select! {
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
    })
}
