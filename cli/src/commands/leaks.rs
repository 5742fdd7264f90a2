//! `memctl leaks`: each finding about growth, in full.

use std::io::Write;

use jiff::Timestamp;
use memctl_answers::leaks::Leaks;

use crate::args::{self, Global};
use crate::client::{asking, report};
use crate::exit::Failure;
use crate::output::show_part;
use crate::render::screen::Screen;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::Leaks,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let selection = args.narrow.selection(now);
    let report = asking(global, async |connection| report(connection, selection, global).await).await?;
    show_part(&Leaks::new(report, args.all), &args.narrow.part, global, screen, out)
}
