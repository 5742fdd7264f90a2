//! `memctl delete`: deletes a job after a confirmation, because a deletion cannot be undone.

use memctl_model::HumanBytes;
use memctl_proto::v1;

use crate::args::{Delete, Global};
use crate::client::asking;
use crate::confirm::confirmed;
use crate::exit::Failure;
use crate::render::text::{plural, safe};

/// See the module.
///
/// # Errors
/// There is no such job, or no daemon or store responds.
pub async fn run(args: &Delete, global: &Global) -> Result<(), Failure> {
    if args.name() == "latest" {
        return Err(Failure::usage("`latest` cannot be deleted, because which job it is changes; give the job's name"));
    }
    if args.all_runs && args.name().contains('#') {
        return Err(Failure::usage("--all-runs takes the name of the job alone; what follows # is one run"));
    }
    if !args.yes && !is_meant(args)? {
        eprintln!("memctl: nothing was deleted");
        return Ok(());
    }
    let request = v1::DeleteJobRequest {
        job: args.name().to_owned(),
        attempt: args.attempt,
        all_runs: args.all_runs,
        launcher: None,
    };
    let answer = asking(global, async |connection| {
        let response = connection.query.delete_job(request).await;
        response.map(tonic::Response::into_inner).map_err(|status| connection.failure(&status))
    });
    let gone = answer.await?;
    if !global.quiet {
        let (sessions, bytes) = (plural(u64::from(gone.sessions), "session"), HumanBytes::of(gone.stored_bytes));
        let runs = if gone.runs.is_empty() { args.name().to_owned() } else { gone.runs.join(", ") };
        eprintln!("memctl: deleted {}: {sessions}, {bytes}", safe(&runs));
    }
    Ok(())
}

fn is_meant(args: &Delete) -> Result<bool, Failure> {
    let attempt = args.attempt.map_or(String::new(), |attempt| format!(" (attempt {attempt})"));
    let what = match (args.all_runs, args.name().contains('#')) {
        (true, _) => "all runs of ",
        (false, true) => "run ",
        (false, false) => "the newest run of ",
    };
    let name = safe(args.name());
    let question = format!("Delete {what}{name}{attempt} and everything stored for it?");
    confirmed(&format!("deleting {name}"), &question)
}
