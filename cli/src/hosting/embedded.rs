//! A daemon in this process, on a folder's SQLite store.
//!
//! Guarantees: when it is closed everything is durable and the store is free for others.

use std::path::Path;

use memctl_daemon::alerts::Rules;
use memctl_daemon::store::StoreError;
use memctl_daemon::{config, entry, server};
use tonic::transport::Channel;

use super::{serve_failure, store_failure};
use crate::exit::Failure;

/// A daemon in this process. It ends when [`Embedded::close`] is called, with everything durable.
pub struct Embedded {
    /// The channel to it.
    pub channel: Channel,
    daemon: server::Embedded,
}

impl Embedded {
    /// Serves the page on a port of this machine (0: any); returns the address that opens it once.
    ///
    /// # Errors
    /// The port is not free.
    pub async fn page(&mut self, port: u16) -> Result<String, Failure> {
        entry::page(&mut self.daemon, port).await.map_err(|error| serve_failure(&error))
    }

    /// Drains, closes the store and waits for both.
    pub async fn close(self) {
        let Self { channel, daemon } = self;
        drop(channel);
        if let Err(error) = entry::stop_embedded(daemon).await {
            eprintln!("memctl: the store could not be closed: {error}");
        }
    }
}

/// What to do with a store that another process writes, or that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Read it.
    Read,
    /// Read it, also if no process writes it now: its writer may come from another host.
    ReadOnly,
    /// Fail.
    Refuse,
}

/// Hosts the daemon in this process on the SQLite store in `data_dir` (created if missing) and returns a channel to it.
///
/// # Errors
/// A store that cannot be opened: no permission, newer version, in use by a daemon.
pub async fn embedded(data_dir: &Path, beside: Beside) -> Result<Embedded, Failure> {
    let holder = format!("another memctl (pid {})", std::process::id());
    let address = config::in_folder(data_dir);
    let opened = match beside {
        Beside::ReadOnly => entry::open_read_only(&address).await,
        Beside::Read | Beside::Refuse => entry::open(&address, &holder).await,
    };
    let opened = match opened {
        // A store that cannot be written can still be read.
        Err(StoreError::ReadOnly { .. }) if beside == Beside::Read => entry::open_read_only(&address).await,
        Err(StoreError::InUse { .. }) if beside == Beside::Read => entry::open_read_only(&address).await,
        opened => opened,
    };
    let store = opened.map_err(|error| store_failure(&error))?;
    let rules = alert_rules()?;
    let daemon = entry::start_embedded(store, rules).await.map_err(|error| serve_failure(&error))?;
    Ok(Embedded { channel: daemon.channel(), daemon })
}

/// The rules of a daemon in this process: those of the file that the environment names, else the built-in ones.
fn alert_rules() -> Result<Rules, Failure> {
    match std::env::var_os("MEMCTL_ALERT_RULES").filter(|path| !path.is_empty()) {
        Some(path) => Rules::from_file(Path::new(&path)).map_err(|error| Failure::usage(error.to_string())),
        None => Ok(Rules::default()),
    }
}
