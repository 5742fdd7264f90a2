//! Determines, by a command's flags, how much of source paths is sent from this host.

use std::path::PathBuf;

use memctl_agent::data_dirs;
use memctl_agent::source_paths::{Mode, SourcePaths, working_directories};

use crate::exit::Failure;

/// For a recording on this host: paths begin at the working directory.
///
/// # Errors
/// Hashes were requested, and there is no key.
pub fn of_a_run(mode: Mode) -> Result<SourcePaths, Failure> {
    source_paths(mode, &working_directories())
}

/// For files recorded elsewhere, to which this working directory is unrelated.
///
/// # Errors
/// As above.
pub fn of_an_import(mode: Mode) -> Result<SourcePaths, Failure> {
    source_paths(mode, &[])
}

fn source_paths(mode: Mode, roots: &[PathBuf]) -> Result<SourcePaths, Failure> {
    let environment = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let data_dir = data_dirs::data_dir(&|name| std::env::var_os(name).map(PathBuf::from));
    SourcePaths::of(mode, &environment, data_dir.as_deref(), roots).map_err(|error| Failure::input(error.to_string()))
}
