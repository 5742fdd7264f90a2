//! Whether a run's first sentence is true of what is in its streams.
//!
//! A sentence that says that memory grew is true if the place that it names holds as much more as it says, to within two
//! hundredths, as the tables show or as was put in. One that says that nothing grows is true if the last third of the run
//! brought nothing that matters. Guarantees: reads the tables and what was added, never what the judge made of them.

use memctl_model::{Boundary, Frame, SiteTable, Verdict, VerdictKind};

use super::runs::Run;

/// What was said of a run, and whether it is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// What memctl says that memory did.
    pub kind: VerdictKind,
    /// Whether that is true.
    pub is_true: bool,
}

/// How far the bytes of a sentence may be off.
const OFF_BY: f64 = 0.02;
/// Share of the peak below which growth does not matter.
const MATTERS: f64 = 0.01;
/// Boundaries of a kind from which they show a course.
const BOUNDARIES_MIN: usize = 12;

/// Compares a sentence with its run.
#[must_use]
pub fn said(run: &Run, verdict: &Verdict) -> Said {
    let is_true = match verdict.kind {
        VerdictKind::Growing | VerdictKind::Filling => has_grown(run, verdict),
        VerdictKind::Steady => is_flat(run),
        VerdictKind::LevelledOff | VerdictKind::Released => is_flat(run) && was_held(run, verdict),
        VerdictKind::NotEnoughData => run.truth.is_none(),
        VerdictKind::OutOfMemory => false,
    };
    Said { kind: verdict.kind, is_true }
}

fn is_near(said: u64, so: u64) -> bool {
    said.abs_diff(so) as f64 <= OFF_BY * so.max(said) as f64
}

/// The ranks that a sentence is about.
fn ranks(run: &Run, verdict: &Verdict) -> impl Iterator<Item = usize> {
    let ranks = run.streams.len();
    verdict.ranks.iter().map(|&rank| rank as usize).filter(move |&rank| rank < ranks)
}

/// Whether the named place holds as much more on one of the named ranks as the sentence says.
fn has_grown(run: &Run, verdict: &Verdict) -> bool {
    let Some(said) = verdict.grown_bytes else { return false };
    ranks(run, verdict).any(|rank| {
        let all = tables(run, rank);
        let Some(last) = all.last() else { return false };
        let begun_ns = last.time_ns.saturating_sub((verdict.seconds.unwrap_or(0.0) * 1e9) as u64);
        // What stands for the beginning is one of the boundaries around it: times are rounded.
        let near = |table: &&SiteTable| table.time_ns.abs_diff(begun_ns) <= 1_000;
        let held = |table: &SiteTable| held_at(run, rank, table, verdict.site.as_ref());
        let from_tables = all.iter().filter(near).any(|first| is_near(said, held(last).saturating_sub(held(first))));
        from_tables || is_put_in(run, rank, verdict.site.as_ref(), said)
    })
}

/// Whether the leak that was put in came to as much as a sentence about its line says.
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

/// Bytes that a table shows of blocks that were made through the function of a line; of all without one.
fn held_at(run: &Run, rank: usize, table: &SiteTable, site: Option<&Frame>) -> u64 {
    let Some(site) = site else { return table.counters.allocated_bytes };
    let base = &run.bases[rank];
    let stacks = base.stacks.len();
    let through = |id: u32| {
        let Some(index) = (id as usize).checked_sub(1) else { return false };
        let frames = base.stacks.get(index).or_else(|| run.sites.stacks.get(index.checked_sub(stacks)?));
        frames.is_some_and(|frames| frames.iter().any(|frame| is_of(frame, site)))
    };
    let live = table.rows.iter().filter(|row| through(row.stack.0)).map(|row| row.bytes);
    let pools = table.private_pools.iter().filter(|row| through(row.stack.0)).map(|row| row.bytes);
    live.sum::<u64>().max(pools.sum())
}

/// Whether the place ever held what a sentence says that it gained.
fn was_held(run: &Run, verdict: &Verdict) -> bool {
    let Some(said) = verdict.grown_bytes else { return false };
    let enough = (said as f64 * (1.0 - OFF_BY)) as u64;
    ranks(run, verdict).any(|rank| {
        let held = |table: &SiteTable| held_at(run, rank, table, verdict.site.as_ref());
        tables(run, rank).iter().any(|table| held(table) >= enough)
    })
}

/// Whether no rank's live memory grew by what matters over the last third: its lowest level there against the lowest one of
/// as long a stretch before, for what comes and goes is no growth.
fn is_flat(run: &Run) -> bool {
    (0..run.streams.len()).all(|rank| {
        let all = tables(run, rank);
        let of = |boundary: Boundary| -> Vec<u64> {
            let those = all.iter().filter(|table| table.boundary == boundary);
            those.map(|table| table.counters.allocated_bytes).collect()
        };
        let kinds = [Boundary::EpochEnd, Boundary::StepEnd, Boundary::WindowEnd].map(of);
        let Some(levels) = kinds.into_iter().find(|levels| levels.len() >= BOUNDARIES_MIN) else { return true };
        let sixth = levels.len() / 6;
        let lowest = |from: usize| levels[from..from + sixth].iter().copied().min().unwrap_or(0);
        let (before, late) = (lowest(levels.len() - 3 * sixth), lowest(levels.len() - sixth));
        let peak = all.iter().map(|table| table.peaks.allocated_bytes).max().unwrap_or(0);
        late.saturating_sub(before) as f64 <= MATTERS * peak as f64
    })
}

/// The tables of a rank; of a long epoch those at which detectors are asked, and the first and the last one.
fn tables(run: &Run, rank: usize) -> Vec<SiteTable> {
    let stream = &run.streams[rank];
    let asked = (0..stream.len()).filter(|&at| at == 0 || at + 1 == stream.len() || stream.asks_after(at));
    asked.filter_map(|at| stream.table(at).map(std::borrow::Cow::into_owned)).collect()
}
