//! `memctl frag` and `memctl oom`: what explains a job's memory with single events.

use std::io::Write;

use jiff::Timestamp;
use memctl_proto::v1;

use super::questions::{asking, hint, show};
use crate::answer::frag::Fragmentation;
use crate::answer::oom::Oom;
use crate::args::{self, Global};
use crate::exit::Failure;
use crate::render::screen::Screen;

/// `memctl frag`.
///
/// # Errors
/// See [`Failure`].
pub async fn frag(
    args: &args::Frag,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let request = v1::FragmentationRequest { selection: Some(args.narrow.selection(now)) };
    let answer = asking(global, async |connection| {
        let response =
            connection.query.get_fragmentation(request).await.map_err(|status| connection.failure(&status))?;
        Fragmentation::new(response.into_inner(), hint(connection, global))
    });
    show(&answer.await?, global, screen, out)
}

/// `memctl oom`.
///
/// # Errors
/// See [`Failure`].
pub async fn oom(
    args: &args::Oom,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let request = v1::OomRequest { selection: Some(args.narrow.selection(now)) };
    let answer = asking(global, async |connection| {
        let response = connection.query.get_oom(request).await.map_err(|status| connection.failure(&status))?;
        Oom::new(response.into_inner(), hint(connection, global))
    });
    show(&answer.await?, global, screen, out)
}
