//! Rules for every Rust file: it begins with a description, and its length is limited.

use std::path::{Path, PathBuf};

/// The maximum length of a file.
const LINES_MAX: usize = 800;
/// A longer file gives the reason in its header.
const LINES_UNEXPLAINED_MAX: usize = 400;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            if !matches!(name, "target" | ".git" | "generated" | "node_modules" | ".venv") {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_source_file_opens_with_what_it_is_and_is_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 50, "only {} files were looked at", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a source file");
        assert!(text.starts_with("//!"), "{} does not open with what it is", file.display());
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", file.display());
        let mut head = text.lines().take_while(|line| line.starts_with("//!"));
        assert!(
            lines <= LINES_UNEXPLAINED_MAX || head.any(|line| line.contains("Over 400 lines: ")),
            "{} has {lines} lines and does not say why: `//! (Over 400 lines: …)`",
            file.display()
        );
    }
}
