//! `memctl holders`: finds which Python objects of a running process hold the tensors of a site.
//!
//! This command searches nothing itself. The process searches in slices, within the budget.

use std::io::Write;

use memctl_answers::holders::Holders;
use memctl_proto::v1;

use crate::args::{self, Global};
use crate::client::{answered, asking, hint};
use crate::exit::Failure;
use crate::output::show;
use crate::render::screen::Screen;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::Holders,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let request = v1::HoldersRequest {
        selection: Some(args.selection()),
        site: args.site.clone().unwrap_or_default(),
        budget_ms: args.budget,
    };
    let answer = asking(global, async |connection| {
        let response = connection.query.find_holders(request).await;
        Ok(Holders { hint: hint(connection, global), ..answered(response, connection)? })
    });
    show(&answer.await?, global, screen, out)
}
