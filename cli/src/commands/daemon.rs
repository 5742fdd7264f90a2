//! `memctl daemon`.

use crate::args::{self, Global};
use crate::exit::Failure;
use crate::seams;

/// Serves until it is told to stop.
///
/// # Errors
/// A configuration that is wrong, an address in use, a store that cannot be opened.
pub async fn run(flags: &args::Daemon, global: &Global) -> Result<(), Failure> {
    seams::serve(flags, global.data_dir.as_deref()).await
}
