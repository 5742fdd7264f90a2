//! `memctl frag`, `memctl oom` and `memctl ledger`: explanations of a job's memory that need single events.

use std::io::Write;

use jiff::Timestamp;
use memctl_answers::frag::Fragmentation;
use memctl_answers::ledger::{Ledger, View};
use memctl_answers::oom::Oom;
use memctl_proto::v1;
use memctl_proto::v1::ledger_request::Moment;

use crate::args::{self, Format, Global};
use crate::client::{self, asking, hint};
use crate::exit::Failure;
use crate::output::show;
use crate::render::screen::Screen;
use crate::render::text::plural;

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
    let selection = args.narrow.selection(now);
    let answer = asking(global, async |connection| {
        let answer = client::fragmentation(connection, selection).await?;
        Ok(Fragmentation { hint: hint(connection, global), ..answer })
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
    let selection = args.narrow.selection(now);
    let answer = asking(global, async |connection| {
        Ok(Oom { hint: hint(connection, global), ..client::oom(connection, selection, true).await? })
    });
    show(&answer.await?, global, screen, out)
}

/// `memctl ledger`.
///
/// # Errors
/// See [`Failure`].
pub async fn ledger(
    args: &args::Ledger,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    if args.blocks && global.output == Format::Table {
        return Err(Failure::usage("--blocks is data: add -o csv, -o json or -o ndjson"));
    }
    let moment = args.at.moment();
    let request =
        v1::LedgerRequest { selection: Some(args.narrow.selection(now)), moment: Some(moment), blocks: args.blocks };
    let answer = asking(global, async |connection| {
        let view = View { moment: in_words(moment), blocks: args.blocks, hint: hint(connection, global) };
        Ok(Ledger { view, ..client::ledger(connection, request).await? })
    });
    let answer = answer.await?;
    // JSON contains this number as well; CSV has no place for it.
    let left_out: u64 = answer.ranks.iter().fold(0, |sum, listed| listed.rank.blocks_left_out.saturating_add(sum));
    if left_out > 0 && global.output == Format::Csv {
        eprintln!(
            "memctl: {} (the smallest) had no room in the answer; --rank selects fewer ranks",
            plural(left_out, "block")
        );
    }
    show(&answer, global, screen, out)
}

fn in_words(moment: Moment) -> String {
    match moment {
        Moment::Peak(_) => "Each rank when most was allocated".to_owned(),
        Moment::EpochEnd(epoch) => format!("At the end of epoch {epoch}"),
        Moment::End(_) => "At the end of the recording".to_owned(),
    }
}
