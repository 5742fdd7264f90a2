//! Where a run is recorded: a daemon that was named, this user's own, the local service, or a store in this process.
//!
//! Guarantees: an unreachable daemon costs only disk space: what it has not accepted stays in a spool in the data
//! folder, one for each destination, and is delivered by the next run with the same destination. If another program has
//! the store open, a run waits at its end, not at its beginning. Data for one daemon is never sent to another.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::Global;
use crate::connect::{self, Connection, Source, WhenMissing};
use crate::exit::Failure;
use crate::hosting::host::Limits;
use crate::hosting::service::{Service, VARIABLE};
use crate::hosting::{Daemon, EMBEDDED_SILENCE_MAX, SpoolConfig, data_dirs, private_files};

/// No process can listen on port 0, so everything goes to the spool.
const NOWHERE: &str = "http://127.0.0.1:0";

/// Where a run is recorded.
pub struct Destination {
    /// The daemon for the sessions.
    pub daemon: Daemon,
    /// The spool for what the daemon does not accept.
    pub spool: Option<SpoolConfig>,
    /// The connection to the store in this process or to this user's own daemon.
    pub connection: Option<Connection>,
    /// A line for the user at the beginning.
    pub notice: Option<String>,
    /// The kind of this destination.
    pub kind: Kind,
    /// The address of a daemon that a user started.
    pub address: Option<String>,
}

/// What a destination is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A daemon that a user started.
    Daemon,
    /// The local service.
    Service(Service),
    /// The store in this process.
    InProcess,
    /// A store that another program has open; it is tried again at the end.
    Deferred,
}

impl Kind {
    /// The kind of a connection's destination.
    pub fn of(place: &Source) -> Self {
        match place {
            Source::Daemon(_) => Self::Daemon,
            Source::Service(service) => Self::Service(service.clone()),
            Source::DataDir(_) => Self::InProcess,
        }
    }

    /// Whether the page is shown at the end, because the store is this user's and on this machine.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Service(_) | Self::InProcess)
    }
}

/// Checks the address that was named.
///
/// # Errors
/// Wrong usage.
pub fn check(global: &Global) -> Result<(), Failure> {
    global.daemon_address().map_or(Ok(()), |address| connect::check_address(&address))
}

/// Finds the destination.
///
/// # Errors
/// There is no usable folder.
pub async fn open(global: &Global) -> Result<Destination, Failure> {
    let data_dir = global.data_dir.clone().map_or_else(connect::default_data_dir, Ok);
    if let Some(address) = global.daemon_address() {
        let (spool, notice) = spool(data_dir.as_deref(), Some(&address.url));
        let named = Some(address.url.clone());
        let daemon = Daemon::Address(address).showing(global.credentials());
        return Ok(Destination { daemon, spool, connection: None, notice, kind: Kind::Daemon, address: named });
    }
    let (spool, mut notice) = spool(data_dir.as_deref(), None);
    let destination = match connect::connect(global, WhenMissing::Make).await {
        Ok(connection) => {
            let (kind, daemon) = (Kind::of(&connection.place), connection.daemon());
            let address = match &connection.place {
                Source::Daemon(address) => Some(address.url.clone()),
                Source::Service(_) | Source::DataDir(_) => None,
            };
            Destination { daemon, spool, connection: Some(connection), notice, kind, address }
        }
        Err(failure) if spool.is_some() => {
            notice = Some(format!("{failure}; what is recorded waits in the spool until that store can be opened"));
            let daemon = Daemon::Address(NOWHERE.into());
            Destination { daemon, spool, connection: None, notice, kind: Kind::Deferred, address: None }
        }
        Err(failure) => return Err(failure),
    };
    Ok(destination)
}

/// The spool below the data folder, or the reason why there is none.
fn spool(data_dir: Result<&Path, &Failure>, daemon: Option<&str>) -> (Option<SpoolConfig>, Option<String>) {
    let without =
        |reason: String| Some(format!("no spool ({reason}): what the daemon does not accept in time is lost"));
    let spool = match data_dir {
        Ok(data_dir) => data_dirs::spool(data_dir, daemon),
        Err(failure) => return (None, without(failure.to_string())),
    };
    match private_files::folder(&spool.folder).and_then(|()| private_files::writable(&spool.folder)) {
        Ok(()) => (Some(spool), None),
        Err(error) => (None, without(format!("{}: {error}", spool.folder.display()))),
    }
}

impl Destination {
    /// How long the end may take: no wait if there is no destination yet.
    pub fn limits(&self, limits: Limits) -> Limits {
        match self.kind {
            Kind::Deferred => Limits { patience: Duration::ZERO, ..limits },
            // A slow disk must not look like an unreachable daemon.
            Kind::InProcess | Kind::Service(_) => Limits { silence: EMBEDDED_SILENCE_MAX, ..limits },
            Kind::Daemon => limits,
        }
    }

    /// Variables by which processes find the destination if they outlive their launcher.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = Vec::new();
        if let (Kind::Daemon, Some(address)) = (&self.kind, &self.address) {
            variables.push(("MEMCTL_RUN_DAEMON", OsString::from(address)));
        }
        if matches!(self.kind, Kind::InProcess | Kind::Deferred) {
            variables.push((VARIABLE, "off".into()));
        }
        let data_dir = self.folder().and_then(|spool| Some(spool.parent()?.parent()?.to_owned()));
        variables.extend(data_dir.map(|folder| ("MEMCTL_RUN_DATA_DIR", folder.into_os_string())));
        variables
    }

    /// The spool's folder.
    pub fn folder(&self) -> Option<PathBuf> {
        self.spool.as_ref().map(|spool| spool.folder.clone())
    }

    /// Closes what was opened; a store drains.
    pub async fn close(self) {
        let Self { daemon, connection, .. } = self;
        // A store would wait for open connections.
        drop(daemon);
        if let Some(connection) = connection {
            connection.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_folder_there_is_no_spool_and_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let (there, notice) = spool(Ok(folder.path()), None);
        assert_eq!((there.unwrap().folder, notice), (folder.path().join("spool/local"), None));
        std::fs::write(folder.path().join("file"), "").unwrap();
        let (there, notice) = spool(Ok(&folder.path().join("file")), None);
        assert!(there.is_none() && notice.unwrap().contains("no spool"));
    }
}
