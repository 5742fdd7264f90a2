//! `memctl what-if`: replays the recorded requests under other allocator settings and limits.
//!
//! Guarantees: reports what it did not analyse. Refuses settings that the allocator of the recording would refuse.

use std::io::Write;

use memctl_answers::what_if::WhatIf;
use memctl_proto::v1;

use crate::args::{self, Global};
use crate::client::{asking, hint, streamed};
use crate::exit::Failure;
use crate::output::show;
use crate::render::screen::Screen;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::WhatIf,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    if args.from.zip(args.until).is_some_and(|(from, until)| from > until) {
        return Err(Failure::usage("--from is a later step than --until"));
    }
    let request = v1::WhatIfRequest {
        selection: Some(args.selection()),
        settings: args.settings.clone(),
        limits: args.limits.clone(),
        from: args.from,
        until: args.until,
    };
    let answer = asking(global, async |connection| {
        let response = connection.query.get_what_if(request).await;
        Ok(WhatIf { hint: hint(connection, global), ..streamed(response, connection).await? })
    });
    show(&answer.await?, global, screen, out)
}
