//! Runs of `memctl run` that recorded nothing: a small file for each job, so that an older run is not taken for them.
//!
//! Guarantees: files have mode 0600 and lie beside the store, in a folder for each destination; at most
//! [`RECORDS_MAX`] of them are kept. The next recorded run of the job removes its file, and so does the delivery
//! of what a run left on disk. An error here never affects the
//! command of a run: without a file there is no warning.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memctl_answers::Job;
use memctl_answers::format::time::date;
use memctl_answers::naming::shell_word;
use memctl_model::fingerprint::Fingerprint;
use serde::{Deserialize, Serialize};

use crate::args::Global;
use crate::connect;
use crate::exit::{Failure, Outcome};
use crate::hosting::{data_dirs, now_ns, private_files};
use crate::render::text::safe;

/// The folder beside the store.
const FOLDER: &str = "unrecorded";
/// Files for one destination; the oldest are removed.
const RECORDS_MAX: usize = 64;
/// The most bytes of a file that are read.
const FILE_BYTES_MAX: u64 = 4 << 10;

/// The last run of a job, which recorded nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Unrecorded {
    job: String,
    at_ns: u64,
}

/// Notes that a run of a job recorded nothing.
pub fn keep(global: &Global, job: &str) {
    if let Some(place) = Place::of(global) {
        // Without the file there is no warning; the command's exit code must not depend on it.
        let _ = place.keep(job, now_ns());
    }
}

/// Notes that a run of a job was recorded.
pub fn forget(global: &Global, job: &str) {
    if let Some(place) = Place::of(global) {
        let _ = std::fs::remove_file(place.file(job));
    }
}

/// Refuses a question about the newest run of a job if a later run recorded nothing. `word` is the job as it was named.
///
/// # Errors
/// No such job: the last run of it recorded nothing.
pub fn refuse(global: &Global, word: &str, newest: &Job) -> Result<(), Failure> {
    match Place::of(global).and_then(|place| place.read(word)).filter(|last| last.is_after(newest)) {
        Some(last) => Err(last.failure(Some(newest))),
        None => Ok(()),
    }
}

/// Why nothing is stored of a run of a job that has just ended: it recorded nothing, or what it recorded is not stored.
/// `None` if neither is known.
pub fn of_launch(global: &Global, job: &str, newest: Option<&Job>) -> Option<Failure> {
    let last = Place::of(global).and_then(|place| place.read(job));
    match (last.filter(|last| newest.is_none_or(|newest| last.is_after(newest))), newest) {
        (Some(last), newest) => Some(last.failure(newest)),
        (None, Some(newest)) => Some(Failure::no_such_job(format!(
            "nothing of this run of job {job} is stored; {} is an older run",
            shell_word(&numbered(newest))
        ))),
        (None, None) => None,
    }
}

/// The failure of a question about a job. If there is no such job because its only run recorded nothing, it says so.
pub fn explained(global: &Global, word: &str, failure: Failure) -> Failure {
    match Place::of(global).filter(|_| failure.outcome == Outcome::NoSuchJob).and_then(|place| place.read(word)) {
        Some(last) => last.failure(None),
        None => failure,
    }
}

/// A run by its number, also if it is the only one of its job.
fn numbered(run: &Job) -> String {
    format!("{}#{}", run.name, run.run.unwrap_or(1))
}

/// Says on standard error that a later run of a job recorded nothing.
pub fn note(global: &Global, word: &str) {
    let last = Place::of(global).filter(|_| !global.quiet).and_then(|place| place.read(word));
    if let Some(last) = last {
        eprintln!("memctl: {}; this is an older run", safe(&last.sentence()));
    }
}

impl Unrecorded {
    fn is_after(&self, run: &Job) -> bool {
        self.at_ns > run.arrived_at.0
    }

    fn failure(&self, older: Option<&Job>) -> Failure {
        let older = older.map_or_else(String::new, |run| format!("; {} is the older run", shell_word(&numbered(run))));
        Failure::no_such_job(format!("{}{older}", self.sentence()))
    }

    fn sentence(&self) -> String {
        format!("the last `memctl run` of job {}, at {}, recorded nothing", self.job, date(self.at_ns))
    }
}

/// The folder for a destination.
struct Place {
    folder: PathBuf,
    tenant: String,
}

impl Place {
    fn of(global: &Global) -> Option<Self> {
        let data_dir = global.data_dir.clone().or_else(|| connect::default_data_dir().ok())?;
        let address = global.daemon_address().map(|address| address.url);
        let tenant = global.credentials().tenant.unwrap_or_default();
        Self::below(&data_dir, address.as_deref(), tenant)
    }

    /// A destination is named as its spool is.
    fn below(data_dir: &Path, daemon: Option<&str>, tenant: String) -> Option<Self> {
        let spool = data_dirs::spool_folder(data_dir, daemon);
        Some(Self { folder: data_dir.join(FOLDER).join(spool.file_name()?), tenant })
    }

    /// A job's name may have slashes, so the file has the name's fingerprint.
    fn file(&self, job: &str) -> PathBuf {
        self.folder.join(Fingerprint::of([self.tenant.as_str(), job]).to_string())
    }

    fn keep(&self, job: &str, at_ns: u64) -> std::io::Result<()> {
        // Without a data folder there is no older run. (With MEMCTL_DISABLED, no folder is made.)
        if !self.folder.ancestors().nth(2).is_some_and(Path::is_dir) {
            return Ok(());
        }
        private_files::make(&self.folder)?;
        let content = serde_json::to_vec(&Unrecorded { job: job.to_owned(), at_ns })?;
        let file = self.file(job);
        let _ = std::fs::remove_file(&file);
        private_files::file().write(true).create(true).truncate(true).open(file)?.write_all(&content)?;
        self.remove_old();
        Ok(())
    }

    fn remove_old(&self) {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        let dated = |entry: std::fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
        let mut files: Vec<(SystemTime, PathBuf)> = entries.flatten().filter_map(dated).collect();
        files.sort();
        let old = files.len().saturating_sub(RECORDS_MAX);
        for (_, file) in files.into_iter().take(old) {
            let _ = std::fs::remove_file(file);
        }
    }

    /// The record of a job; `None` for a word that names one of its runs, or `latest`.
    fn read(&self, word: &str) -> Option<Unrecorded> {
        use std::io::Read as _;
        let mut content = Vec::new();
        std::fs::File::open(self.file(word)).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut content).ok()?;
        serde_json::from_slice::<Unrecorded>(&content).ok().filter(|last| last.job == word)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_record_is_private_of_one_job_and_destination_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let place = |daemon, tenant: &str| Place::below(folder.path(), daemon, tenant.to_owned()).unwrap();
        let here = place(None, "");
        here.keep("team/gpt2", 7).unwrap();
        assert_eq!(here.read("team/gpt2"), Some(Unrecorded { job: "team/gpt2".into(), at_ns: 7 }));
        assert_eq!(here.file("team/gpt2").metadata().unwrap().permissions().mode() & 0o777, 0o600);
        for other in [place(Some("http://elsewhere:7717"), ""), place(None, "others")] {
            assert_eq!(other.read("team/gpt2"), None);
        }
        assert_eq!((here.read("gpt2"), here.read("team/gpt2#1")), (None, None));
        (0..RECORDS_MAX + 5).for_each(|at| here.keep(&format!("job{at}"), 7).unwrap());
        assert_eq!(std::fs::read_dir(&here.folder).unwrap().count(), RECORDS_MAX);
    }
}
