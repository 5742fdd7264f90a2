//! `memctl report`: requests everything that a report about a job contains, and writes the file.
//!
//! Guarantees: the file appears whole or not at all; a part that cannot be computed is included with the reason, as
//! long as a daemon or store responds.

use std::io::{IsTerminal, Write};
use std::path::Path;

use jiff::Timestamp;
use memctl_answers::advice::is_called_for;
use memctl_answers::diagnose::rank_of;
use memctl_answers::dossier::{Dossier, Part, Parts, drawn, span};
use memctl_answers::ledger::{self, Ledger};
use memctl_answers::sites::{Sites, View};
use memctl_model::HumanBytes;
use memctl_proto::v1;
use memctl_proto::v1::sites_request::Moment;

use super::report_views;
use crate::args::{self, Format, Global};
use crate::client::{self, asking, course, live, report, same_job};
use crate::connect::Connection;
use crate::exit::{Failure, Outcome};
use crate::output_file::{Target, name_of};
use crate::page;
use crate::unrecorded;

/// Points of a curve.
const POINTS: u32 = 500;
/// Ranks whose curve is requested.
const RANKS_DRAWN: usize = 8;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::Report,
    global: &Global,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    if global.output != Format::Table {
        return Err(Failure::usage(
            "a report is HTML, or Markdown with --markdown; `memctl diagnose` and other questions take -o",
        ));
    }
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    if !args.markdown && file.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::usage("a report is a page for a browser; write it to a file with -f FILE"));
    }
    let selection = args.narrow.selection(now);
    let job = selection.job.clone();
    let text = asking(global, async |connection| {
        let dossier = gather(connection, selection.clone(), global).await?;
        if args.markdown {
            return Ok(page::markdown::page(&dossier));
        }
        rendered_html(connection, selection, &dossier, (args.size, args.device_memory), now).await
    })
    .await;
    let text = text.map_err(|failure| unrecorded::explained(global, &job, failure))?;
    unrecorded::note(global, &job);
    let mut target = Target::open(file, out)?;
    target.writer().write_all(text.as_bytes()).map_err(|error| Failure::output(&name_of(file), &error))?;
    target.keep()?;
    if let (Some(file), false) = (file, global.quiet) {
        eprintln!("memctl: wrote {} ({})", file.display(), HumanBytes::of(text.len() as u64));
    }
    Ok(())
}

/// The HTML file about a job, without a forecast for other sizes.
///
/// # Errors
/// See [`Failure`].
pub async fn html(
    connection: &mut Connection,
    selection: v1::Selection,
    global: &Global,
    now: Timestamp,
) -> Result<String, Failure> {
    let dossier = gather(connection, selection.clone(), global).await?;
    rendered_html(connection, selection, &dossier, (None, None), now).await
}

async fn rendered_html(
    connection: &mut Connection,
    selection: v1::Selection,
    dossier: &Dossier,
    (size, device_memory): (Option<u64>, Option<u64>),
    now: Timestamp,
) -> Result<String, Failure> {
    let shell = page::html::Shell::new(dossier, u64::try_from(now.as_nanosecond()).unwrap_or(0));
    // `latest` may have become another job since the first request.
    let job = &dossier.note.job;
    let same = v1::Selection { job: job.id.clone(), attempt: Some(job.attempt), ..selection };
    let views = report_views::Wanted { room: shell.room(), size, device_memory, now };
    let answers = report_views::ask(connection, same, dossier, views).await?;
    Ok(shell.with(&answers))
}

async fn gather(connection: &mut Connection, selection: v1::Selection, global: &Global) -> Result<Dossier, Failure> {
    let report = report(connection, selection.clone(), global).await?;
    let Some(rank) = rank_of(&report).cloned() else {
        return Ok(Dossier::new(report, Parts::none("nothing was recorded in this part of the job")));
    };
    // `latest` may have become another job since the first request.
    let job = v1::Selection { job: report.job.id.clone(), attempt: Some(report.job.attempt), ..selection };
    let one = same_job(job.clone(), &report, &rank);
    let course_of = v1::Selection { ranks: drawn(&report, RANKS_DRAWN), ..job.clone() };
    let span = span(&report, &rank);
    let replay = match is_called_for(&report) {
        true => part_or_reason(client::diagnosis(connection, job.clone()).await)?.ok().and_then(|note| note.replay),
        false => None,
    };
    let parts = Parts {
        course: part_or_reason(course(connection, course_of, POINTS, global).await)?,
        failures: part_or_reason(client::oom(connection, job, false).await)?,
        peak: part_or_reason(sites(connection, &one, Some(Moment::Peak(true))).await)?,
        early: match span.early {
            Some(epoch) => part_or_reason(sites(connection, &one, Some(Moment::EpochEnd(epoch))).await)?,
            None => Err("a difference needs two epoch ends".to_owned()),
        },
        late: part_or_reason(sites(connection, &one, span.late.map(Moment::EpochEnd)).await)?,
        ledger: part_or_reason(at_peak(connection, one).await)?,
        replay,
    };
    Ok(Dossier::new(report, parts))
}

/// If a part cannot be computed for this job, the reason becomes part of the report. An unreachable daemon and a
/// missing permission are errors.
fn part_or_reason<T>(answer: Result<T, Failure>) -> Result<Part<T>, Failure> {
    match answer {
        Ok(answer) => Ok(Ok(answer)),
        Err(failure) if matches!(failure.outcome, Outcome::Unreachable | Outcome::NotAllowed) => Err(failure),
        Err(failure) => Ok(Err(failure.to_string())),
    }
}

async fn sites(
    connection: &mut Connection,
    selection: &v1::Selection,
    moment: Option<Moment>,
) -> Result<Sites, Failure> {
    live(connection, v1::SitesRequest { selection: Some(selection.clone()), moment }, View::default()).await
}

async fn at_peak(connection: &mut Connection, selection: v1::Selection) -> Result<Ledger, Failure> {
    let moment = Some(v1::ledger_request::Moment::Peak(true));
    // The classes of each site's memory come from its blocks.
    let request = v1::LedgerRequest { selection: Some(selection), moment, blocks: true };
    let view = ledger::View { blocks: true, ..ledger::View::default() };
    Ok(Ledger { view, ..client::ledger(connection, request).await? })
}
