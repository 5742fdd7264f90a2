//! The checkout in which a command runs, and where a recorded frame lies in it.
//!
//! Guarantees: a location names a file that exists below the checkout's root.

use std::path::{Component, Path, PathBuf};

use memctl_answers::Frame;

/// The most folders above the working directory in which `.git` is looked for.
const PARENTS_MAX: usize = 64;
/// The most components of a recorded path that are compared.
const COMPONENTS_MAX: usize = 64;

/// A line of a file in the checkout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Relative to the root, with `/` between the parts.
    pub path: String,
    /// Counted from 1.
    pub line: u32,
}

/// A checkout.
#[derive(Debug)]
pub struct Repository {
    root: PathBuf,
}

impl Repository {
    /// The checkout around the working directory: the next folder upwards with `.git`, else the working directory.
    pub fn here() -> Self {
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        let root = here.ancestors().take(PARENTS_MAX).find(|folder| folder.join(".git").exists());
        Self { root: root.unwrap_or(&here).to_owned() }
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a frame lies in the checkout. The run may have been on another machine, so the longest end of the recorded
    /// path that exists below the root counts.
    pub fn locate(&self, frame: &Frame) -> Option<Location> {
        let line = frame.line?;
        let recorded = Path::new(&frame.file);
        let inside = recorded.strip_prefix(&self.root).ok();
        let parts: Vec<&str> = inside.unwrap_or(recorded).components().filter_map(name).collect();
        let first = parts.len().saturating_sub(COMPONENTS_MAX);
        let ends = (first..parts.len()).map(|start| parts[start..].join("/"));
        let path = ends.into_iter().find(|end| self.root.join(end).is_file())?;
        Some(Location { path, line })
    }
}

/// A part's name. `..` and roots have none, so a location never leaves the checkout.
fn name(part: Component<'_>) -> Option<&str> {
    match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(file: &str) -> Frame {
        Frame { function: "step".into(), file: file.into(), line: Some(7) }
    }

    #[test]
    fn a_frame_is_located_by_the_longest_end_of_its_path() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("src/model")).unwrap();
        std::fs::write(folder.path().join("src/model/net.py"), "").unwrap();
        std::fs::write(folder.path().join("net.py"), "").unwrap();
        let here = Repository { root: folder.path().to_owned() };
        let path = |file: &str| here.locate(&frame(file)).map(|location| location.path);
        assert_eq!(path("/home/ci/build/src/model/net.py").as_deref(), Some("src/model/net.py"));
        assert_eq!(path("/elsewhere/net.py").as_deref(), Some("net.py"));
        let absolute = folder.path().join("src/model/net.py");
        assert_eq!(path(absolute.to_str().unwrap()).as_deref(), Some("src/model/net.py"));
        assert_eq!((path("/usr/lib/torch/nn.py"), path("../../etc/passwd"), path("")), (None, None, None));
        assert_eq!(here.locate(&Frame { line: None, ..frame("net.py") }), None);
    }
}
