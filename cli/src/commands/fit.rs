//! `memctl fit`: two recordings of one training at two sizes, aligned, and replayed at others.
//!
//! Guarantees: says what it did not look at. Refuses recordings with holes, and two that are not of one training.

use std::io::Write;

use memctl_answers::fit::{Aligned, At, Fit, Recording};
use memctl_answers::report::Rank;
use memctl_model::HumanBytes;
use memctl_proto::v1;
use memctl_replay::fit as replay;

use crate::args::{self, Global};
use crate::ask::{asking, report, same_job};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::export::Sink;
use crate::fitting::{Fitting, Recorded};
use crate::render::screen::Screen;
use crate::show::show;

/// What no forecast covers.
const NEVER: [&str; 3] = [
    "Memory outside PyTorch's allocator: the context, libraries, other processes. --device-memory is what the process may reserve.",
    "What a program or a library does at another size only: another kernel with another workspace, a split of the batch.",
    "Sizes below the smaller recording are less certain than those above.",
];

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
    let [one, other] = args.jobs.as_slice() else {
        return Err(Failure::usage("two recordings are needed: --job A=4 --job B=8, each with its number"));
    };
    if one.1 == other.1 {
        return Err(Failure::usage("the two recordings need different numbers: --job A=4 --job B=8"));
    }
    let (few, many) = if one.1 < other.1 { (one, other) } else { (other, one) };
    let answer = asking(global, async |connection| {
        let small = recorded(connection, few, args.rank, global).await?;
        let rank = small.0.rank;
        let large = recorded(connection, many, Some(rank), global).await?;
        forecast(args, [small, large])
    });
    show(&answer.await?, global, screen, out)
}

/// The figures of all sizes that were asked for.
fn forecast(args: &args::Fit, recorded: [(Recording, Recorded); 2]) -> Result<Fit, Failure> {
    let mut not_looked_at = Vec::new();
    for (recording, recorded) in &recorded {
        if !recorded.exact {
            not_looked_at.push(format!("The replay does not repeat {}: figures are less certain.", recording.job));
        }
        if recorded.began_with_bytes > 0 {
            let live = HumanBytes::of(recorded.began_with_bytes);
            not_looked_at.push(format!("{} began with {live} in use, taken as the same at every size.", recording.job));
        }
    }
    let [(small, few), (large, many)] = recorded;
    let (numbers, conf) = ((small.size as f64, large.size as f64), many.conf);
    let fit = replay::Fit::new((numbers.0, few.script), (numbers.1, many.script), conf)
        .map_err(|error| Failure::input(format!("{} and {}: {error}", small.job, large.job)))?;
    let replay::Aligned { requests, constant, linear, quadratic, other, unmatched, unmatched_bytes } = *fit.aligned();
    let aligned = Aligned { requests, constant, linear, quadratic, other, unmatched, unmatched_bytes };
    let mut answer = Fit::new(vec![small, large], aligned, args.device_memory);
    answer.at = args.at.iter().map(|&size| at(&fit, size, args.device_memory)).collect();
    answer.largest_that_fits = args.device_memory.and_then(|memory| fit.largest(memory));
    answer.not_looked_at = not_looked_at;
    answer.not_looked_at.extend(NEVER.map(str::to_owned));
    Ok(answer)
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
    args::values::SizedJob(job, size): &args::values::SizedJob,
    rank: Option<u32>,
    global: &Global,
) -> Result<(Recording, Recorded), Failure> {
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
    Ok((recording, recorded))
}

fn failed(error: &crate::export::ExportError, connection: &Connection) -> Failure {
    Failure::unreachable(format!("what {} sent cannot be replayed: {error}", connection.place))
}
