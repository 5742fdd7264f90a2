//! `memctl diagnose`: a job's report and the live memory at its last epoch's end, as a note.

use std::io::Write;

use jiff::Timestamp;

use crate::args::{self, Global};
use crate::client::{asking, diagnosis};
use crate::exit::Failure;
use crate::output::show_part;
use crate::render::screen::Screen;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::Diagnose,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let selection = args.narrow.selection(now);
    let note = asking(global, async |connection| diagnosis(connection, selection).await);
    show_part(&note.await?, &args.narrow.part, global, screen, out)
}
