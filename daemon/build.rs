//! Computes the name of the form in which the judge saves its state: a digest of the sources that define it.
//!
//! Guarantees: watches that another program, or another state of these sources, saved have another name. So they are
//! computed again instead of being read wrongly. The digest includes comments, so a changed comment also gives a new
//! name, which costs one reading.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// The sources that decide what a watch knows and how it is serialized.
const SOURCES: [&str; 5] = ["src/judge", "../analysis/src", "../model/src", "../proto/src", "../Cargo.lock"];

/// Files outside of this package that are built into the program. Cargo notes the location of such files, so two clones
/// that share a target folder would not notice each other's changes without these lines.
const BUILT_IN: [&str; 2] = ["../web/dist", "../migrations"];

fn main() {
    BUILT_IN.iter().for_each(|path| println!("cargo::rerun-if-changed={path}"));
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the package lies"));
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        add(&here.join(source), &mut digest);
    }
    println!("cargo::rustc-env=WATCH_FORM={} {digest:016x}", env::var("CARGO_PKG_VERSION").unwrap_or_default());
}

/// Adds a file, or all files below a folder in the order of their names (FNV-1a).
fn add(path: &Path, digest: &mut u64) {
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a folder of sources can be read");
        let mut below: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        below.sort();
        below.iter().for_each(|path| add(path, digest));
    } else if let Ok(bytes) = fs::read(path) {
        for byte in bytes {
            *digest = (*digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
