//! Telling systemd how the daemon does: its notification protocol, `sd_notify(3)`, over the socket that it names.
//!
//! Guarantees: without systemd nothing happens; a message that cannot be sent holds up nothing. The watchdog is told only while
//! the daemon is alive, so that one that hangs is started anew.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use crate::health::Health;

/// See the module; clones tell the same one.
#[derive(Clone, Default)]
pub struct ServiceManager {
    socket: Option<Arc<UnixDatagram>>,
    /// It wants to hear from the daemon at least this often.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that the environment names (`NOTIFY_SOCKET`, `WATCHDOG_USEC`), if there is one.
    #[must_use]
    pub fn of_environment() -> Self {
        let Some(place) = std::env::var_os("NOTIFY_SOCKET").filter(|place| !place.is_empty()) else {
            return Self::default();
        };
        let socket = connected(&place).inspect_err(|error| {
            tracing::warn!(%error, ?place, "the service manager cannot be told; it will think that the daemon does not start");
        });
        let own = std::env::var("WATCHDOG_PID").ok().is_none_or(|pid| pid == std::process::id().to_string());
        let every = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let watchdog = every.filter(|every| own && *every > 0).map(Duration::from_micros);
        Self { socket: socket.ok().map(Arc::new), watchdog }
    }

    /// The daemon serves.
    pub fn ready(&self) {
        self.tell("READY=1\nSTATUS=serving");
    }

    /// The configuration is read again; [`Self::ready`] follows.
    pub fn reloading(&self) {
        self.tell("RELOADING=1\nSTATUS=reading the configuration");
    }

    /// The daemon ends.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=draining");
    }

    /// Pets the watchdog as long as the tasks run; ends at once where there is none.
    pub async fn keep_alive(self, health: Health) {
        let Some(watchdog) = self.watchdog else { return };
        loop {
            let dead = health.dead();
            if dead.is_empty() {
                self.tell("WATCHDOG=1");
            } else {
                tracing::warn!(reasons = dead.join("; "), "the watchdog is not told");
            }
            // Half of it, as its manual asks.
            tokio::time::sleep(watchdog / 2).await;
        }
    }

    fn tell(&self, message: &str) {
        // Nobody listens (any more): the daemon goes on without being watched.
        let _ = self.socket.as_ref().map(|socket| socket.send(message.as_bytes()));
    }
}

/// A path, or a name in the abstract namespace when it begins with `@`.
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
