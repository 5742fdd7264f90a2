//! `memctl export`: streams a slice of a job into a file for another tool.
//!
//! Guarantees: a file appears whole or not at all; binary data never goes to a terminal; expired data is reported.
//! Refuses to write an empty export.

#[cfg(feature = "parquet")]
mod parquet;
mod perfetto;
mod pprof;
mod stored;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use memctl_answers::sites::View;
use memctl_proto::v1;

use crate::args::{self, ExportFormat, Global};
use crate::client::{asking, live};
use crate::connect::Connection;
use crate::exit::Failure;
use crate::export::events_csv::EventsCsv;
use crate::export::memory_viz::MemoryViz;
use crate::export::window::Windows;
use crate::output_file::{Target, name_of};
use crate::render::text::rank_list;

use stored::{StoredPart, failed, stream, windows};

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
    if let (Some(what), None, true) = (binary(args.format), file, std::io::stdout().is_terminal()) {
        return Err(Failure::usage(format!("{what} is binary; write it to a file with -f FILE")));
    }
    #[cfg(feature = "parquet")]
    if args.events && args.format != ExportFormat::Parquet {
        return Err(Failure::usage("--events belongs to --format parquet; --format csv writes events as text"));
    }
    asking(global, async |connection| {
        let stored = StoredPart::of(connection, &selection).await?;
        match args.format {
            ExportFormat::Folded => folded(connection, selection, &stored, file, out).await?,
            ExportFormat::Pprof => pprof::pprof(connection, selection, &stored, file, out).await?,
            ExportFormat::Perfetto => {
                perfetto::perfetto(connection, selection, &stored, (file, global), out).await?;
            }
            #[cfg(feature = "parquet")]
            ExportFormat::Parquet => {
                parquet::parquet(connection, selection, &stored, (file, args.events, global)).await?;
            }
            ExportFormat::Csv => events(connection, selection, &stored, file, out).await?,
            ExportFormat::MemoryViz => memory_viz(connection, selection, &stored, (file, global), out).await?,
        }
        // Live memory at a moment is complete even if earlier events have expired.
        let of_events = !matches!(args.format, ExportFormat::Folded | ExportFormat::Pprof) && !global.quiet;
        if let Some(missing) = stored.missing().filter(|_| of_events) {
            eprintln!("memctl: the export is incomplete: {missing}");
        }
        Ok(())
    })
    .await
}

/// What a format writes, if it is not text.
fn binary(format: ExportFormat) -> Option<&'static str> {
    match format {
        ExportFormat::MemoryViz => Some("a pickle"),
        ExportFormat::Pprof => Some("a profile"),
        ExportFormat::Perfetto => Some("a trace"),
        // A folder of files is refused elsewhere.
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet => None,
        ExportFormat::Folded | ExportFormat::Csv => None,
    }
}

/// Asks for live memory at the end of the selected part.
fn at_end(selection: v1::Selection) -> v1::SitesRequest {
    use v1::sites_request::Moment;
    let moment = match (selection.until_ns, selection.last_epoch) {
        (Some(until), _) => Moment::AtNs(until),
        (None, Some(epoch)) => Moment::EpochEnd(epoch),
        (None, None) => Moment::End(true),
    };
    v1::SitesRequest { selection: Some(selection), moment: Some(moment) }
}

async fn events(
    connection: &mut Connection,
    selection: v1::Selection,
    stored: &StoredPart,
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

async fn folded(
    connection: &mut Connection,
    selection: v1::Selection,
    stored: &StoredPart,
    file: Option<&Path>,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let request = at_end(selection);
    let sites = live(connection, request, View::default()).await?;
    if sites.ranks.is_empty() {
        return Err(stored.nothing());
    }
    if sites.ranks.iter().all(|rank| rank.sites.is_empty()) {
        return Err(stored.nothing_live());
    }
    let mut target = Target::open(file, out)?;
    sites.folded(&mut target.writer()).map_err(|error| Failure::output(&name_of(file), &error))?;
    target.keep()
}

async fn memory_viz(
    connection: &mut Connection,
    selection: v1::Selection,
    stored: &StoredPart,
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
    (stored, windows): (&StoredPart, Windows),
    file: Option<&Path>,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let mut target = Target::open(file, out)?;
    let mut sink = MemoryViz::new(target.writer(), windows).map_err(|error| failed(&error, connection, file))?;
    stream(connection, selection, &mut sink, (stored, file)).await?;
    drop(sink);
    target.keep()
}
