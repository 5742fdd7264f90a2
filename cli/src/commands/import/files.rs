//! Finds the files of an import and their ranks.
//!
//! Guarantees: every rank occurs once, in the order of the ranks; an error names the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// The extensions of snapshots; a folder may contain other files too.
const ENDINGS: [&str; 8] =
    [".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".pickle.zst", ".pkl.zst", ".pickle.zstd", ".pkl.zstd"];

/// Finds the files of some paths.
///
/// # Errors
/// A path does not exist, a folder has no snapshot, or two files have one rank ([`Failure::input`]).
pub fn find(paths: &[PathBuf]) -> Result<Vec<(u32, PathBuf)>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(in_folder(path)?);
        } else if path.exists() {
            files.push(path.clone());
        } else {
            return Err(Failure::input(format!("there is no file or folder {}", path.display())));
        }
    }
    by_rank(files)
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let cannot = |error: std::io::Error| Failure::input(format!("cannot read folder {}: {error}", folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        if ENDINGS.iter().any(|ending| name.ends_with(ending)) && path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(Failure::input(format!(
            "folder {} contains no snapshot: their names end in .pickle, .pickle.gz or .pickle.zst",
            folder.display()
        )));
    }
    files.sort();
    Ok(files)
}

fn by_rank(files: Vec<PathBuf>) -> Result<Vec<(u32, PathBuf)>, Failure> {
    let alone = files.len() == 1;
    let mut ranks: BTreeMap<u32, PathBuf> = BTreeMap::new();
    for file in files {
        let rank = match rank_of(&file) {
            Some(rank) => rank,
            None if alone => 0,
            None => {
                let file = file.display();
                return Err(Failure::input(format!(
                    "the name of {file} does not contain its rank; name it like rank3.pickle"
                )));
            }
        };
        // A folder and one of its files were named, so the same file occurs twice.
        if let Some(other) = ranks.get(&rank).filter(|other| **other != file) {
            return Err(Failure::input(format!(
                "{} and {} are both of rank {rank}; import one of them, or each as a job of its own",
                other.display(),
                file.display()
            )));
        }
        ranks.insert(rank, file);
    }
    Ok(ranks.into_iter().collect())
}

/// The number behind `rank` in a file's name: `rank3.pickle`, `snapshot_rank_12.pkl`, `Rank-0.pickle.gz`.
fn rank_of(file: &Path) -> Option<u32> {
    let name = file.file_name()?.to_string_lossy().to_ascii_lowercase();
    // The last occurrence counts: `rank_study_rank3.pickle`.
    name.rmatch_indices("rank").find_map(|(at, word)| {
        let rest = name[at + word.len()..].trim_start_matches(['_', '-', '=', '.']);
        let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
        digits.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Outcome;

    #[test]
    fn ranks_in_names() {
        let rank = |name: &str| rank_of(Path::new(name));
        assert_eq!(rank("rank3.pickle"), Some(3));
        assert_eq!(rank("/rank9/snapshot_rank_12.pkl"), Some(12));
        assert_eq!(rank("Rank-0.pickle.gz"), Some(0));
        assert_eq!(rank("rank_study_rank3.pickle"), Some(3));
        assert_eq!(rank("mem.rank-03.pkl.gz"), Some(3));
        assert_eq!(rank("RANK12.pickle"), Some(12));
        assert_eq!(rank("host7_rank.5.pickle"), Some(5));
        assert_eq!(rank("rank.pickle"), None);
        assert_eq!(rank("snapshot.pickle"), None);
        assert_eq!(rank("rank99999999999.pickle"), None);
    }

    #[test]
    fn folders_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let failure = |paths: &[PathBuf]| {
            let failure = find(paths).unwrap_err();
            assert_eq!(failure.outcome, Outcome::BadInput);
            failure.to_string()
        };
        assert!(failure(&[folder.path().to_owned()]).contains("contains no snapshot"));
        assert!(failure(&[path("missing.pickle")]).contains("no file or folder"));
        std::fs::create_dir(path("rank7.pickle")).unwrap();
        for name in ["rank10.pickle.zst", "rank2.pickle", "rank5.zst", "rank2.json", "README.md"] {
            std::fs::write(path(name), "").unwrap();
        }
        let expected = vec![(2, path("rank2.pickle")), (10, path("rank10.pickle.zst"))];
        assert_eq!(find(&[folder.path().to_owned()]).unwrap(), expected);
        assert_eq!(find(&[folder.path().to_owned(), path("rank2.pickle")]).unwrap(), expected, "the same file twice");
        assert_eq!(find(&[path("README.md")]).unwrap(), vec![(0, path("README.md"))]);
        std::fs::write(path("rank2.pickle.gz"), "").unwrap();
        assert!(failure(&[folder.path().to_owned()]).contains("both of rank 2"));
        assert!(failure(&[path("rank2.json"), path("README.md")]).contains("does not contain its rank"));
    }
}
