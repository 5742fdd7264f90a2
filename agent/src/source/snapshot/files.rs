//! Which files are the recordings of which ranks.
//!
//! Guarantees: one file a rank, ranks in order; whatever is ambiguous is an error that names the
//! files, never a guess.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// Endings of snapshot files, before an optional [`PACKINGS`] ending.
const ENDINGS: [&str; 2] = ["pickle", "pkl"];
/// Endings of compressed files.
const PACKINGS: [&str; 3] = ["zst", "zstd", "gz"];
/// What error messages call them.
const LOOKED_FOR: &str = "*.pickle, *.pkl, each also with .gz or .zst";

/// The recording of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankFile {
    /// The rank.
    pub rank: u32,
    /// Its file.
    pub path: PathBuf,
}

/// Why files cannot be assigned to ranks.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// No path was given.
    #[error("no snapshot given; name snapshot files or a folder with {LOOKED_FOR}")]
    Nothing,
    /// A path cannot be read.
    #[error("{}: {error}; check the path and the permissions", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        error: io::Error,
    },
    /// A folder without snapshots.
    #[error("{}: no snapshot in this folder; looked for {LOOKED_FOR}", folder.display())]
    EmptyFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// Several files, and some do not say their rank.
    #[error(
        "several snapshots, but no rank in the name of {}; name them like rank0.pickle, rank1.pickle.zst, or import them one by one with --rank",
        names(paths)
    )]
    WithoutRank {
        /// The files.
        paths: Vec<PathBuf>,
    },
    /// Two files of one rank.
    #[error(
        "two snapshots of rank {rank}: {} and {}; import them as two jobs or remove one",
        first.display(),
        second.display()
    )]
    SameRank {
        /// The rank.
        rank: u32,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
}

fn names(paths: &[PathBuf]) -> String {
    // A folder may hold thousands; five tell which kind of file it is.
    let mut names: Vec<_> = paths.iter().take(5).map(|path| path.display().to_string()).collect();
    if paths.len() > names.len() {
        names.push(format!("{} more", paths.len() - names.len()));
    }
    names.join(", ")
}

/// The rank that a file's name states: `rank` and a number, with `_`, `-` or `.` between them or nothing.
#[must_use]
pub fn rank_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    name.match_indices("rank").find_map(|(at, word)| {
        let rest = name[at + word.len()..].trim_start_matches(['_', '-', '.']);
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        rest[..digits].parse().ok()
    })
}

/// Whether a file's name is one of a snapshot.
fn is_snapshot(path: &Path) -> bool {
    let ending = |path: &Path| path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    let is_in = |ending: Option<String>, list: &[&str]| ending.is_some_and(|ending| list.contains(&ending.as_str()));
    let inner = if is_in(ending(path), &PACKINGS) { path.with_extension("") } else { path.to_owned() };
    is_in(ending(&inner), &ENDINGS)
}

/// The snapshot files of paths: a file is itself whatever its name, a folder is the snapshots in it (not below it).
///
/// A single file without a rank in its name is rank 0.
///
/// # Errors
/// Paths that cannot be read, folders without snapshots, and files whose ranks are missing or the same.
pub fn collect(paths: &[PathBuf]) -> Result<Vec<RankFile>, CollectError> {
    let mut files = Vec::new();
    for path in paths {
        let unreadable = |error| CollectError::Unreadable { path: path.clone(), error };
        if std::fs::metadata(path).map_err(unreadable)?.is_dir() {
            files.extend(snapshots_in(path)?);
        } else {
            files.push(path.clone());
        }
    }
    match files.as_slice() {
        [] => return Err(CollectError::Nothing),
        [file] => return Ok(vec![RankFile { rank: rank_of(file).unwrap_or(0), path: file.clone() }]),
        _ => {}
    }
    let without: Vec<PathBuf> = files.iter().filter(|file| rank_of(file).is_none()).cloned().collect();
    if !without.is_empty() {
        return Err(CollectError::WithoutRank { paths: without });
    }
    let mut ranks: Vec<RankFile> =
        files.into_iter().filter_map(|path| Some(RankFile { rank: rank_of(&path)?, path })).collect();
    ranks.sort_by(|a, b| (a.rank, &a.path).cmp(&(b.rank, &b.path)));
    ranks.dedup_by(|b, a| a.path == b.path);
    match ranks.windows(2).find(|pair| pair[0].rank == pair[1].rank) {
        Some(pair) => Err(CollectError::SameRank {
            rank: pair[0].rank,
            first: pair[0].path.clone(),
            second: pair[1].path.clone(),
        }),
        None => Ok(ranks),
    }
}

fn snapshots_in(folder: &Path) -> Result<Vec<PathBuf>, CollectError> {
    let unreadable = |error| CollectError::Unreadable { path: folder.to_owned(), error };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if is_snapshot(&path) && path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(CollectError::EmptyFolder { folder: folder.to_owned() });
    }
    files.sort();
    Ok(files)
}
