//! Reports the daemon's state to systemd over the socket that systemd names, with its protocol `sd_notify(3)`.
//!
//! Guarantees: without systemd nothing happens. A message that cannot be sent delays nothing. The watchdog is notified
//! only while the daemon's tasks run, so that systemd restarts a daemon that hangs.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use crate::health::Health;

/// The connection to the service manager; see the module. Clones share the socket.
#[derive(Clone, Default)]
pub struct ServiceManager {
    socket: Option<Arc<UnixDatagram>>,
    /// The longest time between two notifications that the watchdog accepts.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The service manager that the environment names (`NOTIFY_SOCKET`, `WATCHDOG_USEC`), if any.
    #[must_use]
    pub fn of_environment() -> Self {
        let Some(place) = std::env::var_os("NOTIFY_SOCKET").filter(|place| !place.is_empty()) else {
            return Self::default();
        };
        let socket = connected(&place).inspect_err(|error| {
            tracing::warn!(%error, ?place, "the service manager cannot be notified; it will assume that the daemon does not start");
        });
        let own = std::env::var("WATCHDOG_PID").ok().is_none_or(|pid| pid == std::process::id().to_string());
        let every = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let watchdog = every.filter(|every| own && *every > 0).map(Duration::from_micros);
        Self { socket: socket.ok().map(Arc::new), watchdog }
    }

    /// Reports that the daemon is ready.
    pub fn ready(&self) {
        self.tell("READY=1\nSTATUS=serving");
    }

    /// Reports that the configuration is being read again; [`Self::ready`] must follow.
    pub fn reloading(&self) {
        self.tell("RELOADING=1\nSTATUS=reading the configuration");
    }

    /// Reports that the daemon is shutting down.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=draining");
    }

    /// Notifies the watchdog while the tasks run; returns at once if there is none.
    pub async fn keep_alive(self, health: Health) {
        let Some(watchdog) = self.watchdog else { return };
        loop {
            let dead = health.dead();
            if dead.is_empty() {
                self.tell("WATCHDOG=1");
            } else {
                tracing::warn!(reasons = dead.join("; "), "the watchdog is not notified");
            }
            // The interval is halved, as the manual of systemd recommends.
            tokio::time::sleep(watchdog / 2).await;
        }
    }

    fn tell(&self, message: &str) {
        // If the socket is closed, the daemon continues without a watchdog.
        let _ = self.socket.as_ref().map(|socket| socket.send(message.as_bytes()));
    }
}

/// Connects to a path, or to a name in the abstract namespace if it begins with `@`.
fn connected(place: &std::ffi::OsStr) -> std::io::Result<UnixDatagram> {
    use std::os::unix::ffi::OsStrExt as _;
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(place)?,
    };
    socket.connect_addr(&address)?;
    Ok(socket)
}
