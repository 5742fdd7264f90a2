//! `memctl assert`: whether conditions hold; exit code 1 when one does not, or cannot be told.

use std::io::Write;

use jiff::Timestamp;

use super::questions::{asking, report, show};
use crate::answer::assert::{Terms, Verdicts};
use crate::args::{self, Global};
use crate::exit::Failure;
use crate::render::screen::Screen;

/// See the module.
///
/// # Errors
/// See [`Failure`]; a condition that does not hold is one.
pub async fn run(
    args: &args::Assert,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let selection = args.narrow.selection(now);
    let report = asking(global, async |connection| report(connection, selection, global).await).await?;
    let terms = Terms {
        after_epoch: args.after_epoch,
        tolerance: args.tolerance,
        allow_incomplete: args.allow_incomplete,
        ranks: args.narrow.rank.clone().unwrap_or_default().0,
    };
    let verdicts = Verdicts::new(report, &args.conditions, &terms);
    show(&verdicts, global, screen, out)?;
    verdicts.outcome()
}
