//! Evaluates conditions, for `memctl assert` and `memctl run --assert`.

use std::io::Write;

use jiff::Timestamp;
use memctl_analysis::display_threshold::CHANGE_BYTES;
use memctl_answers::assert::against::Against;
use memctl_answers::assert::{Terms, Verdicts};
use memctl_answers::baseline::{Baseline, Spread};
use memctl_answers::diff::Diff;
use memctl_answers::profile::Profile;
use memctl_proto::v1;

use super::{Evidence, needs_profile, write, write_unanswered};
use crate::args::{self, Global};
use crate::baseline_file::baseline;
use crate::client::{asking, newest, profile, report};
use crate::connect::Connection;
use crate::exit::{Failure, Outcome};
use crate::output::show;
use crate::render::screen::Screen;
use crate::unrecorded;

/// Checks the conditions of a job, or of what one launcher recorded of it if its number is given, and shows the results.
///
/// # Errors
/// See [`Failure`]; a condition that does not hold is a failure.
pub async fn check(
    args: &args::Assert,
    launcher: Option<u64>,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    if args.results.github && global.output != args::Format::Table {
        return Err(Failure::usage("--github prints lines of its own: use it without --output"));
    }
    let (job, conditions) = args.asked().map_err(Failure::usage)?;
    let selection = v1::Selection { launcher, ..args.part.selection(job.clone(), now) };
    let terms = Terms {
        after_epoch: args.after_epoch,
        tolerance: args.tolerance,
        allow_incomplete: args.allow_incomplete,
        allow_suspected: args.allow_suspected,
        ranks: args.part.rank.clone().unwrap_or_default().0,
    };
    let wants_sites = !args.results.is_empty();
    let answer = asking(global, async |connection| {
        let report = match report(connection, selection, global).await {
            Err(failure) if launcher.is_some() && failure.outcome == Outcome::NoSuchJob => {
                let newest = newest(connection, &job, 1).await?;
                return Err(unrecorded::of_launch(global, &job, newest.first()).unwrap_or(failure));
            }
            answer => answer?,
        };
        if launcher.is_none() {
            unrecorded::refuse(global, &job, &report.job)?;
        }
        let findings = report.findings.clone();
        let other = match &args.against {
            Some(other) => Some(against(connection, other, wants_sites, global).await?),
            None => None,
        };
        let verdicts = Verdicts::new(report, &conditions, &terms, other.as_ref());
        let sites = match wants_sites && needs_profile(&verdicts) {
            true => Some(sites(connection, &verdicts.job.id, other.as_ref()).await?),
            false => None,
        };
        Ok((verdicts, findings, sites))
    })
    .await;
    let (verdicts, findings, sites) = match answer {
        Err(failure) if failure.outcome == Outcome::NoSuchJob => {
            // A later step of a pipeline reads the files, whatever came of the check.
            unanswered(args, &failure.to_string(), out).await?;
            return Err(failure);
        }
        answer => answer?,
    };
    show(&verdicts, global, screen, out)?;
    let (profile, changes) = sites.unzip();
    let evidence = Evidence {
        verdicts: &verdicts,
        findings: &findings,
        profile: profile.as_ref(),
        changes: changes.as_ref().and_then(Option::as_ref),
    };
    write(&args.results, &evidence, out).await?;
    verdicts.outcome().map_err(Failure::found)
}

/// Writes the results of conditions that could not be checked, because nothing is stored of the job.
///
/// # Errors
/// A file cannot be written.
pub async fn unanswered(args: &args::Assert, because: &str, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let (job, conditions) = args.asked().map_err(Failure::usage)?;
    let mut names: Vec<String> = conditions.into_iter().map(|condition| condition.text).collect();
    if let (Some(other), true) = (&args.against, names.is_empty()) {
        names.push(format!("against {other}"));
    }
    write_unanswered(&args.results, &Verdicts::unanswered(&job, &names, because), because, out).await
}

/// The job's profile, and what changed since the other one.
async fn sites(
    connection: &mut Connection,
    job: &str,
    other: Option<&Against>,
) -> Result<(Profile, Option<Diff>), Failure> {
    let profile = profile(connection, job).await?;
    let changes = other.map(|other| Diff::new((&other.name, &other.profile), (job, &profile), CHANGE_BYTES));
    Ok((profile, changes))
}

/// What a job is compared with: a baseline's file, or another job. The sites of its peak take a replay of its events.
async fn against(
    connection: &mut Connection,
    word: &str,
    with_sites: bool,
    global: &Global,
) -> Result<Against, Failure> {
    if let Some(Baseline { spread, profile, .. }) = baseline(word)? {
        return Ok(Against { name: word.to_owned(), profile, spread });
    }
    let selection = v1::Selection { job: word.to_owned(), ..Default::default() };
    let report = report(connection, selection, global).await?;
    let profile = match with_sites {
        true => profile(connection, &report.job.id).await?,
        false => Profile::new(&report, None),
    };
    Ok(Against { name: report.job.id.clone(), profile, spread: Spread::default() })
}
