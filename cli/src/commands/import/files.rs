//! Finds the files of an import and their ranks.
//!
//! Guarantees: every rank occurs once, in the order of the ranks; an error names the file.

use std::path::{Path, PathBuf};

use memctl_snapshot::ranks;

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
    ranks::by_rank(files, PathBuf::as_path).map_err(|error| Failure::input(error.to_string()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Outcome;

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
