//! `memctl fit`: replays a training, recorded at one or two sizes, at other sizes and with changes.
//!
//! Guarantees: reports what it did not analyse. Refuses recordings with gaps, and two recordings of different
//! trainings.

use std::io::Write;

use memctl_answers::fit::Fit;
use memctl_proto::v1;
use memctl_proto::v1::fit_request::Change;

use crate::args::values::SizedJob;
use crate::args::{self, Global};
use crate::client::{asking, streamed};
use crate::exit::Failure;
use crate::output::show;
use crate::render::screen::Screen;

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::Fit,
    global: &Global,
    screen: &Screen,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    check(args)?;
    let request = v1::FitRequest {
        recordings: args.jobs.iter().map(recording).collect(),
        rank: args.rank,
        at: args.at.clone(),
        device_memory: args.device_memory,
        change: change(args),
    };
    let answer: Fit = asking(global, async |connection| {
        let response = connection.query.get_fit(request).await;
        streamed(response, connection).await
    })
    .await?;
    show(&answer, global, screen, out)
}

/// Refuses arguments that do not form a query.
fn check(args: &args::Fit) -> Result<(), Failure> {
    if args.at.is_empty() && change(args).is_none() {
        return Err(Failure::usage(
            "no forecast was requested; add --at 16,32 (and the recorded size of each job: --job A=4), --under, --without or --checkpoint",
        ));
    }
    let why = match args.jobs.as_slice() {
        [one] if args.at.is_empty() || one.1.is_some() => return Ok(()),
        [_] => "--at also needs the size at which the job was recorded: --job A=4 (batch, sequence, layers)",
        [SizedJob(_, Some(one)), SizedJob(_, Some(other))] if one != other => return Ok(()),
        [_, _] => "two recordings need their sizes, and the sizes must differ: --job A=4 --job B=8",
        _ => "give one recording, or two of different sizes: --job A=4 --job B=8",
    };
    Err(Failure::usage(why))
}

fn recording(SizedJob(job, size): &SizedJob) -> v1::SizedRecording {
    let selection = v1::Selection { job: job.clone(), ..v1::Selection::default() };
    v1::SizedRecording { selection: Some(selection), size: *size }
}

fn change(args: &args::Fit) -> Option<Change> {
    let (without, checkpoint) = (args.without.clone(), args.checkpoint.clone());
    without.map(Change::Without).or(checkpoint.map(Change::Checkpoint)).or(args.under.map(Change::Under))
}
