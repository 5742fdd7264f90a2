//! Recognises packages that pip installed into a folder of the user's choice (`pip install --target`).
//!
//! A path alone does not show that. Such a folder has a `NAME.dist-info` beside the package, and the RECORD in it lists
//! the package's files.
//! Guarantees: a file below such a package gets a path below `site-packages`, so that it counts as a library's file and
//! not as the user's own. Each folder is read once, within bounds. An unreadable folder changes nothing.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum number of folders whose packages are remembered.
const FOLDERS_MAX: usize = 4_096;
/// Maximum number of entries of a folder that are read, and of packages in it whose RECORD is read.
const ENTRIES_MAX: usize = 8_192;
const PACKAGES_MAX: usize = 1_024;
/// Bytes that are read of a RECORD. The names of the top folders come early in it.
const RECORD_BYTES: u64 = 256 << 10;
/// Maximum number of folders above a file that are checked.
const ABOVE_MAX: usize = 24;

/// The packages of folders, cached.
#[derive(Debug, Default)]
pub(super) struct Installed {
    folders: HashMap<PathBuf, HashSet<String>>,
}

impl Installed {
    /// The path below `site-packages` of a file that pip installed elsewhere; `None` for any other file.
    pub(super) fn path(&mut self, file: &str) -> Option<String> {
        if !file.starts_with('/') || super::packages::split(file).is_some() {
            return None;
        }
        let path = Path::new(file);
        for folder in path.ancestors().skip(1).take(ABOVE_MAX) {
            let inside = path.strip_prefix(folder).ok()?;
            let first = inside.components().next()?.as_os_str().to_str()?;
            if folder.parent().is_some() && self.packages(folder).contains(first) {
                return Some(format!("{}/site-packages/{}", folder.display(), inside.display()));
            }
        }
        None
    }

    /// The top-level names of the packages that pip installed into a folder.
    fn packages(&mut self, folder: &Path) -> &HashSet<String> {
        if self.folders.len() >= FOLDERS_MAX && !self.folders.contains_key(folder) {
            self.folders.clear();
        }
        self.folders.entry(folder.to_owned()).or_insert_with(|| read(folder))
    }
}

fn read(folder: &Path) -> HashSet<String> {
    let Ok(entries) = fs::read_dir(folder) else { return HashSet::new() };
    let is_package = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "dist-info");
    let packages = entries.take(ENTRIES_MAX).filter_map(|entry| Some(entry.ok()?.path())).filter(is_package);
    packages.take(PACKAGES_MAX).flat_map(|package| names(&package.join("RECORD"))).collect()
}

/// The top-level name of each path in a RECORD: a package's folder, or a module's file.
fn names(record: &Path) -> HashSet<String> {
    let mut text = Vec::new();
    let read = fs::File::open(record).and_then(|file| file.take(RECORD_BYTES).read_to_end(&mut text));
    if read.is_err() {
        return HashSet::new();
    }
    let text = String::from_utf8_lossy(&text);
    let first = |line: &str| Some(line.split([',', '/']).next()?.trim_matches('"').to_owned());
    text.lines().filter_map(first).filter(|name| !name.is_empty() && name != "..").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pip_installed_elsewhere_is_a_librarys_and_what_lies_beside_it_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("peft-0.1.dist-info")).unwrap();
        fs::write(root.join("peft-0.1.dist-info/RECORD"), "peft/tuners/layer.py,sha256=x,9\nsix.py,,\n../bin/x,,\n")
            .unwrap();
        let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let mut installed = Installed::default();
        let below = format!("{}/site-packages/peft/tuners/layer.py", root.display());
        assert_eq!(installed.path(&at("peft/tuners/layer.py")), Some(below.clone()));
        assert_eq!(installed.path(&at("six.py")), Some(format!("{}/site-packages/six.py", root.display())));
        assert_eq!(installed.path(&at("train.py")), None, "the user's own beside it");
        assert_eq!(installed.path(&at("mine/train.py")), None);
        assert_eq!(installed.path(&below), None, "it is where packages are usually");
        assert_eq!(installed.path("<string>"), None);
    }
}
