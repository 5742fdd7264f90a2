//! The ranks of the files of one job, from their names.
//!
//! Guarantees: every rank occurs once, in ascending order; an error names the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Why the ranks of some files are unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// A name among several has no rank.
    #[error("the name of {} does not contain its rank; name it like rank3.pickle", .0.display())]
    Unnamed(PathBuf),
    /// Two files have one rank.
    #[error("{} and {} are both of rank {rank}; import one of them, or each as a job of its own", first.display(), second.display())]
    Twice {
        /// The rank.
        rank: u32,
        /// The first file.
        first: PathBuf,
        /// The second file.
        second: PathBuf,
    },
}

/// Orders files by the ranks in their names. A single file without a rank is rank 0. A file that is given twice counts
/// once.
///
/// # Errors
/// A file has no rank, or two files have the same one.
pub fn by_rank<F>(files: Vec<F>, path: impl Fn(&F) -> &Path) -> Result<Vec<(u32, F)>, RankError> {
    let alone = files.len() == 1;
    let mut ranks: BTreeMap<u32, F> = BTreeMap::new();
    for file in files {
        let rank = match rank_of(path(&file)) {
            Some(rank) => rank,
            None if alone => 0,
            None => return Err(RankError::Unnamed(path(&file).to_owned())),
        };
        // A folder and one of its files were named, so the same file occurs twice.
        if let Some(other) = ranks.get(&rank).filter(|other| path(other) != path(&file)) {
            let (first, second) = (path(other).to_owned(), path(&file).to_owned());
            return Err(RankError::Twice { rank, first, second });
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
}
