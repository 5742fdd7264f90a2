//! Reads a file of `memctl baseline save`.

use std::path::Path;

use memctl_answers::baseline::{Baseline, FILE_BYTES_MAX};

use crate::exit::Failure;

/// Reads a file of `memctl baseline save`; `None` if the word is a job. A job may have the name of a file that lies here
/// by chance, so only a word that looks like a path is one.
///
/// # Errors
/// The file cannot be read, or is something else.
pub fn baseline(word: &str) -> Result<Option<Baseline>, Failure> {
    let path = Path::new(word);
    if !word.contains('/') && path.extension().is_none_or(|ending| ending != "json") {
        return Ok(None);
    }
    let Ok(known) = path.metadata() else {
        return Err(Failure::usage(format!("there is no file {word}; `memctl baseline save -f {word}` writes one")));
    };
    if known.is_dir() {
        return Err(Failure::usage(format!("{word} is a folder, and no file of `memctl baseline save`")));
    }
    if known.len() > FILE_BYTES_MAX {
        return Err(Failure::usage(format!("{word} is larger than a baseline can be ({FILE_BYTES_MAX} bytes)")));
    }
    let content = std::fs::read(path).map_err(|error| Failure::usage(format!("cannot read {word}: {error}")))?;
    Baseline::read(&content).map(Some).map_err(|why| Failure::usage(format!("cannot use {word}: {why}")))
}
