//! `memctl run`: see [`crate::run`].

use std::process::ExitCode;

use crate::args::{Global, Run};
use crate::exit::Failure;

/// Runs the command and exits with its exit code.
///
/// # Errors
/// See [`crate::run::run`].
pub async fn run(args: &Run, global: &Global) -> Result<ExitCode, Failure> {
    crate::run::run(args, global).await.map(ExitCode::from)
}
