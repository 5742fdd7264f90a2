//! `memctl need`: the memory that a training needs, and the sizes of devices that have it.
//!
//! Guarantees: reports what it did not analyse. `--line` prints exactly one line.

use std::io::Write;

use memctl_answers::need::Need;
use memctl_proto::v1;

use crate::args::{self, Global};
use crate::client::{asking, streamed};
use crate::exit::Failure;
use crate::output::show;
use crate::render::screen::Screen;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::Need,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let request = v1::NeedRequest { selection: Some(args.selection()), sizes: args.sizes.clone() };
    let answer = asking(global, async |connection| {
        let response = connection.query.get_need(request).await;
        streamed::<Need>(response, connection).await
    });
    let answer = answer.await?;
    if args.line {
        return writeln!(out, "{}", answer.line()).map_err(|error| Failure::output("standard output", &error));
    }
    show(&answer, global, screen, out)
}
