//! `memctl ranks`: the ranks side by side.

use std::io::Write;

use jiff::Timestamp;
use memctl_answers::ranks::Ranks;

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
    args: &args::Ranks,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let selection = args.narrow.selection(now);
    let answer = asking(global, async |connection| report(connection, selection, global).await).await?;
    show_part(&Ranks::new(answer), &args.narrow.part, global, screen, out)
}
