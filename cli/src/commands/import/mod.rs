//! `memctl import`: finds the files and their ranks, makes room in the store, imports, removes what a failed import
//! stored.
//!
//! Guarantees: files are complete and have distinct ranks before anything is stored; an import is a separate run;
//! existing runs change only with `--replace`, and then only after every file was read to its end; a failed or
//! interrupted import leaves nothing behind.

mod files;
mod progress;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memctl_answers::access::{Caller, Role};
use memctl_model::Launch;
use memctl_proto::v1;
use tonic::Code;

use crate::args::{Global, Import};
use crate::client::{self, answered, report};
use crate::connect::{Connection, Source, WhenMissing, connect};
use crate::exit::{Failure, Outcome};
use crate::hosting::{self, ImportOutcome, ImportRequest, OnProgress};
use crate::output::show;
use crate::render::screen::Screen;
use crate::render::text::plural;
use memctl_answers::Job;
use memctl_answers::processes::JobProcesses;

/// Interval and number of attempts to delete a job that is still being recorded. Half a minute is enough for the stream
/// of a large file to end.
const TAKE_BACK_EVERY: Duration = Duration::from_millis(250);
const TAKE_BACK_TRIES: u32 = 120;

/// See the module.
///
/// # Errors
/// The input is invalid, the job exists, or no daemon or store can be reached.
pub async fn run(args: &Import, global: &Global, screen: &Screen, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let files = files::find(&args.paths)?;
    let mut connection = connect(global, WhenMissing::Make).await?;
    let launcher = hosting::launch_id::drawn();
    let result = import(args, (files, launcher), &mut connection, global).await;
    let answer = match result {
        Ok(outcome) => {
            tell(&outcome, global);
            let selection = v1::Selection { launcher: Some(launcher), ..only(&args.job, args.attempt) };
            Ok(report(&mut connection, selection, global).await)
        }
        Err(failure) => Err(failure),
    };
    connection.close().await;
    match answer? {
        Ok(report) => show(&report, global, screen, out),
        // A failure's exit code would make a script import again.
        Err(failure) => {
            eprintln!("memctl: everything is stored, and could not be shown: {failure}");
            eprintln!("memctl: `memctl query --job {}` shows it", args.job);
            Ok(())
        }
    }
}

async fn import(
    args: &Import,
    (files, launcher): (Vec<(u32, PathBuf)>, u64),
    connection: &mut Connection,
    global: &Global,
) -> Result<ImportOutcome, Failure> {
    let source_paths = hosting::of_an_import(args.source_paths)?;
    known_there(&args.job, connection).await?;
    let into_run = make_room(args, &files, connection).await?;
    let attempt = args.attempt.unwrap_or(0);
    let labels = args.labels.iter().map(|label| (label.0.clone(), label.1.clone())).collect();
    let visible = !global.quiet && std::io::stderr().is_terminal();
    let (advice, silence_max) = match &connection.place {
        Source::Daemon(_) => ("see its log, then import again", hosting::DAEMON_SILENCE_MAX),
        Source::Service(_) | Source::DataDir(_) => (
            "is its disk full? Free space there or choose another folder with --data-dir, then import again",
            hosting::EMBEDDED_SILENCE_MAX,
        ),
    };
    let taker = (connection.place.to_string(), advice);
    let launch = Launch { launcher: Some(launcher), into_run, ..Launch::default() };
    let job = args.job.clone();
    let begun = Arc::new(AtomicBool::new(false));
    let is_begun = begun.clone();
    let request = ImportRequest { job, attempt, labels, launch, source_paths, files, taker, silence_max, begun };
    let (bars, on_progress): (_, OnProgress) = progress::bars(visible);
    let told_to_stop = hosting::told_to_stop()?;
    let importing = hosting::import_files(connection.daemon(), request, on_progress);
    let result = tokio::select! {
        result = importing => result,
        () = told_to_stop => Err(Failure::input("interrupted; nothing was stored")),
    };
    bars.finish();
    // Nothing can be stored before the first session begins. Relaxed: the import has ended.
    if result.is_err() && is_begun.load(Ordering::Relaxed) {
        take_back(&args.job, (launcher, attempt), connection).await;
    }
    result
}

/// Fails at once if the daemon does not know the caller or does not allow it to write to the job. An uplink would wait
/// for another token.
async fn known_there(job: &str, connection: &mut Connection) -> Result<(), Failure> {
    match client::caller(connection).await {
        Ok(Some(caller)) => may_import(&caller, job),
        Err(status) if status.code() == Code::Unauthenticated => Err(connection.failure(&status)),
        // An older daemon does not know the request.
        _ => Ok(()),
    }
}

/// Whether a caller may write to a job. An older daemon does not report to which ones.
fn may_import(caller: &Caller, job: &str) -> Result<(), Failure> {
    let Caller { name, role, jobs, .. } = caller;
    if *role == Role::Reader {
        return Err(Failure::not_allowed(format!(
            "{name} has the role reader, which imports nothing: use a token of the role agent, operator or admin"
        )));
    }
    if jobs.is_empty() || hosting::fits(jobs, job) {
        return Ok(());
    }
    Err(Failure::not_allowed(format!(
        "{name} may write only to jobs named {jobs}, and {job} is not one of them: choose another --job, or use another token"
    )))
}

/// Deletes the run that is replaced, once the files are known to be valid. Returns the run to which an attempt is
/// added.
async fn make_room(
    args: &Import,
    files: &[(u32, PathBuf)],
    connection: &mut Connection,
) -> Result<Option<u32>, Failure> {
    if args.replace {
        hosting::check_files(files).await?;
        let request = v1::DeleteJobRequest { job: args.job.clone(), ..v1::DeleteJobRequest::default() };
        let gone = connection.query.delete_job(request).await.map_err(|status| connection.failure(&status));
        return gone.map(|_| None).or_else(|failure| unless_missing(failure, None));
    }
    let Some(attempt) = args.attempt else { return Ok(None) };
    let Some(newest) = find(only(&args.job, None), connection).await? else { return Ok(None) };
    let run = newest.run.unwrap_or(1);
    if find(only(&format!("{}#{run}", newest.name), Some(attempt)), connection).await?.is_some() {
        let id = newest.id;
        return Err(Failure::input(format!(
            "{id} has an attempt {attempt} already; choose another number, or leave --attempt out, which adds a run"
        )));
    }
    Ok(Some(run))
}

async fn find(selection: v1::Selection, connection: &mut Connection) -> Result<Option<Job>, Failure> {
    let request = v1::JobRequest { selection: Some(selection) };
    let response = connection.query.get_job(request).await;
    let known = answered::<JobProcesses>(response, connection).map(|known| Some(known.job));
    known.or_else(|failure| unless_missing(failure, None))
}

/// Treats a missing job as success.
fn unless_missing<T>(failure: Failure, otherwise: T) -> Result<T, Failure> {
    if failure.outcome == Outcome::NoSuchJob { Ok(otherwise) } else { Err(failure) }
}

fn only(job: &str, attempt: Option<u32>) -> v1::Selection {
    v1::Selection { job: job.to_owned(), attempt, ..v1::Selection::default() }
}

/// Deletes a partial import. If deleting fails too, that is printed beside the failure that led here.
async fn take_back(job: &str, (launcher, attempt): (u64, u32), connection: &mut Connection) {
    // If the run existed before, its other attempts stay.
    let (launcher, attempt) = (Some(launcher), Some(attempt));
    let request = v1::DeleteJobRequest { job: job.to_owned(), attempt, launcher, all_runs: false };
    let mut answer = connection.query.delete_job(request.clone()).await;
    // The abandoned stream may not have ended yet. Until it ends, the daemon refuses to delete the job (`Aborted`).
    for _ in 0..TAKE_BACK_TRIES {
        if !answer.as_ref().is_err_and(|status| status.code() == Code::Aborted) {
            break;
        }
        tokio::time::sleep(TAKE_BACK_EVERY).await;
        answer = connection.query.delete_job(request.clone()).await;
    }
    if let Err(status) = answer {
        let failure = connection.failure(&status);
        if failure.outcome != Outcome::NoSuchJob {
            eprintln!("memctl: what was stored of {job} could not be removed: {failure}");
            eprintln!("memctl: `memctl jobs` shows it; `memctl delete --job RUN --attempt N` deletes it later");
        }
    }
}

fn tell(outcome: &ImportOutcome, global: &Global) {
    if global.quiet {
        return;
    }
    let ImportOutcome { events, unknown_frees, contradictions } = *outcome;
    eprintln!("memctl: {} imported", plural(events, "event"));
    if unknown_frees > 0 {
        eprintln!("memctl: {} of memory that was allocated before the recording began", plural(unknown_frees, "free"));
    }
    if contradictions > 0 {
        eprintln!(
            "memctl: {} contradicted the known state of the allocator and were corrected",
            plural(contradictions, "event")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_imports_only_into_its_jobs() {
        let caller = |role: Role, jobs: &str| Caller {
            name: "token ci (1)".into(),
            role,
            tenant: "default".into(),
            jobs: jobs.into(),
        };
        for jobs in ["*", "train-*", ""] {
            assert!(may_import(&caller(Role::Agent, jobs), "train-1").is_ok(), "{jobs}");
        }
        for (refused, words) in [
            (caller(Role::Agent, "train-*"), "token ci (1) may write only to jobs named train-*, and foo is not"),
            (caller(Role::Reader, "*"), "the role reader, which imports nothing"),
        ] {
            let failure = may_import(&refused, "foo").unwrap_err();
            assert_eq!(failure.outcome, Outcome::NotAllowed);
            assert!(failure.to_string().contains(words), "{failure}");
        }
    }
}
