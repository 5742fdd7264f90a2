//! `memctl export`: streams a slice of a job into a file for another tool.
//!
//! Guarantees: a file appears whole or not at all; binary data never goes to a terminal; expired data is reported.
//! Refuses to write an empty export.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use memctl_answers::Completeness;
use memctl_answers::processes::JobProcesses;
use memctl_answers::sites::View;
use memctl_proto::v1;
use memctl_proto::v1::export_part::Body;

use crate::args::{self, ExportFormat, Global};
use crate::client::{answered, asking, live};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::export::events_csv::EventsCsv;
use crate::export::memory_viz::MemoryViz;
use crate::export::window::Windows;
use crate::export::{ExportError, Sink};
use crate::output_file::{Target, name_of};
use crate::render::text::{plural, rank_list};

/// The placeholder for the rank in a file's name.
const RANK: &str = "{rank}";

/// See the module.
///
/// # Errors
/// See [`Failure`].
pub async fn run(
    args: &args::Export,
    global: &Global,
    now: Timestamp,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let selection = args.narrow.selection(now);
    let file = args.file.as_deref().filter(|file| *file != Path::new("-"));
    if args.format == ExportFormat::MemoryViz && file.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::usage("a pickle is binary; write it to a file with -f FILE"));
    }
    asking(global, async |connection| {
        let stored = Stored::of(connection, &selection).await?;
        match args.format {
            ExportFormat::Folded => folded(connection, selection, &stored, file, out).await?,
            ExportFormat::Csv => events(connection, selection, &stored, file, out).await?,
            ExportFormat::MemoryViz => memory_viz(connection, selection, &stored, (file, global), out).await?,
        }
        // Live memory at a moment is complete even if earlier events have expired.
        let of_events = args.format != ExportFormat::Folded && !global.quiet;
        if let Some(missing) = stored.missing().filter(|_| of_events) {
            eprintln!("memctl: the export is incomplete: {missing}");
        }
        Ok(())
    })
    .await
}

async fn events(
    connection: &mut Connection,
    selection: v1::Selection,
    stored: &Stored,
    file: Option<&Path>,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let windows = windows(connection, &selection).await?;
    let mut target = Target::open(file, out)?;
    let mut sink = EventsCsv::new(target.writer(), windows).map_err(|error| failed(&error, connection, file))?;
    stream(connection, selection, &mut sink, (stored, file)).await?;
    drop(sink);
    target.keep()
}

/// What is stored of the requested part.
struct Stored {
    job: String,
    ranks: Vec<u32>,
    completeness: Completeness,
}

impl Stored {
    async fn of(connection: &mut Connection, selection: &v1::Selection) -> Result<Self, Failure> {
        // A job without an epoch end has events as well.
        let whole = v1::Selection { first_epoch: None, last_epoch: None, ..selection.clone() };
        let request = v1::JobRequest { selection: Some(whole) };
        let response = connection.query.get_job(request).await;
        let JobProcesses { job, completeness, processes } = answered(response, connection)?;
        let mut ranks: Vec<u32> = processes.iter().map(|process| process.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let job = job.id;
        if ranks.is_empty() {
            return Err(Failure::no_such_job(format!("job {job} has none of these ranks")));
        }
        Ok(Self { job, ranks, completeness })
    }

    /// States what has expired.
    fn missing(&self) -> Option<String> {
        let Completeness { events_expired, .. } = self.completeness;
        (events_expired > 0).then(|| format!("retention removed the {} oldest", plural(events_expired, "event")))
    }

    /// Why there is nothing to write.
    fn nothing(&self) -> Failure {
        let job = &self.job;
        let why = match (self.missing(), self.completeness.events_stored) {
            (Some(missing), _) => format!("no event of this part of job {job} is stored any more: {missing}"),
            (None, 0) => format!("no allocator event of job {job} was recorded"),
            (None, _) => format!("no event lies in this part of job {job}"),
        };
        Failure::input(format!("{why}; nothing was written"))
    }

    /// Whether an event of the selection is stored; reads only to the first one.
    async fn holds(&self, connection: &mut Connection, selection: &v1::Selection) -> Result<bool, Failure> {
        let request = v1::ExportRequest { selection: Some(selection.clone()), without_events: false };
        let parts = connection.query.export(request).await;
        let mut parts = parts.map_err(|status| connection.failure(&status))?.into_inner();
        while let Some(part) = parts.message().await.map_err(|status| connection.failure(&status))? {
            if matches!(part.body, Some(Body::Chunk(_))) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

async fn folded(
    connection: &mut Connection,
    selection: v1::Selection,
    stored: &Stored,
    file: Option<&Path>,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    use v1::sites_request::Moment;
    let moment = match (selection.until_ns, selection.last_epoch) {
        (Some(until), _) => Moment::AtNs(until),
        (None, Some(epoch)) => Moment::EpochEnd(epoch),
        (None, None) => Moment::End(true),
    };
    let request = v1::SitesRequest { selection: Some(selection), moment: Some(moment) };
    let sites = live(connection, request, View::default()).await?;
    if sites.ranks.is_empty() {
        return Err(stored.nothing());
    }
    if sites.ranks.iter().all(|rank| rank.sites.is_empty()) {
        let job = &stored.job;
        return Err(Failure::input(format!(
            "nothing was live at the end of this part of job {job}; nothing was written"
        )));
    }
    let mut target = Target::open(file, out)?;
    sites.folded(&mut target.writer()).map_err(|error| Failure::output(&name_of(file), &error))?;
    target.keep()
}

async fn memory_viz(
    connection: &mut Connection,
    selection: v1::Selection,
    stored: &Stored,
    (file, global): (Option<&Path>, &Global),
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let mut ranks = Vec::new();
    for &rank in &stored.ranks {
        let selection = v1::Selection { ranks: vec![rank], ..selection.clone() };
        if stored.holds(connection, &selection).await? {
            ranks.push(rank);
        } else if !global.quiet && stored.ranks.len() > 1 {
            eprintln!("memctl: rank {rank} is omitted: no event of it is stored in this part of the job");
        }
    }
    if ranks.is_empty() {
        return Err(stored.nothing());
    }
    let pattern = file.map(|file| file.to_string_lossy().into_owned()).filter(|name| name.contains(RANK));
    if ranks.len() > 1 && pattern.is_none() {
        return Err(Failure::usage(format!(
            "a snapshot holds one rank, and there are {}: choose one with --rank, or write each with -f 'rank{RANK}.pickle'",
            rank_list(&ranks)
        )));
    }
    let windows = windows(connection, &selection).await?;
    for rank in ranks {
        let of_rank = pattern.as_ref().map(|name| PathBuf::from(name.replace(RANK, &rank.to_string())));
        let file = of_rank.as_deref().or(file);
        let selection = v1::Selection { ranks: vec![rank], ..selection.clone() };
        one_rank(connection, selection, (stored, windows.clone()), file, out).await?;
        if let (Some(file), false) = (file, global.quiet) {
            eprintln!(
                "memctl: wrote {}; view it with: python -m torch.cuda._memory_viz stats {}",
                file.display(),
                file.display()
            );
        }
    }
    Ok(())
}

async fn one_rank(
    connection: &mut Connection,
    selection: v1::Selection,
    (stored, windows): (&Stored, Windows),
    file: Option<&Path>,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let mut target = Target::open(file, out)?;
    let mut sink = MemoryViz::new(target.writer(), windows).map_err(|error| failed(&error, connection, file))?;
    stream(connection, selection, &mut sink, (stored, file)).await?;
    drop(sink);
    target.keep()
}

/// The slice in time for each rank; epochs are found in the marks.
async fn windows(connection: &mut Connection, selection: &v1::Selection) -> Result<Windows, Failure> {
    let mut windows = Windows::new(selection);
    if !windows.need_marks() {
        return Ok(windows);
    }
    // Marks of the whole job are read, because the mark that begins the slice may precede it.
    let all = v1::Selection { first_epoch: None, last_epoch: None, ..selection.clone() };
    let request = v1::ExportRequest { selection: Some(all), without_events: true };
    let parts = connection.query.export(request).await;
    let mut parts = parts.map_err(|status| connection.failure(&status))?.into_inner();
    let mut rank = 0;
    while let Some(part) = parts.message().await.map_err(|status| connection.failure(&status))? {
        match part.body {
            Some(Body::Start(start)) => rank = start.rank,
            Some(Body::Marks(batch)) => {
                windows.marks(rank, &batch).map_err(|error| failed(&ExportError::from(error), connection, None))?;
            }
            _ => {}
        }
    }
    Ok(windows)
}

async fn stream(
    connection: &mut Connection,
    selection: v1::Selection,
    sink: &mut impl Sink,
    (stored, file): (&Stored, Option<&Path>),
) -> Result<(), Failure> {
    let request = v1::ExportRequest { selection: Some(selection), without_events: false };
    let parts = connection.query.export(request).await;
    let mut parts = parts.map_err(|status| connection.failure(&status))?.into_inner();
    while let Some(part) = parts.message().await.map_err(|status| connection.failure(&status))? {
        // An unknown part comes from a newer memctl and has no data for these formats.
        if let Some(body) = part.body {
            sink.part(body).map_err(|error| failed(&error, connection, file))?;
        }
    }
    sink.finish().map_err(|error| match error {
        ExportError::Nothing => stored.nothing(),
        error => failed(&error, connection, file),
    })
}

fn failed(error: &ExportError, connection: &Connection, file: Option<&Path>) -> Failure {
    match error {
        ExportError::Output(error) => Failure::output(&name_of(file), error),
        other => Failure::unreachable(format!("what {} sent cannot be exported: {other}", connection.place)),
    }
}
