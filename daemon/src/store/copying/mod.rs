//! Copies of a whole store: [`backup`] from either database into one SQLite file, and [`restore`] from that file into
//! either.
//!
//! Guarantees: a backup is the state at one moment, even with concurrent writers. A backup's file exists only once it
//! is complete, on the disk and private to its owner. A restored store equals the backup, keys included.
//! Refuses: an incomplete backup, before anything is written; an existing file as the target of a backup; a store with
//! data as the target of a restore.

mod postgres;
mod sound;
mod sqlite;
mod tables;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::address::StoreAddress;
use super::{StoreError, Totals};

/// The content of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Its sums: jobs, sessions, events and bytes, without expired ones.
    pub totals: Totals,
    /// Bytes of the backup's file.
    pub file_bytes: u64,
}

/// Writes everything in a store at this moment into a new file.
///
/// # Errors
/// The file exists already, the store cannot be read, or the disk is full.
pub async fn backup(address: &StoreAddress, target: &Path) -> Result<Copied, StoreError> {
    let cannot = |error: std::io::Error| store_error(target, &error);
    if target.exists() {
        return Err(StoreError::Refused {
            session: 0,
            what: format!("{} exists already, and a backup overwrites nothing: name a new file", target.display()),
        });
    }
    let partial = Partial::make(target).map_err(cannot)?;
    match address {
        StoreAddress::Memory => return Err(nothing_to_copy()),
        StoreAddress::Sqlite(path) => sqlite::backup(path, &partial.0).await?,
        StoreAddress::Postgres(url) => postgres::backup(url, &partial.0).await?,
    }
    let totals = sqlite::totals(&partial.0).await?;
    let file = File::open(&partial.0).map_err(cannot)?;
    file.sync_all().map_err(cannot)?;
    std::fs::rename(&partial.0, target).map_err(cannot)?;
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(cannot)?;
    Ok(Copied { totals, file_bytes: file.metadata().map_err(cannot)?.len() })
}

/// Restores a backup into an empty store, which is created if needed. A damaged backup is restored only if `damaged` is
/// set.
///
/// # Errors
/// The file is not an undamaged backup, or the store holds data already.
pub async fn restore(source: &Path, address: &StoreAddress, damaged: bool) -> Result<Copied, StoreError> {
    sound::has_all_pages(source)?;
    let scratch = Scratch::make().map_err(|error| store_error(source, &error))?;
    let current = sqlite::brought_up_to_date(source, &scratch.0).await.map_err(sound::of_pages)?;
    let from = current.as_deref().unwrap_or(source);
    if !damaged {
        sound::is_undamaged(source, from).await?;
    }
    let totals = match address {
        StoreAddress::Memory => return Err(nothing_to_copy()),
        StoreAddress::Sqlite(path) => sqlite::restore(from, path).await?,
        StoreAddress::Postgres(url) => postgres::restore(from, url).await?,
    };
    Ok(Copied { totals, file_bytes: source.metadata().map_or(0, |file| file.len()) })
}

fn nothing_to_copy() -> StoreError {
    StoreError::Refused { session: 0, what: "a store in memory ends with its process".into() }
}

/// The error for a target that is not empty.
fn not_empty(place: &str, totals: &Totals) -> StoreError {
    StoreError::Refused {
        session: 0,
        what: format!(
            "{place} holds {} jobs already, and a backup is restored into an empty store: name a new data folder or database",
            totals.jobs
        ),
    }
}

fn store_error(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Unreachable { place: path.display().to_string(), reason: error.to_string() }
}

/// An unfinished file, removed on drop unless it became the target.
struct Partial(PathBuf);

impl Partial {
    fn make(target: &Path) -> std::io::Result<Self> {
        let mut name = target.as_os_str().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        let path = PathBuf::from(name);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm", "-journal", ".lock"] {
            let mut name = self.0.as_os_str().to_owned();
            name.push(suffix);
            let _ = std::fs::remove_file(name);
        }
    }
}

/// A private folder, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let number = getrandom::u64().map_err(std::io::Error::other)?;
        let path = std::env::temp_dir().join(format!("memctl-restore-{number:016x}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
