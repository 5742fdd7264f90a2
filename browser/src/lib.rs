//! memctl in one process without threads, sockets and files: recordings are read, kept in memory, and the page's
//! questions about them are answered. Compiled to WebAssembly, it runs in a worker of the browser page.
//!
//! - [`Page`]: imports recordings and answers addresses below `/api/v1/`.
//! - `host`: the functions that the worker calls, and those that it provides. It exists in WebAssembly only.
//!
//! Guarantees: a recording passes the same reader, batch stage, checks and judge as with `memctl import` and a daemon.
//! A file is read in one pass and never held as a whole. A failed import leaves nothing behind.
//! Refuses: live sessions, and changes of anything but the set of recordings.

#![deny(unsafe_code)]

#[cfg(target_family = "wasm")]
mod host;
mod play;

use std::io::Read;
use std::path::PathBuf;

use memctl_agent::internals::{BatchConfig, Batcher};
use memctl_agent::source_paths::SourcePaths;
pub use memctl_daemon::http::recordings::PageAnswer;
use memctl_daemon::http::recordings::Recordings;
use memctl_model::Launch;
use memctl_snapshot::session::{self, Identity};
use memctl_snapshot::{HELD_BYTES_MAX, Progress, Recording, SnapshotError, load_from, ranks};
use tokio::runtime::{Builder, Runtime};

/// Recordings and the answers about them; see the crate.
pub struct Page {
    recordings: Recordings,
    runtime: Runtime,
    /// The number of imports so far. It distinguishes the runs of one name.
    imports: u64,
}

/// A file of an import.
pub struct ImportedFile<R> {
    /// Its name. The rank is read from it.
    pub name: PathBuf,
    /// Its bytes, plain or compressed.
    pub reader: R,
}

/// What an import stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Imported {
    /// Events.
    pub events: u64,
    /// Ranks.
    pub ranks: u32,
    /// Frees of blocks that the recordings never saw allocated.
    pub unknown_frees: u64,
    /// Events that contradicted the block map and were corrected.
    pub contradictions: u64,
}

impl Page {
    /// A page without recordings.
    ///
    /// # Errors
    /// There is no runtime for tasks.
    pub fn new() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        Ok(Self { recordings: Recordings::default(), runtime, imports: 0 })
    }

    /// Imports the files of one run of a job. `on_progress` gets the rank of the file that is read.
    ///
    /// # Errors
    /// A sentence about the first unusable file. Nothing of the import is kept then.
    pub fn import<R: Read>(
        &mut self,
        job: &str,
        files: Vec<ImportedFile<R>>,
        on_progress: &mut dyn FnMut(u32, Progress),
    ) -> Result<Imported, String> {
        self.imports += 1;
        let launcher = self.imports;
        let imported = self.import_as(job, launcher, files, on_progress);
        if imported.is_err() {
            self.runtime.block_on(self.recordings.forget(job, launcher))?;
        }
        imported
    }

    fn import_as<R: Read>(
        &self,
        job: &str,
        launcher: u64,
        files: Vec<ImportedFile<R>>,
        on_progress: &mut dyn FnMut(u32, Progress),
    ) -> Result<Imported, String> {
        let named = ranks::by_rank(files, |file| file.name.as_path()).map_err(|error| error.to_string())?;
        // If files of some ranks are missing, the world size is unknown.
        let is_each = (0_u32..).zip(&named).all(|(number, (rank, _))| number == *rank);
        let world_size = u32::try_from(named.len()).ok().filter(|_| is_each);
        let mut sum = Imported::default();
        for (rank, ImportedFile { name, reader }) in named {
            let recording = load_from(reader, HELD_BYTES_MAX, &mut |now| on_progress(rank, now))
                .map_err(|fault| SnapshotError { file: name, fault }.to_string())?;
            let identity = Identity {
                job: job.to_owned(),
                attempt: 0,
                rank,
                world_size,
                labels: Vec::new(),
                launch: Launch { launcher: Some(launcher), ..Launch::default() },
            };
            let of_rank = self.store(recording, &identity)?;
            sum.ranks += 1;
            sum.events += of_rank.events;
            sum.unknown_frees += of_rank.unknown_frees;
            sum.contradictions += of_rank.contradictions;
        }
        Ok(sum)
    }

    /// Packs and stores one recording.
    fn store(&self, recording: Recording, identity: &Identity) -> Result<Imported, String> {
        let info = session::session(&recording, identity);
        if info.devices.is_empty() {
            return Err("the session names no device".to_owned());
        }
        let mut batcher = Batcher::new(BatchConfig {
            resolution_ns: info.resolution_ns,
            settings: info.settings.clone(),
            devices: info.devices.iter().map(|device| device.index).collect(),
            linger: None,
            found: recording.found.boundaries(),
            source_paths: SourcePaths::default(),
        })
        .map_err(|error| error.to_string())?;
        let mut storing = self.runtime.block_on(self.recordings.begin(&info))?;
        let end = play::play(recording, &mut batcher, &mut |items| {
            self.runtime.block_on(storing.store(items.into_iter().map(|item| item.packed)))
        })?;
        Ok(Imported {
            events: end.produced,
            ranks: 1,
            unknown_frees: end.unknown_frees,
            contradictions: end.contradictions,
        })
    }

    /// The answer to an address below `/api/v1/`, with its query.
    #[must_use]
    pub fn get(&self, address: &str) -> PageAnswer {
        self.runtime.block_on(self.recordings.get(address))
    }
}
