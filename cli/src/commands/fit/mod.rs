//! `memctl fit`: a training that was recorded at one or two sizes, replayed at others, and with changes.
//!
//! Guarantees: says what it did not look at. Refuses recordings with holes, and two that are not of one training.

mod changes;
mod under;

use std::io::Write;

use memctl_answers::fit::{Fit, Growing, Recording};
use memctl_answers::fitting::{self, Fitted, Fitting, OUTSIDE, Recorded, ReplayError};
use memctl_answers::report::Rank;
use memctl_proto::v1;
use memctl_replay::Version;

use crate::args::values::SizedJob;
use crate::args::{self, Global};
use crate::client::{asking, report, same_job};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::output::show;
use crate::render::screen::Screen;

/// A recording, its requests, and how it ran.
type Of = (Recording, Recorded, Ran);

/// How a recording ran.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What grows in it.
    pub growing: Option<Growing>,
    /// Ranks of the job.
    pub world: u32,
    /// The oldest version of PyTorch that it may be of.
    pub oldest: Version,
}

/// What a number of bytes means, behind [`OUTSIDE`].
const MEANT: &str = "--device-memory and --under are what the process may reserve.";

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
    let other = args.without.is_some() || args.checkpoint.is_some() || args.under.is_some();
    if args.at.is_empty() && !other {
        return Err(Failure::usage(
            "it is not said what to forecast: --at 16,32 (then each job with the number that it was recorded at: --job A=4), --under, --without or --checkpoint",
        ));
    }
    let answer = match args.jobs.as_slice() {
        [one] if args.at.is_empty() || one.1.is_some() => {
            asking(global, async |connection| {
                let (recording, recorded, ran) = recorded(connection, one, args.rank, global).await?;
                alone(args, recording, recorded, ran)
            })
            .await?
        }
        [_] => {
            return Err(Failure::usage(
                "--at needs the number that was recorded, too: --job A=4 (batch, sequence, layers)",
            ));
        }
        [one, other] => {
            let [few, many] = ordered(one, other)?;
            asking(global, async |connection| {
                let small = recorded(connection, few, args.rank, global).await?;
                let large = recorded(connection, many, Some(small.0.rank), global).await?;
                two(args, small, large)
            })
            .await?
        }
        _ => return Err(Failure::usage("one recording is needed, or two at different numbers: --job A=4 --job B=8")),
    };
    show(&answer, global, screen, out)
}

/// Two jobs, the smaller number first.
fn ordered<'a>(one: &'a SizedJob, other: &'a SizedJob) -> Result<[&'a SizedJob; 2], Failure> {
    match (one.1, other.1) {
        (Some(few), Some(many)) if few < many => Ok([one, other]),
        (Some(few), Some(many)) if few > many => Ok([other, one]),
        _ => Err(Failure::usage("two recordings need their numbers, and different ones: --job A=4 --job B=8")),
    }
}

/// What one recording shows.
fn alone(args: &args::Fit, recording: Recording, recorded: Recorded, ran: Ran) -> Result<Fit, Failure> {
    let job = recording.job.clone();
    let fitted = fitting::alone(recording, recorded, args.device_memory, !args.at.is_empty())
        .map_err(|error| Failure::input(format!("{job}: {error}")))?;
    tell(args, fitted, &[ran])
}

/// What two recordings show.
fn two(args: &args::Fit, (small, few, ran): Of, (large, many, of_larger): Of) -> Result<Fit, Failure> {
    let jobs = format!("{} and {}", small.job, large.job);
    let fitted = fitting::two((small, few), (large, many), args.device_memory)
        .map_err(|error| Failure::input(format!("{jobs}: {error}")))?;
    tell(args, fitted, &[ran, of_larger])
}

/// The figures that were asked for; the recordings ran as given, and the last one is replayed.
fn tell(args: &args::Fit, mut fitted: Fitted, ran: &[Ran]) -> Result<Fit, Failure> {
    let Fitted { answer, fit, meaning } = &mut fitted;
    answer.growing = ran.iter().filter_map(|ran| ran.growing.clone()).collect();
    if let Some(site) = &args.without {
        let (without, script) = changes::without(site, fit, meaning)?;
        answer.without = Some(without);
        answer.not_looked_at.push(changes::WITHOUT.to_owned());
        *fit = fit.with(script);
    }
    if let Some(name) = &args.checkpoint {
        let (checkpoint, script) = changes::checkpoint(name, fit, meaning)?;
        answer.checkpoint = Some(checkpoint);
        answer.not_looked_at.extend(changes::CHECKPOINT.map(str::to_owned));
        *fit = fit.with(script);
    }
    if let (Some(limit), Some(ran)) = (args.under, ran.last()) {
        let size = answer.recordings.last().and_then(|recording| recording.size);
        answer.peak = Some(under::peak(fit, meaning));
        let (told, remarks) = under::under(limit, fit, meaning, size, ran);
        answer.under = Some(told);
        answer.not_looked_at.extend(remarks);
    }
    if !args.at.is_empty() {
        fitted.sizes(&args.at);
    }
    fitted.answer.not_looked_at.push(format!("{OUTSIDE} {MEANT}"));
    Ok(fitted.answer)
}

/// The requests of one rank of a job: the one that was asked for, else the one with the highest peak.
async fn recorded(
    connection: &mut Connection,
    SizedJob(job, size): &SizedJob,
    rank: Option<u32>,
    global: &Global,
) -> Result<Of, Failure> {
    let selection = v1::Selection { job: job.clone(), ranks: rank.into_iter().collect(), ..v1::Selection::default() };
    let report = report(connection, selection.clone(), global).await?;
    let level = |row: &&Rank| (row.peak_reserved_bytes, std::cmp::Reverse(row.rank));
    let Some(row) = report.ranks.iter().max_by_key(level) else {
        return Err(Failure::input(format!("nothing of {job} was recorded")));
    };
    let (dropped, gaps) = (row.completeness.events_dropped, row.completeness.gaps);
    if dropped > 0 || gaps > 0 {
        return Err(Failure::input(format!("events of {job} are missing, so its requests cannot be replayed")));
    }
    let selection = v1::Selection { devices: vec![row.device], ..same_job(selection, &report, row) };
    let request = v1::ExportRequest { selection: Some(selection), without_events: false };
    let mut fitting = Fitting::new().map_err(|error| failed(&error, connection))?;
    let parts = connection.query.export(request).await;
    let mut parts = parts.map_err(|status| connection.failure(&status))?.into_inner();
    while let Some(part) = parts.message().await.map_err(|status| connection.failure(&status))? {
        if let Some(body) = part.body {
            fitting.part(body).map_err(|error| failed(&error, connection))?;
        }
        if let Some(why) = &fitting.refused {
            return Err(Failure::input(format!("{job} cannot be replayed: {why}")));
        }
    }
    let Some(recorded) = fitting.recorded() else {
        return Err(Failure::input(format!("no allocator events of {job} are stored")));
    };
    let recording = recorded.named(report.job.id.clone(), report.job.attempt, row.rank, *size);
    let growing = Growing::of(&report, row);
    let ran = Ran { growing, world: report.job.world_size.unwrap_or(1), oldest: recorded.oldest };
    Ok((recording, recorded, ran))
}

fn failed(error: &ReplayError, connection: &Connection) -> Failure {
    Failure::unreachable(format!("what {} sent cannot be replayed: {error}", connection.place))
}
