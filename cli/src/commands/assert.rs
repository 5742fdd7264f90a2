//! `memctl assert`: evaluates conditions. The exit code is 1 if one does not hold or is inconclusive.

use std::io::Write;

use jiff::Timestamp;

use crate::args::{self, Global};
use crate::checks;
use crate::exit::Failure;
use crate::render::screen::Screen;

/// See the module.
///
/// # Errors
/// See [`Failure`]; a condition that does not hold is a failure.
pub async fn run(
    args: &args::Assert,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    checks::check(args, None, global, screen, now, out).await
}
