//! Checks whether a run's first sentence is true of its site tables.
//!
//! A sentence about growth is true if the memory of its place has grown by the stated amount, to within 2 %. The growth
//! is measured in the tables, or as the sum of the added blocks. A job allocates some memory only once, at the begin of
//! the growth. So the measured growth may include the memory of the first boundaries or leave it out. A sentence
//! without growth is true if there is no significant growth in the last third of the run.
//! Guarantees: the check uses the tables and the added blocks, and never the judge's results.

use std::borrow::Cow;

use memctl_model::{Boundary, Frame, SiteTable, Verdict, VerdictKind};

use super::runs::Run;

/// The verdict on a run, and whether its sentence is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoredVerdict {
    /// The kind of memctl's verdict.
    pub kind: VerdictKind,
    /// Whether its sentence is true.
    pub is_true: bool,
}

/// The relative tolerance for the bytes of a sentence.
const OFF_BY: f64 = 0.02;
/// Growth does not matter if it is below this share of the peak.
const MATTERS: f64 = 0.01;
/// The minimum number of boundaries of one kind for a series.
const BOUNDARIES_MIN: usize = 12;

/// Compares a sentence with its run.
#[must_use]
pub fn said(run: &Run, verdict: &Verdict) -> ScoredVerdict {
    let is_true = match verdict.kind {
        VerdictKind::Growing | VerdictKind::Filling => has_grown(run, verdict),
        VerdictKind::Steady => verdict.swing_bytes.map_or_else(|| is_flat(run), |swing| swings(run, swing)),
        VerdictKind::LevelledOff | VerdictKind::Released => is_flat(run) && was_held(run, verdict),
        VerdictKind::NotEnoughData => run.truth.is_none(),
        VerdictKind::OutOfMemory => false,
    };
    ScoredVerdict { kind: verdict.kind, is_true }
}

fn is_near(said: u64, so: u64) -> bool {
    said.abs_diff(so) as f64 <= OFF_BY * so.max(said) as f64
}

/// The ranks that a sentence is about.
fn ranks(run: &Run, verdict: &Verdict) -> impl Iterator<Item = usize> {
    let ranks = run.streams.len();
    verdict.ranks.iter().map(|&rank| rank as usize).filter(move |&rank| rank < ranks)
}

/// The number of boundaries during which a job allocates its one-time memory.
const MAKING: usize = 3;

/// The last boundary of a sentence's growth is among this many boundaries at the end of a run. After it, a training
/// frees its memory.
const LAST: usize = 3;

/// Whether memory has grown by the stated amount on one of the named ranks. The memory is that of the named line, of
/// its function, or all memory.
fn has_grown(run: &Run, verdict: &Verdict) -> bool {
    let Some(said) = verdict.grown_bytes else { return false };
    let site = verdict.site.as_ref();
    ranks(run, verdict).any(|rank| {
        let in_an_epoch = || verdict.seconds.is_none() && rises_within_an_epoch(run, rank, site, said);
        rises_between(run, rank, verdict, said) || in_an_epoch() || is_put_in(run, rank, site, said)
    })
}

fn rises_between(run: &Run, rank: usize, verdict: &Verdict, said: u64) -> bool {
    let stream = &run.streams[rank];
    let took_ns = (verdict.seconds.unwrap_or(0.0) * 1e9) as u64;
    (stream.len().saturating_sub(LAST)..stream.len()).any(|last| {
        let Some(last) = stream.table(last) else { return false };
        let begun_ns = last.time_ns.saturating_sub(took_ns);
        // The seconds of the sentence are rounded.
        let is_before = |at: usize| stream.table(at).is_some_and(|table| table.time_ns + 1_000 < begun_ns);
        let begun = first_that_is_not(stream.len(), is_before);
        let Some(first) = stream.table(begun) else { return false };
        let early: Vec<Cow<'_, SiteTable>> = (begun..=begun + MAKING).filter_map(|at| stream.table(at)).collect();
        let places = [Place::Line, Place::Function, Place::All];
        first.time_ns.abs_diff(begun_ns) <= 1_000
            && places.into_iter().any(|place| {
                let held = |table: &SiteTable| held_at(run, rank, table, verdict.site.as_ref(), place);
                let (now, made) = (held(&last), early.iter().map(|table| held(table)).max().unwrap_or(0));
                let (most, least) = (now.saturating_sub(held(&first)), now.saturating_sub(made));
                (least..=most).contains(&said) || is_near(said, most) || is_near(said, least)
            })
    })
}

/// The first number for which `is_before` is false, found by binary search.
fn first_that_is_not(count: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Whether the memory of the place grows by at least this amount within one epoch. This is used for sentences without a
/// time.
fn rises_within_an_epoch(run: &Run, rank: usize, site: Option<&Frame>, said: u64) -> bool {
    let all = tables(run, rank);
    let enough = (said as f64 * (1.0 - OFF_BY)) as u64;
    all.chunk_by(|one, next| one.epoch == next.epoch).any(|epoch| {
        let held: Vec<u64> = epoch.iter().map(|table| held_at(run, rank, table, site, Place::Function)).collect();
        let lowest = held.iter().min().copied().unwrap_or(0);
        held.iter().any(|&held| held.saturating_sub(lowest) >= enough)
    })
}

/// Whether the leak that was added to this rank has the stated amount and is at the named place.
fn is_put_in(run: &Run, rank: usize, site: Option<&Frame>, said: u64) -> bool {
    let Some(truth) = run.truth.as_ref().filter(|truth| truth.ranks.first() == Some(&rank)) else { return false };
    let stream = &run.streams[rank];
    let end = stream.len().checked_sub(1).and_then(|last| stream.at(last)).unwrap_or(usize::MAX);
    let bytes = truth.blocks.iter().filter(|(at, _)| *at <= end).fold(0, |sum: u64, (_, bytes)| sum + bytes);
    let right = site.is_none_or(|site| truth.frames.iter().any(|frame| is_of(frame, site)));
    right && is_near(said, bytes)
}

fn is_of(frame: &Frame, site: &Frame) -> bool {
    (&frame.function, &frame.file) == (&site.function, &site.file)
}

/// The memory that is compared: that of a line, that of a function, or all memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Line,
    Function,
    All,
}

/// The bytes of the blocks in a table whose stacks contain a line or its function. All allocated bytes if there is no
/// line.
fn held_at(run: &Run, rank: usize, table: &SiteTable, site: Option<&Frame>, place: Place) -> u64 {
    let Some(site) = site.filter(|_| place != Place::All) else { return table.counters.allocated_bytes };
    let is_there = |frame: &Frame| is_of(frame, site) && (place == Place::Function || frame.line == site.line);
    let base = &run.bases[rank];
    let stacks = base.stacks.len();
    let through = |id: u32| {
        let Some(index) = (id as usize).checked_sub(1) else { return false };
        let frames = base.stacks.get(index).or_else(|| run.sites.stacks.get(index.checked_sub(stacks)?));
        frames.is_some_and(|frames| frames.iter().any(is_there))
    };
    let live = table.rows.iter().filter(|row| through(row.stack.0)).map(|row| row.bytes);
    let pools = table.private_pools.iter().filter(|row| through(row.stack.0)).map(|row| row.bytes);
    live.sum::<u64>().max(pools.sum())
}

/// Whether the place ever held the amount that the sentence states.
fn was_held(run: &Run, verdict: &Verdict) -> bool {
    let Some(said) = verdict.grown_bytes else { return false };
    let enough = (said as f64 * (1.0 - OFF_BY)) as u64;
    ranks(run, verdict).any(|rank| {
        let held = |table: &SiteTable| held_at(run, rank, table, verdict.site.as_ref(), Place::Function);
        tables(run, rank).iter().any(|table| held(table) >= enough)
    })
}

/// Whether a sentence about two levels is true. Over the last third, the lowest and the highest live memory of some
/// rank must be the stated levels. And no rank's memory may end higher than before: the lowest level of the last sixth
/// is compared with the highest of the lowest levels of all earlier sixths.
fn swings(run: &Run, (lowest, highest): (u64, u64)) -> bool {
    let levels: Vec<Levels> = (0..run.streams.len()).filter_map(|rank| Levels::of(run, rank, OF_A_SWING)).collect();
    let is_between = |levels: &Levels| {
        let last = &levels.bytes[levels.bytes.len() - levels.bytes.len().div_ceil(3)..];
        let (least, most) = (last.iter().min().copied().unwrap_or(0), last.iter().max().copied().unwrap_or(0));
        is_near(lowest, least) && is_near(highest, most)
    };
    let ends_higher = |levels: &Levels| {
        let sixth = levels.bytes.len() / 6;
        let (before, last) = levels.bytes.split_at(levels.bytes.len() - sixth);
        let lowest = |levels: &[u64]| levels.iter().min().copied().unwrap_or(0);
        let highest = before.chunks_exact(sixth).map(lowest).max().unwrap_or(0);
        lowest(last).saturating_sub(highest) as f64 > MATTERS * levels.peak as f64
    };
    levels.iter().any(is_between) && !levels.iter().any(ends_higher)
}

/// Whether no rank's live memory grew significantly over the last third. The lowest levels of the two halves of this
/// third are compared, because memory that comes and goes is not growth.
fn is_flat(run: &Run) -> bool {
    (0..run.streams.len()).filter_map(|rank| Levels::of(run, rank, OF_A_COURSE)).all(|Levels { bytes, peak }| {
        let sixth = bytes.len() / 6;
        let lowest = |from: usize| bytes[from..from + sixth].iter().copied().min().unwrap_or(0);
        let (before, late) = (lowest(bytes.len() - 2 * sixth), lowest(bytes.len() - sixth));
        late.saturating_sub(before) as f64 <= MATTERS * peak as f64
    })
}

/// The kinds of boundaries at which levels are compared: for sentences about a course, and for sentences about two
/// levels. The first kind with enough boundaries is used.
const OF_A_COURSE: [Boundary; 3] = [Boundary::EpochEnd, Boundary::StepEnd, Boundary::WindowEnd];
const OF_A_SWING: [Boundary; 3] = [Boundary::StepEnd, Boundary::EpochEnd, Boundary::WindowEnd];

/// The live memory of a rank at boundaries of one kind.
struct Levels {
    bytes: Vec<u64>,
    peak: u64,
}

impl Levels {
    /// The levels; `None` if no kind has enough boundaries.
    fn of(run: &Run, rank: usize, kinds: [Boundary; 3]) -> Option<Self> {
        let stream = &run.streams[rank];
        let mut levels: [Vec<u64>; 3] = Default::default();
        let mut peak = 0;
        for table in (0..stream.len()).filter_map(|at| stream.table(at)) {
            peak = peak.max(table.peaks.allocated_bytes);
            if let Some(kind) = kinds.iter().position(|kind| *kind == table.boundary) {
                levels[kind].push(table.counters.allocated_bytes);
            }
        }
        let bytes = levels.into_iter().find(|levels| levels.len() >= BOUNDARIES_MIN)?;
        Some(Self { bytes, peak })
    }
}

/// The tables of a rank. For a long epoch, only the first and the last table and those after which detectors are
/// queried.
fn tables(run: &Run, rank: usize) -> Vec<SiteTable> {
    let stream = &run.streams[rank];
    let asked = (0..stream.len()).filter(|&at| at == 0 || at + 1 == stream.len() || stream.asks_after(at));
    asked.filter_map(|at| stream.table(at).map(std::borrow::Cow::into_owned)).collect()
}
