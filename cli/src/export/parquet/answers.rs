//! The tables that are made from answers: sites, epochs and findings. docs/formats.md describes their columns.

use std::io::{self, Write};

use memctl_answers::finding::Finding;
use memctl_answers::format::text::rank_list;
use memctl_answers::naming::place;
use memctl_answers::report::{EpochEnd, Rank, Report};
use memctl_answers::sites::{RankSites, Site};
use memctl_proto::v1;

use super::table::Holds::{Flag, Number, Real, Text, Time};
use super::table::Null::{May, Never};
use super::table::{Cell, Column, Table};

/// The function of the sites that an answer sums up.
const FURTHER: &str = "(smaller sites)";

/// The columns of `sites.parquet`.
pub const SITES: [Column; 17] = [
    ("job", Text, Never),
    ("rank", Number, Never),
    ("process", Text, Never),
    ("device", Number, Never),
    ("at", Time, Never),
    ("epoch", Number, Never),
    ("step", Number, Never),
    ("exact", Flag, Never),
    ("function", Text, May),
    ("file", Text, May),
    ("line", Number, May),
    ("class", Text, May),
    ("owner", Text, May),
    ("birth_epoch", Number, May),
    ("live_bytes", Number, Never),
    ("live_blocks", Number, Never),
    ("stack", Text, Never),
];

/// Writes a row for each site of a device and each epoch in which its memory was allocated.
///
/// # Errors
/// The writer's.
pub fn sites<W: Write + Send>(table: &mut Table<W>, job: &str, of: &RankSites) -> io::Result<()> {
    let row = |site: &Site, birth_epoch: Option<u32>, bytes: u64, blocks: u64| {
        let stack: Vec<String> = site.stack.iter().rev().map(place).collect();
        let frame = site.site.as_ref();
        [
            Cell::text(job),
            Cell::number(of.rank.into()),
            Cell::text(&of.process),
            Cell::number(of.device.into()),
            Cell::number(of.at.0),
            Cell::number(of.epoch.into()),
            Cell::number(of.step),
            Cell::Flag(of.exact),
            Cell::maybe(frame, |frame| Cell::text(&frame.function)),
            Cell::maybe(frame, |frame| Cell::text(&frame.file)),
            Cell::maybe(frame.and_then(|frame| frame.line), |line| Cell::number(line.into())),
            Cell::maybe(site.class.as_deref(), Cell::text),
            Cell::maybe(site.owner.as_deref(), Cell::text),
            Cell::maybe(birth_epoch, |epoch| Cell::number(epoch.into())),
            Cell::number(bytes),
            Cell::number(blocks),
            Cell::text(&stack.join(";")),
        ]
    };
    for site in &of.sites {
        for birth in &site.births {
            table.row(row(site, Some(birth.epoch), birth.live_bytes, birth.live_blocks))?;
        }
    }
    if let Some(further) = of.further {
        let frame = memctl_answers::Frame { function: FURTHER.to_owned(), ..Default::default() };
        let site = Site { site: Some(frame), ..Site::default() };
        table.row(row(&site, None, further.live_bytes, further.live_blocks))?;
    }
    Ok(())
}

/// The columns of `epochs.parquet`.
pub const EPOCHS: [Column; 19] = [
    ("job", Text, Never),
    ("rank", Number, Never),
    ("process", Text, Never),
    ("device", Number, Never),
    ("epoch", Number, Never),
    ("step", Number, Never),
    ("at", Time, Never),
    ("exact", Flag, Never),
    ("allocated_bytes", Number, May),
    ("reserved_bytes", Number, May),
    ("active_bytes", Number, May),
    ("requested_bytes", Number, May),
    ("inactive_split_bytes", Number, May),
    ("largest_free_bytes", Number, May),
    ("epoch_peak_allocated_bytes", Number, May),
    ("epoch_peak_reserved_bytes", Number, May),
    ("peak_allocated_bytes", Number, May),
    ("peak_reserved_bytes", Number, May),
    ("allocated_blocks", Number, May),
];

/// Writes a row for each selected epoch end of each rank.
///
/// # Errors
/// The writer's.
pub fn epochs<W: Write + Send>(table: &mut Table<W>, report: &Report, selection: &v1::Selection) -> io::Result<()> {
    let epochs = selection.first_epoch.unwrap_or(0)..=selection.last_epoch.unwrap_or(u32::MAX);
    let times = selection.since_ns.unwrap_or(0)..=selection.until_ns.unwrap_or(u64::MAX);
    for rank in &report.ranks {
        let ends = rank.epoch_ends.iter().filter(|end| epochs.contains(&end.epoch) && times.contains(&end.at.0));
        ends.map(|end| epoch(&report.job.id, rank, end)).try_for_each(|row| table.row(row))?;
    }
    Ok(())
}

fn epoch(job: &str, rank: &Rank, end: &EpochEnd) -> [Cell; 19] {
    let number = |of: Option<u64>| Cell::maybe(of, Cell::number);
    [
        Cell::text(job),
        Cell::number(rank.rank.into()),
        Cell::text(&rank.process),
        Cell::number(rank.device.into()),
        Cell::number(end.epoch.into()),
        Cell::number(end.step),
        Cell::number(end.at.0),
        Cell::Flag(end.exact),
        number(end.allocated_bytes),
        number(end.reserved_bytes),
        number(end.active_bytes),
        number(end.requested_bytes),
        number(end.inactive_split_bytes),
        number(end.largest_free_bytes),
        number(end.epoch_peak_allocated_bytes),
        number(end.epoch_peak_reserved_bytes),
        number(end.peak_allocated_bytes),
        number(end.peak_reserved_bytes),
        number(end.allocated_blocks),
    ]
}

/// The columns of `findings.parquet`.
pub const FINDINGS: [Column; 24] = [
    ("job", Text, Never),
    ("id", Text, Never),
    ("kind", Text, Never),
    ("severity", Text, Never),
    ("suspected", Flag, Never),
    ("confidence", Real, May),
    ("ranks", Text, Never),
    ("processes", Text, Never),
    ("first_epoch", Number, May),
    ("first_step", Number, May),
    ("first_at", Time, May),
    ("bytes_per_epoch", Number, May),
    ("bytes_per_step", Number, May),
    ("bytes_per_minute", Number, May),
    ("live_bytes", Number, May),
    ("live_blocks", Number, May),
    ("time_to_oom_seconds", Real, May),
    ("function", Text, May),
    ("file", Text, May),
    ("line", Number, May),
    ("pattern", Text, May),
    ("title", Text, Never),
    ("explanation", Text, Never),
    ("advice", Text, Never),
];

/// Writes a row for each finding, the worst first.
///
/// # Errors
/// The writer's.
pub fn findings<W: Write + Send>(table: &mut Table<W>, report: &Report) -> io::Result<()> {
    report.findings.iter().try_for_each(|of| table.row(finding(&report.job.id, of)))
}

fn finding(job: &str, of: &Finding) -> [Cell; 24] {
    let frame = of.site.as_ref().map(|site| &site.frame);
    [
        Cell::text(job),
        Cell::text(&of.id),
        Cell::text(&of.kind),
        Cell::text(of.severity.name()),
        Cell::Flag(of.suspected),
        Cell::maybe(of.confidence, Cell::Real),
        Cell::text(&rank_list(&of.ranks)),
        Cell::text(&of.processes.join(", ")),
        Cell::maybe(of.first_seen.epoch, |epoch| Cell::number(epoch.into())),
        Cell::maybe(of.first_seen.step, Cell::number),
        Cell::maybe(of.first_seen.at, |at| Cell::number(at.0)),
        Cell::maybe(of.bytes_per_epoch, Cell::Number),
        Cell::maybe(of.bytes_per_step, Cell::Number),
        Cell::maybe(of.bytes_per_minute, Cell::Number),
        Cell::maybe(of.live_bytes, Cell::number),
        Cell::maybe(of.live_blocks, Cell::number),
        Cell::maybe(of.time_to_oom_seconds, Cell::Real),
        Cell::maybe(frame, |frame| Cell::text(&frame.function)),
        Cell::maybe(frame, |frame| Cell::text(&frame.file)),
        Cell::maybe(frame.and_then(|frame| frame.line), |line| Cell::number(line.into())),
        Cell::maybe(of.pattern.as_deref(), Cell::text),
        Cell::text(&of.title),
        Cell::text(&of.explanation),
        Cell::text(&of.advice),
    ]
}
