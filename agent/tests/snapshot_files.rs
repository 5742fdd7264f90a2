//! Which file is which rank's, and what is said when that is not clear.

use std::fs;
use std::path::{Path, PathBuf};

use memctl_agent::source::snapshot::{CollectError, collect, rank_of};

#[test]
fn ranks_are_read_from_names() {
    let cases = [
        ("rank3.pickle.zst", Some(3)),
        ("snapshot_rank_3.pickle", Some(3)),
        ("mem.rank-03.pkl.gz", Some(3)),
        ("RANK12.pickle", Some(12)),
        ("host7_rank.5.pickle", Some(5)),
        ("ranking_rank2.pickle", Some(2)),
        ("rank.pickle", None),
        ("snapshot.pickle", None),
        ("rank99999999999.pickle", None),
    ];
    for (name, rank) in cases {
        assert_eq!(rank_of(Path::new(name)), rank, "{name}");
        assert_eq!(rank_of(&Path::new("/runs/rank9").join(name)), rank, "{name} in a folder");
    }
}

fn folder(names: &[&str]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = names.iter().map(|name| folder.path().join(name)).collect();
    paths.iter().for_each(|path| fs::write(path, b"").unwrap());
    (folder, paths)
}

#[test]
fn a_folder_is_its_snapshots() {
    let names =
        ["rank10.pickle.zst", "rank2.pkl", "rank0.pickle.gz", "rank0.json", "notes.txt", "rank5.zst", "RANK3.PICKLE"];
    let (folder, _paths) = folder(&names);
    fs::create_dir(folder.path().join("rank7.pickle")).unwrap();
    let ranks: Vec<_> = collect(&[folder.path().into()]).unwrap().iter().map(|file| file.rank).collect();
    assert_eq!(ranks, [0, 2, 3, 10]);
}

#[test]
fn one_file_needs_no_rank_and_no_ending() {
    let (_folder, paths) = folder(&["dump"]);
    let files = collect(&paths).unwrap();
    assert_eq!((files[0].rank, &files[0].path), (0, &paths[0]));
    let twice = [paths[0].clone(), paths[0].clone()];
    assert!(matches!(collect(&twice), Err(CollectError::WithoutRank { .. })));
}

#[test]
fn the_same_file_named_twice_is_one() {
    let (folder, paths) = folder(&["rank0.pickle", "rank1.pickle"]);
    let files = collect(&[folder.path().into(), paths[1].clone()]).unwrap();
    assert_eq!(files.len(), 2);
}

#[test]
fn what_is_not_clear_is_an_error_that_names_it() {
    let (folder_without, _paths) = folder(&["a.json"]);
    let message = collect(&[folder_without.path().into()]).unwrap_err().to_string();
    assert!(
        message.contains("*.pickle") && message.contains(&folder_without.path().display().to_string()),
        "{message}"
    );

    let (_folder, paths) = folder(&["rank0.pickle", "snapshot.pickle", "other.pickle"]);
    let message = collect(&paths).unwrap_err().to_string();
    assert!(message.contains("snapshot.pickle") && message.contains("other.pickle"), "{message}");
    assert!(!message.contains(&paths[0].display().to_string()), "{message}");

    let (_folder, paths) = folder(&["rank1.pickle", "rank01.pickle.zst"]);
    let message = collect(&paths).unwrap_err().to_string();
    assert!(message.contains("rank1.pickle") && message.contains("rank01.pickle.zst"), "{message}");

    assert!(matches!(collect(&[]), Err(CollectError::Nothing)));
    let message = collect(&["/nonexistent/x".into()]).unwrap_err().to_string();
    assert!(message.starts_with("/nonexistent/x: "), "{message}");
}
