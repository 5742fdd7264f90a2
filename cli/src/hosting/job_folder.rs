//! The folder of a job whose launch runs on several nodes. It lies on a file system that the nodes share.
//!
//! | file | content |
//! |---|---|
//! | `job.json` | the job's name and labels |
//! | `host` | the host that runs the job's daemon |
//! | `job.pem` | the daemon's certificate with its key. Callers trust it, and also identify themselves with it |
//! | `daemon.json` | the addresses of the daemon |
//! | `guests/HOST-PID` | a launcher of another host has joined; the launcher removes it at its end |
//!
//! Everything else is as in any data folder: the store, and the files of the local service, which is the job's daemon.
//!
//! Guarantees: one host at a time has the claim, which is the right to run the job's daemon. A claim is a hard link,
//! which NFS creates atomically. Files have the mode 0600, and readers see a file as a whole or not at all.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memctl_model::scheduler::SlurmJob;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{data_dirs, private_files, service};

/// The parent of the folders of jobs, in a folder that nodes share.
const JOBS: &str = "jobs";
/// At most this many bytes of a file are read. No file in the module's table is longer.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// The folder of the launchers of other hosts.
const GUESTS: &str = "guests";
/// The longest name of a folder. File systems allow 255 bytes.
const NAME_BYTES_MAX: usize = 200;

/// The folder; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFolder {
    path: PathBuf,
}

/// `job.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    job: String,
    labels: Vec<(String, String)>,
}

/// `daemon.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// The daemon's host.
    pub host: String,
    /// Its port on that host.
    pub port: u16,
    /// The same daemon under different names and addresses of its host.
    pub urls: Vec<String>,
}

/// The outcome of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// This host runs the job's daemon.
    Ours,
    /// The named host runs it.
    OfHost(String),
}

/// A launcher of another host that has joined. Its file is removed when the value is dropped.
#[derive(Debug)]
pub struct Guest {
    file: PathBuf,
}

impl Drop for Guest {
    fn drop(&mut self) {
        // A file that stays is ignored once it is old.
        let _ = std::fs::remove_file(&self.file);
    }
}

impl JobFolder {
    /// The folder of a launch, below a folder that its nodes share.
    #[must_use]
    pub fn of(shared: &Path, launch: &str) -> Self {
        let plain = |character: char| match character {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' | '_' => character,
            _ => '_',
        };
        let name: String = launch.chars().map(plain).take(NAME_BYTES_MAX).collect();
        Self { path: shared.join(JOBS).join(name) }
    }

    /// The folder at this path; `None` if it is not a job's folder.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        let folder = Self { path: path.to_owned() };
        folder.job().map(|_| folder)
    }

    /// The folders of this user's jobs on several nodes, the newest first.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let environment = |name: &str| std::env::var_os(name).map(PathBuf::from);
        data_dirs::of_all_nodes(&environment).map(|shared| Self::below(&shared)).unwrap_or_default()
    }

    fn below(shared: &Path) -> Vec<Self> {
        let entries = std::fs::read_dir(shared.join(JOBS)).into_iter().flatten().flatten();
        let made = |folder: &Self| folder.path.join("job.json").metadata().and_then(|found| found.modified()).ok();
        let mut found: Vec<Self> = entries.filter_map(|entry| Self::at(&entry.path())).collect();
        found.sort_by_cached_key(|folder| std::cmp::Reverse(made(folder)));
        found
    }

    /// Whether a word names this job: its name, one of its runs (`NAME#3`), or a job of Slurm (`slurm:1234`).
    #[must_use]
    pub fn is_named(&self, word: &str) -> bool {
        let Some(About { job, labels }) = self.read("job.json") else { return false };
        let of_slurm = || SlurmJob::written(word).is_some_and(|slurm| slurm.is(&labels));
        word == job || word.rsplit_once('#').is_some_and(|(name, _)| name == job) || of_slurm()
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The certificate with its key.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.path.join("job.pem")
    }

    /// The job's name.
    #[must_use]
    pub fn job(&self) -> Option<String> {
        self.read::<About>("job.json").map(|about| about.job)
    }

    /// Creates the folder for a job, unless it exists.
    ///
    /// # Errors
    /// The folder cannot be created or written.
    pub fn make(&self, job: &str, labels: &[(String, String)]) -> std::io::Result<()> {
        private_files::folder(&self.path)?;
        let about = About { job: job.to_owned(), labels: labels.to_vec() };
        match self.link("job.json", &serde_json::to_vec(&about)?) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Claims the job for this host, or names the host that has it. A claim of this host from before a reboot is
    /// replaced.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn claim(&self) -> std::io::Result<Claim> {
        let own = service::host();
        loop {
            match self.link("host", own.as_bytes()) {
                Ok(()) => return Ok(Claim::Ours),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            match self.text("host") {
                Some(host) if host == own => return Ok(Claim::Ours),
                Some(host) if first_word(&host) == first_word(&own) => {
                    self.replace("host", own.as_bytes())?;
                    return Ok(Claim::Ours);
                }
                Some(host) => return Ok(Claim::OfHost(first_word(&host).to_owned())),
                // It was released between the two calls.
                None => {}
            }
        }
    }

    /// The other host that has the claim, if any.
    #[must_use]
    pub fn other_host(&self) -> Option<String> {
        let host = first_word(&self.text("host")?).to_owned();
        (host != own_name()).then_some(host)
    }

    /// Gives the claim of this host back, so that another host may open the store.
    pub fn release(&self) {
        if self.other_host().is_none() {
            // What cannot be removed is reported by the next host that needs it.
            let _ = std::fs::remove_file(self.path.join("daemon.json"));
            let _ = std::fs::remove_file(self.path.join("host"));
        }
    }

    /// Notes that a launcher of this host has joined the daemon of another host.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn enter(&self) -> std::io::Result<Guest> {
        let folder = self.path.join(GUESTS);
        private_files::folder(&folder)?;
        let file = folder.join(format!("{}-{}", own_name(), std::process::id()));
        private_files::file().write(true).create(true).truncate(true).open(&file)?;
        Ok(Guest { file })
    }

    /// Launchers of other hosts that have joined within this time, and have not ended.
    #[must_use]
    pub fn guests(&self, within: Duration) -> u64 {
        let entries = std::fs::read_dir(self.path.join(GUESTS)).into_iter().flatten().flatten();
        // The clock of another host may be ahead, which makes the time negative.
        let joined = |entry: &std::fs::DirEntry| entry.metadata().and_then(|found| found.modified()).ok();
        let is_new =
            |entry: &std::fs::DirEntry| joined(entry).is_some_and(|at| at.elapsed().unwrap_or_default() < within);
        entries.filter(is_new).count() as u64
    }

    /// Where the daemon listens, if it does.
    #[must_use]
    pub fn addresses(&self) -> Option<Addresses> {
        self.read("daemon.json")
    }

    /// Writes where the daemon listens.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn publish(&self, addresses: &Addresses) -> std::io::Result<()> {
        self.replace("daemon.json", &serde_json::to_vec(addresses)?)
    }

    /// Writes a new certificate.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn put_certificate(&self, pem: &str) -> std::io::Result<()> {
        self.replace("job.pem", pem.as_bytes())
    }

    fn written(&self, content: &[u8]) -> std::io::Result<tempfile::NamedTempFile> {
        let mut file = tempfile::NamedTempFile::new_in(&self.path)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        Ok(file)
    }

    /// Creates a file that does not exist yet.
    fn link(&self, name: &str, content: &[u8]) -> std::io::Result<()> {
        let file = self.written(content)?;
        std::fs::hard_link(file.path(), self.path.join(name))
    }

    fn replace(&self, name: &str, content: &[u8]) -> std::io::Result<()> {
        self.written(content)?.persist(self.path.join(name)).map(drop).map_err(|error| error.error)
    }

    fn text(&self, name: &str) -> Option<String> {
        use std::io::Read as _;
        let mut text = String::new();
        std::fs::File::open(self.path.join(name)).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_str(&self.text(name)?).ok()
    }
}

/// The name of this host.
pub(super) fn own_name() -> String {
    first_word(&service::host()).to_owned()
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn one_host_has_the_claim() {
        let shared = tempfile::tempdir().unwrap();
        let folder = JobFolder::of(shared.path(), "slurm/c/12.0");
        assert_eq!(folder.path(), shared.path().join("jobs/slurm_c_12.0"));
        assert_eq!(JobFolder::at(folder.path()), None);
        let labels = [("slurm.job".to_owned(), "12".to_owned())];
        folder.make("fit-12", &labels).unwrap();
        folder.make("another", &[]).unwrap();
        assert_eq!(JobFolder::at(folder.path()).unwrap().job().as_deref(), Some("fit-12"));
        for (word, is) in [("fit-12", true), ("fit-12#2", true), ("slurm:12", true), ("slurm:1", false)] {
            assert_eq!(folder.is_named(word), is, "{word}");
        }
        assert_eq!(JobFolder::below(shared.path()), std::slice::from_ref(&folder));
        assert_eq!(folder.path().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(
            (folder.claim().unwrap(), folder.claim().unwrap(), folder.other_host()),
            (Claim::Ours, Claim::Ours, None)
        );
        let own = service::host();
        std::fs::write(folder.path().join("host"), format!("{} another-boot", first_word(&own))).unwrap();
        assert_eq!(folder.claim().unwrap(), Claim::Ours);
        assert_eq!(folder.text("host").unwrap(), own);
        folder.release();
        std::fs::write(folder.path().join("host"), "gpu-2 its-boot").unwrap();
        assert_eq!(folder.claim().unwrap(), Claim::OfHost("gpu-2".into()));
        folder.release();
        assert_eq!(folder.other_host().as_deref(), Some("gpu-2"), "the claim of another host stays");
    }

    #[test]
    fn of_processes_that_claim_at_once_all_are_of_one_host() {
        let shared = tempfile::tempdir().unwrap();
        let folder = JobFolder::of(shared.path(), "many");
        folder.make("many", &[]).unwrap();
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| assert_eq!(folder.claim().unwrap(), Claim::Ours));
            }
        });
        let left: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        assert_eq!(left.len(), 2, "temporary files are removed: {left:?}");
    }

    #[test]
    fn a_guest_counts_until_it_leaves_or_for_a_time() {
        let shared = tempfile::tempdir().unwrap();
        let folder = JobFolder::of(shared.path(), "g");
        folder.make("g", &[]).unwrap();
        assert_eq!(folder.guests(Duration::MAX), 0);
        let guest = folder.enter().unwrap();
        assert_eq!((folder.guests(Duration::from_secs(60)), folder.guests(Duration::ZERO)), (1, 0));
        drop(guest);
        assert_eq!(folder.guests(Duration::MAX), 0);
    }

    #[test]
    fn addresses_are_as_written_and_private() {
        let shared = tempfile::tempdir().unwrap();
        let folder = JobFolder::of(shared.path(), "j");
        folder.make("j", &[]).unwrap();
        assert_eq!(folder.addresses(), None);
        let addresses = Addresses { host: "gpu-1".into(), port: 4711, urls: vec!["https://gpu-1:4711".into()] };
        folder.publish(&addresses).unwrap();
        folder.put_certificate("PEM").unwrap();
        assert_eq!(folder.addresses(), Some(addresses));
        for file in ["daemon.json", "job.pem"] {
            let mode = folder.path().join(file).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        std::fs::write(folder.path().join("daemon.json"), "{").unwrap();
        assert_eq!(folder.addresses(), None);
    }
}
