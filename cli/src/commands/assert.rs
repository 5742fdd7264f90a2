//! `memctl assert`: evaluates conditions. The exit code is 1 if one does not hold or is inconclusive.

use std::io::Write;

use jiff::Timestamp;
use memctl_answers::assert::against::Against;
use memctl_answers::assert::{Terms, Verdicts};
use memctl_answers::baseline::{Baseline, Spread};
use memctl_answers::profile::Profile;
use memctl_proto::v1;

use super::diff::baseline;
use crate::args::{self, Global};
use crate::client::{asking, report};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::output::show;
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
    let (job, conditions) = args.asked().map_err(Failure::usage)?;
    let selection = args.part.selection(job, now);
    let (report, other) = asking(global, async |connection| {
        let asked = report(connection, selection, global).await?;
        let other = match &args.against {
            Some(other) => Some(against(connection, other, global).await?),
            None => None,
        };
        Ok((asked, other))
    })
    .await?;
    let terms = Terms {
        after_epoch: args.after_epoch,
        tolerance: args.tolerance,
        allow_incomplete: args.allow_incomplete,
        allow_suspected: args.allow_suspected,
        ranks: args.part.rank.clone().unwrap_or_default().0,
    };
    let verdicts = Verdicts::new(report, &conditions, &terms, other.as_ref());
    show(&verdicts, global, screen, out)?;
    verdicts.outcome().map_err(Failure::found)
}

/// What a job is compared with: a baseline's file, or another job.
async fn against(connection: &mut Connection, word: &str, global: &Global) -> Result<Against, Failure> {
    if let Some(Baseline { spread, profile, .. }) = baseline(word)? {
        return Ok(Against { name: word.to_owned(), profile, spread });
    }
    let selection = v1::Selection { job: word.to_owned(), ..Default::default() };
    let report = report(connection, selection, global).await?;
    Ok(Against { name: report.job.id.clone(), profile: Profile::new(&report, None), spread: Spread::default() })
}
