//! `memctl fit`: a training that was recorded at one or two sizes, replayed at others, and with changes.
//!
//! Guarantees: says what it did not look at. Refuses recordings with holes, and two that are not of one training.

mod changes;
mod under;

use std::io::Write;

use memctl_answers::fit::{Aligned, At, Fit, Recording, Scaled};
use memctl_answers::report::Rank;
use memctl_model::HumanBytes;
use memctl_proto::v1;
use memctl_replay::Version;
use memctl_replay::fit as replay;

use crate::args::values::SizedJob;
use crate::args::{self, Global};
use crate::ask::{asking, report, same_job};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::export::Sink;
use crate::fitting::{Fitting, Meaning, Recorded};
use crate::render::screen::Screen;
use crate::show::show;

/// A recording, its requests, and how it ran.
type Of = (Recording, Recorded, Ran);

/// How a recording ran.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// Ranks of the job.
    pub world: u32,
    /// The oldest version of PyTorch that it may be of.
    pub oldest: Version,
}

/// What no figure covers.
const OUTSIDE: &str = "Memory outside PyTorch's allocator: the context, libraries, other processes. --device-memory and --under are what the process may reserve.";
/// What no forecast covers.
const OTHER_SIZES: [&str; 2] = [
    "What a program or a library does at another size only: another kernel with another workspace, a split of the batch. The interval has room for one request twice as large as the largest that grows, and for how memory is cut at sizes nearby.",
    "Sizes below the smaller recording are less certain than those above.",
];
/// What weighs on a forecast from one recording.
const ALONE: &str = "What scales is concluded from what each request was for, because there is one recording only: weaker than two. Whatever grows with the square of the number, or in part, is taken to grow in proportion.";

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

/// What one recording tells.
fn alone(args: &args::Fit, recording: Recording, recorded: Recorded, ran: Ran) -> Result<Fit, Failure> {
    let meaning = recorded.meaning(recording.size);
    let mut answer = Fit::new(Vec::new(), args.device_memory);
    answer.not_looked_at = caveats(&recording, &recorded);
    // (Without a number nothing is asked that depends on it.)
    let number = recording.size.unwrap_or(1) as f64;
    let fit = replay::Fit::alone((number, recorded.script), |request| meaning.scale(request), recorded.conf)
        .map_err(|error| Failure::input(format!("{}: {error}", recording.job)))?;
    if !args.at.is_empty() {
        answer.scaled = fit.scaled().map(scaled);
        answer.not_looked_at.push(ALONE.to_owned());
    }
    answer.recordings = vec![recording];
    tell(args, answer, fit, &meaning, ran)
}

/// What two recordings tell.
fn two(args: &args::Fit, small: Of, large: Of) -> Result<Fit, Failure> {
    let mut answer = Fit::new(Vec::new(), args.device_memory);
    for (recording, recorded, _) in [&small, &large] {
        answer.not_looked_at.extend(caveats(recording, recorded));
    }
    let ((small, few, _), (large, many, ran)) = (small, large);
    let meaning = many.meaning(large.size);
    let number = |recording: &Recording| recording.size.unwrap_or(0) as f64;
    let fit = replay::Fit::new((number(&small), few.script), (number(&large), many.script), many.conf)
        .map_err(|error| Failure::input(format!("{} and {}: {error}", small.job, large.job)))?;
    let replay::Aligned { requests, constant, linear, quadratic, other, unmatched, unmatched_bytes } = *fit.aligned();
    answer.aligned = Some(Aligned { requests, constant, linear, quadratic, other, unmatched, unmatched_bytes });
    answer.recordings = vec![small, large];
    tell(args, answer, fit, &meaning, ran)
}

/// The figures that were asked for.
fn tell(args: &args::Fit, mut answer: Fit, mut fit: replay::Fit, meaning: &Meaning, ran: Ran) -> Result<Fit, Failure> {
    if let Some(site) = &args.without {
        let (without, script) = changes::without(site, &fit, meaning)?;
        answer.without = Some(without);
        answer.not_looked_at.push(changes::WITHOUT.to_owned());
        fit = fit.with(script);
    }
    if let Some(name) = &args.checkpoint {
        let (checkpoint, script) = changes::checkpoint(name, &fit, meaning)?;
        answer.checkpoint = Some(checkpoint);
        answer.not_looked_at.extend(changes::CHECKPOINT.map(str::to_owned));
        fit = fit.with(script);
    }
    if let Some(limit) = args.under {
        let size = answer.recordings.last().and_then(|recording| recording.size);
        answer.peak = Some(under::peak(&fit, meaning));
        let (told, remarks) = under::under(limit, &fit, meaning, size, ran);
        answer.under = Some(told);
        answer.not_looked_at.extend(remarks);
    }
    answer.at = args.at.iter().map(|&size| at(&fit, size, args.device_memory)).collect();
    if !args.at.is_empty() {
        answer.largest_that_fits = args.device_memory.and_then(|memory| fit.largest(memory));
        answer.not_looked_at.extend(OTHER_SIZES.map(str::to_owned));
    }
    answer.not_looked_at.push(OUTSIDE.to_owned());
    Ok(answer)
}

/// What makes the figures of a recording less certain.
fn caveats(recording: &Recording, recorded: &Recorded) -> Vec<String> {
    let mut caveats = Vec::new();
    if !recorded.exact {
        caveats.push(format!("The replay does not repeat {}: figures are less certain.", recording.job));
    }
    if recorded.began_with_bytes > 0 {
        let live = HumanBytes::of(recorded.began_with_bytes);
        caveats.push(format!("{} began with {live} in use, taken as the same at every size.", recording.job));
    }
    caveats
}

fn scaled(scaled: &replay::Scaled) -> Scaled {
    let replay::Scaled { requests, fixed, fixed_bytes, proportional, proportional_bytes, doubtful, doubtful_bytes } =
        *scaled;
    Scaled { requests, fixed, fixed_bytes, proportional, proportional_bytes, doubtful, doubtful_bytes }
}

fn at(fit: &replay::Fit, size: u64, memory: Option<u64>) -> At {
    let forecast = fit.at(size as f64, memory);
    At {
        size,
        peak_allocated_bytes: forecast.likely.counts.peak_allocated_bytes,
        peak_reserved_bytes: forecast.likely.counts.peak_reserved_bytes,
        low: forecast.low_bytes,
        high: forecast.high_bytes,
        fits: forecast.fits,
    }
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
    let (process, device) = (fitting.process.clone(), fitting.device);
    let Some(recorded) = fitting.recorded() else {
        return Err(Failure::input(format!("no allocator events of {job} are stored")));
    };
    let recording = Recording {
        job: report.job.id.clone(),
        attempt: report.job.attempt,
        size: *size,
        rank: row.rank,
        process,
        device,
        peak_reserved_bytes: recorded.peak_reserved_bytes,
        peak_allocated_bytes: recorded.peak_allocated_bytes,
        exact: recorded.exact,
    };
    let ran = Ran { world: report.job.world_size.unwrap_or(1), oldest: recorded.oldest };
    Ok((recording, recorded, ran))
}

fn failed(error: &crate::export::ExportError, connection: &Connection) -> Failure {
    Failure::unreachable(format!("what {} sent cannot be replayed: {error}", connection.place))
}
