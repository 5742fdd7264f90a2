//! The queries `jobs`, `query`, `timeline` and `sites`. Each connects, sends one request, prints the response and
//! closes.

use std::io::Write;

use jiff::Timestamp;
use memctl_answers::SCHEMA;
use memctl_answers::finding::Finding;
use memctl_answers::format::time;
use memctl_answers::jobs::Jobs;
use memctl_answers::naming::shell_word;
use memctl_answers::report::Report;
use memctl_answers::sites::View;
use memctl_model::Severity;
use memctl_proto::v1;

use crate::args::FailOn;
use crate::args::{self, Format, Global};
use crate::client::{self, asking, course, hint, live, report};
use crate::connect::default_data_dir;
use crate::exit::{Failure, Outcome};
use crate::hosting::{JobFolder, data_dirs};
use crate::output::{show, show_part};
use crate::page;
use crate::render::screen::Screen;
use crate::render::text::{plural, safe};
use crate::unrecorded;

/// Points per rank in data formats.
const DATA_POINTS: u32 = 240;
/// Jobs on several nodes that get a line of their own.
const JOBS_OF_NODES: usize = 8;

/// `memctl jobs`.
///
/// # Errors
/// See [`Failure`].
pub async fn jobs(
    args: &args::Jobs,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let filtered = !args.states.is_empty() || !args.labels.is_empty();
    let request = v1::ListJobsRequest {
        limit: args.limit,
        states: args.states.iter().map(|state| v1::JobState::from(*state) as i32).collect(),
        labels: args
            .labels
            .iter()
            .map(|args::values::LabelArg(key, value)| v1::Label { key: key.clone(), value: value.clone() })
            .collect(),
        judge: true,
    };
    let answer = asking(global, async |connection| {
        let tenant = global.credentials().tenant.filter(|tenant| tenant != "*");
        Ok(Jobs { filtered, tenant, now_ns: crate::hosting::now_ns(), ..client::jobs(connection, request).await? })
    });
    let answer = match answer.await {
        // A host of which only jobs on several nodes are known has no store of its own.
        Err(failure) if failure.outcome == Outcome::Unreachable && has_jobs_of_nodes(global) => {
            Jobs { schema: SCHEMA, filtered, now_ns: crate::hosting::now_ns(), ..Jobs::default() }
        }
        answer => answer?,
    };
    show(&answer, global, screen, out)?;
    say_other_stores(global);
    Ok(())
}

fn has_jobs_of_nodes(global: &Global) -> bool {
    global.daemon().is_none() && global.data_dir.is_none() && !JobFolder::all().is_empty()
}

/// Names the stores of other hosts that share this home folder, because the list does not contain their jobs.
fn say_other_stores(global: &Global) {
    let named = global.daemon().is_some() || global.data_dir.is_some();
    let Some(folder) = default_data_dir().ok().filter(|_| !named && !global.quiet) else { return };
    for other in data_dirs::other_stores(&folder) {
        let other = shell_word(&other.to_string_lossy());
        eprintln!("memctl: another host has a store, too: `memctl jobs --in-process --data-dir {}`", safe(&other));
    }
    let of_nodes = JobFolder::all();
    for job in of_nodes.iter().take(JOBS_OF_NODES).filter_map(JobFolder::job) {
        eprintln!("memctl: a job on several nodes has its own store: `memctl query {}`", safe(&shell_word(&job)));
    }
    if let more @ 1.. = of_nodes.len().saturating_sub(JOBS_OF_NODES) {
        eprintln!("memctl: and {more} older ones");
    }
}

/// `memctl query`.
///
/// # Errors
/// See [`Failure`].
pub async fn query(
    args: &args::Query,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let selection = args.narrow.selection(now);
    let name = args.narrow.which.name();
    let answer = asking(global, async |connection| report(connection, selection, global).await).await;
    let answer = answer.map_err(|failure| unrecorded::explained(global, &name, failure))?;
    unrecorded::note(global, &name);
    show_part(&answer, &args.narrow.part, global, screen, out)?;
    args.fail_on.map_or(Ok(()), |limit| fail_on(&answer, limit))
}

/// Fails if a report matches `--fail-on`.
fn fail_on(report: &Report, limit: FailOn) -> Result<(), Failure> {
    let failed = |words: String| Err(Failure::found(format!("{words} (--fail-on)")));
    if let Some(verdict) = report.verdict.as_ref().filter(|verdict| limit == FailOn::Growing && verdict.is_grave()) {
        return failed(verdict.words().to_owned());
    }
    // An older daemon sends no verdict. Then findings about growth count instead.
    let severity = limit.severity().or(report.verdict.is_none().then_some(Severity::Info));
    let counts = |finding: &&Finding| severity.is_some_and(|severity| finding.severity >= severity);
    match (report.findings.iter().filter(counts).count(), severity, report.scope.inconclusive()) {
        (0, _, Some(not)) => failed(format!("inconclusive: {}", not.reason)),
        (0, ..) | (_, None, _) => Ok(()),
        (found, Some(severity), _) => {
            let found = plural(found as u64, "finding");
            failed(format!("{found} of severity {} or worse", severity.name()))
        }
    }
}

/// `memctl timeline`.
///
/// # Errors
/// See [`Failure`].
pub async fn timeline(
    args: &args::Timeline,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let points = args.points.unwrap_or(match global.output {
        Format::Table => plot_points(screen),
        _ => DATA_POINTS,
    });
    let selection = args.narrow.selection(now);
    let answer = asking(global, async |connection| course(connection, selection, points, global).await);
    show(&answer.await?, global, screen, out)
}

/// The number of points for a plot: two per column distinguish an epoch's beginning and end.
#[must_use]
pub fn plot_points(screen: &Screen) -> u32 {
    2 * page::timeline::columns(screen) as u32
}

/// `memctl sites`.
///
/// # Errors
/// See [`Failure`].
pub async fn sites(
    args: &args::Sites,
    global: &Global,
    screen: &Screen,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    if !(0.0..=100.0).contains(&args.min_percent) {
        return Err(Failure::usage("--min-percent takes 0 to 100"));
    }
    if args.folded && global.output != Format::Table {
        return Err(Failure::usage("--folded is a format of its own; omit -o"));
    }
    let moment = args.at.moment(now);
    let request = v1::SitesRequest { selection: Some(args.narrow.selection(now)), moment };
    let answer = asking(global, async |connection| {
        let view = View {
            all_frames: args.all_frames,
            min_share: args.min_percent / 100.0,
            chosen: args.narrow.part.rank.is_some(),
            moment: in_words(moment.as_ref()),
            hint: hint(connection, global),
        };
        live(connection, request, view).await
    });
    let answer = answer.await?;
    if args.folded {
        return answer.folded(out).map_err(|error| Failure::output("standard output", &error));
    }
    show(&answer, global, screen, out)
}

fn in_words(moment: Option<&v1::sites_request::Moment>) -> String {
    use v1::sites_request::Moment;
    match moment {
        None => "at the end of the last epoch".to_owned(),
        Some(Moment::Peak(_)) => "when most was allocated, on each rank".to_owned(),
        Some(Moment::EpochEnd(epoch)) => format!("at the end of epoch {epoch}"),
        Some(Moment::AtNs(ns)) => format!("at {}", time::rfc3339(*ns)),
        Some(Moment::End(_)) => "at the end of the recording".to_owned(),
    }
}
