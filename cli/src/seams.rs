//! Where the command line meets the daemon and the agent: hosting one in this process, serving, importing.
//!
//! Guarantees: nothing else in this crate names those crates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use memctl_proto::v1;
use tonic::transport::Channel;

use crate::args;
use crate::exit::Failure;

/// A daemon in this process. It ends when [`Embedded::close`] is called, with everything durable.
pub struct Embedded {
    /// The way to it.
    pub channel: Channel,
    /// Tells it to drain.
    pub stop: tokio::sync::oneshot::Sender<()>,
    /// Finishes when it has drained and closed its store.
    pub task: tokio::task::JoinHandle<()>,
}

impl Embedded {
    /// Drains, closes the store and waits for both.
    pub async fn close(self) {
        // A daemon that has ended by itself has nobody left to be told; its task is then finished.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Hosts the daemon in this process on the SQLite store in `data_dir` (made when missing) and gives a way to it.
///
/// # Errors
/// A store that cannot be opened: no permission, newer version, in use by a daemon.
pub async fn embedded(data_dir: &Path) -> Result<Embedded, Failure> {
    Err(Failure::unreachable(format!("the store in {} cannot be opened by this build", data_dir.display())))
}

/// `memctl daemon`: configures, binds, serves until a signal, drains.
///
/// # Errors
/// A configuration that is wrong, an address in use, a store that cannot be opened.
pub async fn serve(flags: &args::Daemon, data_dir: Option<&Path>) -> Result<(), Failure> {
    let _ = (flags, data_dir);
    Err(Failure::unreachable("this build has no daemon"))
}

/// What to import.
pub struct ImportRequest {
    /// The job.
    pub job: String,
    /// The attempt.
    pub attempt: u32,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Files by rank, in the order of the ranks, each rank once.
    pub files: Vec<(u32, PathBuf)>,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The rank whose file is being read.
    pub rank: u32,
    /// Bytes of it that were read.
    pub bytes_read: u64,
    /// Bytes it has; `None` when unknown.
    pub bytes_total: Option<u64>,
    /// Events of it that are durable.
    pub events: u64,
}

/// Hears how far an import is; called from any thread, often.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOutcome {
    /// Events that are now durable.
    pub events: u64,
    /// Frees of blocks that the recordings never saw allocated.
    pub unknown_frees: u64,
    /// Events that contradicted the block map and were put right.
    pub contradictions: u64,
}

/// Reads every file to its end without storing anything.
///
/// # Errors
/// The first file that is not what it should be ([`Failure::input`]).
pub async fn check_files(files: &[(u32, PathBuf)]) -> Result<(), Failure> {
    let _ = files;
    Err(Failure::unreachable("this build has no importer"))
}

/// Imports through ring, batcher and uplink, as a live job does; returns when everything is acknowledged.
///
/// # Errors
/// A file that is not what it should be ([`Failure::input`]), a daemon that refuses or goes away.
pub async fn import_files(
    channel: Channel,
    request: ImportRequest,
    on_progress: OnProgress,
) -> Result<ImportOutcome, Failure> {
    let _ = (v1::ingest_client::IngestClient::new(channel), request, on_progress);
    Err(Failure::unreachable("this build has no importer"))
}
