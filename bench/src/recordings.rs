//! The bundled recordings as event streams, one per rank, in the order of their names.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use memctl_model::Event;
use memctl_snapshot::{Recording, load};

/// The folder of the bundled recordings.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/recordings")
}

/// All recorded files: name, path.
///
/// # Errors
/// The folder cannot be read.
pub fn files() -> std::io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder())? {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(&path)? {
            let file = file?.path();
            if file.extension().is_some_and(|extension| extension == "zst") {
                let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let rank = name(&file).chars().filter(char::is_ascii_digit).collect::<String>();
                found.push((format!("{}/{rank}", name(&path)), file));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// All recordings: the bundled ones, the trainings of leakbench, those of the replay's tests, and those in the folders
/// that `MEMCTL_REPLAY_FOLDERS` names, separated by colons.
///
/// # Errors
/// A folder cannot be read.
pub fn all() -> std::io::Result<Vec<PathBuf>> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![folder(), own.join("data/leakbench"), own.join("../replay/tests/data")];
    let more = std::env::var_os("MEMCTL_REPLAY_FOLDERS").unwrap_or_default();
    folders.extend(std::env::split_paths(&more).filter(|path| !path.as_os_str().is_empty()));
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".pickle") || name.ends_with(".pickle.zst") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A recording.
///
/// # Errors
/// It cannot be read.
pub fn recording(path: &Path) -> Result<Recording, Box<dyn std::error::Error>> {
    Ok(load(path, &mut |_| {})?)
}

/// The events of the device that has most of them.
#[must_use]
pub fn events(recording: &Recording) -> Vec<Event> {
    let busiest = recording.devices.iter().max_by_key(|device| device.events.len());
    busiest.map_or_else(Vec::new, |device| device.events.iter().collect())
}

/// The unpacked pickle of a recorded file.
///
/// # Errors
/// It cannot be read.
pub fn unpacked(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    zstd::Decoder::new(std::fs::File::open(path)?)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
