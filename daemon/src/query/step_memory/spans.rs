//! The steps of a session as spans of time, from its marks.
//!
//! Guarantees: the marks around a step are read, and not those of the whole session. If the steps before and after it
//! are further away, more marks are read, up to [`ITEMS_MAX`] items. Windows take the place of steps if the process
//! marks none.

use memctl_answers::step_memory::StepName;
use memctl_model::{Mark, MarkKind, Phase};
use memctl_proto::item::Content;
use memctl_proto::v1::ItemKind;

use crate::job_data::error::ReadError;
use crate::job_data::stacks::open;
use crate::query::one_device::OneDevice;
use crate::store::{ChunkRow, Selection};

/// The most items of marks that are read. Each has up to four thousand marks.
const ITEMS_MAX: usize = 256;
/// Marks are read this long before and after a step, until its neighbours are found.
const AROUND_NS: [u64; 4] = [0, 5_000_000_000, 60_000_000_000, 3_600_000_000_000];

/// A step or a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub kind: &'static str,
    pub name: StepName,
    pub begin_ns: u64,
    /// `None` if no end was recorded.
    pub end_ns: Option<u64>,
}

/// A phase: its begin and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PhaseSpan {
    pub phase: Phase,
    pub times_ns: (u64, u64),
}

/// A step, its neighbours and its phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundStep {
    pub span: Span,
    pub previous: Option<StepName>,
    pub next: Option<Span>,
    pub phases: Vec<PhaseSpan>,
}

/// Which step is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Step(u64),
    /// The step of this time, or else the last one before it.
    At(u64),
}

/// Finds a step; `None` if there is no such step.
pub(super) async fn find(of: &OneDevice<'_>, which: Which) -> Result<Option<FoundStep>, ReadError> {
    let is_near = |chunk: &&ChunkRow| match which {
        Which::Step(step) => (chunk.index.first_step..=chunk.index.last_step).contains(&step),
        Which::At(time_ns) => (chunk.index.first_ns..=chunk.index.last_ns).contains(&time_ns),
    };
    let near = of.chunks.iter().filter(is_near).fold(None, |times: Option<(u64, u64)>, chunk| {
        let (from, to) = times.unwrap_or((u64::MAX, 0));
        Some((from.min(chunk.index.first_ns), to.max(chunk.index.last_ns)))
    });
    let all = (
        of.chunks.first().map_or(0, |chunk| chunk.index.first_ns),
        of.chunks.last().map_or(u64::MAX, |chunk| chunk.index.last_ns),
    );
    let times_ns = match which {
        Which::At(time_ns) => near.unwrap_or((time_ns, time_ns)),
        Which::Step(_) => near.unwrap_or(all),
    };
    let mut found = None;
    for around_ns in AROUND_NS {
        let wider = (times_ns.0.saturating_sub(around_ns), times_ns.1.saturating_add(around_ns));
        let marks = marks(of, wider).await?;
        found = chosen(&spans(&marks), which).map(|found| FoundStep { phases: phases(&marks), ..found });
        let reaches = (wider.0 <= all.0, wider.1 >= all.1);
        let is_whole =
            |found: &FoundStep| (found.previous.is_some() || reaches.0) && (found.next.is_some() || reaches.1);
        if found.as_ref().is_some_and(is_whole) || reaches == (true, true) {
            break;
        }
    }
    Ok(found)
}

async fn marks(of: &OneDevice<'_>, times_ns: (u64, u64)) -> Result<Vec<Mark>, ReadError> {
    let selection = Selection { times_ns: Some(times_ns), ..Selection::default() };
    let mut marks = Vec::new();
    for row in of.store.items(of.session.key, ItemKind::Marks, None, selection).await?.iter().take(ITEMS_MAX) {
        if let Content::Marks(found) = open(of.session.key, row)? {
            marks.extend(found);
        }
    }
    marks.sort_by_key(|mark| mark.time_ns);
    Ok(marks)
}

/// The steps of these marks, or their windows if there is no step.
fn spans(marks: &[Mark]) -> Vec<Span> {
    let is_step = |mark: &Mark| matches!(mark.kind, MarkKind::StepBegin(_) | MarkKind::StepEnd(_));
    if marks.iter().any(is_step) { steps(marks) } else { windows(marks) }
}

/// The epoch before the first mark of an epoch.
fn first_epoch(marks: &[Mark]) -> u32 {
    let epoch = |mark: &Mark| match mark.kind {
        MarkKind::EpochBegin(epoch) => Some(epoch.saturating_sub(1)),
        MarkKind::EpochEnd(epoch) => Some(epoch),
        _ => None,
    };
    marks.iter().find_map(epoch).unwrap_or(0)
}

fn steps(marks: &[Mark]) -> Vec<Span> {
    let mut epoch = first_epoch(marks);
    let mut spans: Vec<Span> = Vec::new();
    for &Mark { time_ns, ref kind } in marks {
        match *kind {
            MarkKind::EpochBegin(begun) => epoch = begun,
            MarkKind::StepBegin(step) => {
                spans.push(Span { kind: "step", name: StepName { epoch, step }, begin_ns: time_ns, end_ns: None });
            }
            MarkKind::StepEnd(step) => match spans.last_mut() {
                Some(last) if last.name.step == step && last.end_ns.is_none() => last.end_ns = Some(time_ns),
                // Without a begin, a step begins at the end of the one before it.
                Some(last) => {
                    let begin_ns = last.end_ns.unwrap_or(last.begin_ns).saturating_add(1);
                    let name = StepName { epoch, step };
                    spans.push(Span { kind: "step", name, begin_ns, end_ns: Some(time_ns) });
                }
                // The begin of the first one may be outside of these marks.
                None => {
                    let name = StepName { epoch, step };
                    spans.push(Span { kind: "step", name, begin_ns: 0, end_ns: Some(time_ns) });
                }
            },
            _ => {}
        }
    }
    spans
}

fn windows(marks: &[Mark]) -> Vec<Span> {
    let mut epoch = first_epoch(marks);
    let (mut spans, mut begin_ns) = (Vec::new(), 0);
    for mark in marks {
        match mark.kind {
            MarkKind::EpochBegin(begun) => epoch = begun,
            MarkKind::WindowEnd(window) => {
                let name = StepName { epoch, step: window };
                spans.push(Span { kind: "window", name, begin_ns, end_ns: Some(mark.time_ns) });
                // (An end is behind the events of its own time.)
                begin_ns = mark.time_ns.saturating_add(1);
            }
            _ => {}
        }
    }
    spans
}

fn chosen(spans: &[Span], which: Which) -> Option<FoundStep> {
    let at = match which {
        Which::Step(step) => spans.iter().rposition(|span| span.name.step == step)?,
        Which::At(time_ns) => {
            spans.iter().rposition(|span| span.begin_ns <= time_ns).or((!spans.is_empty()).then_some(0))?
        }
    };
    let next = spans.get(at + 1).copied();
    let previous = at.checked_sub(1).map(|before| spans[before].name);
    Some(FoundStep { span: spans[at], previous, next, phases: Vec::new() })
}

/// The phases that have both marks.
fn phases(marks: &[Mark]) -> Vec<PhaseSpan> {
    let (mut open, mut found) = (Vec::<(Phase, u64)>::new(), Vec::new());
    for mark in marks {
        match mark.kind {
            MarkKind::PhaseBegin(phase) => open.push((phase, mark.time_ns)),
            MarkKind::PhaseEnd(phase) => {
                if let Some(at) = open.iter().rposition(|(begun, _)| *begun == phase) {
                    let (phase, begin_ns) = open.remove(at);
                    found.push(PhaseSpan { phase, times_ns: (begin_ns, mark.time_ns) });
                }
            }
            _ => {}
        }
    }
    found.sort_by_key(|phase| (phase.times_ns.0, std::cmp::Reverse(phase.times_ns.1)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(of: &[(u64, MarkKind)]) -> Vec<Mark> {
        of.iter().map(|(time_ns, kind)| Mark { time_ns: *time_ns, kind: kind.clone() }).collect()
    }

    #[test]
    fn a_step_is_between_its_marks_and_the_last_one_before_a_time_is_meant() {
        let marks = marks(&[
            (5, MarkKind::StepEnd(6)),
            (9, MarkKind::EpochEnd(1)),
            (10, MarkKind::EpochBegin(2)),
            (10, MarkKind::StepBegin(7)),
            (11, MarkKind::PhaseBegin(Phase::Forward)),
            (20, MarkKind::PhaseEnd(Phase::Forward)),
            (40, MarkKind::StepEnd(7)),
            (50, MarkKind::StepBegin(8)),
        ]);
        let spans = spans(&marks);
        let times: Vec<(u64, u32, u64, Option<u64>)> =
            spans.iter().map(|span| (span.name.step, span.name.epoch, span.begin_ns, span.end_ns)).collect();
        assert_eq!(times, [(6, 1, 0, Some(5)), (7, 2, 10, Some(40)), (8, 2, 50, None)]);
        let step = |which| chosen(&spans, which).map(|found| found.span.name.step);
        assert_eq!([3, 12, 45, 60].map(|time| step(Which::At(time))), [Some(6), Some(7), Some(7), Some(8)]);
        assert_eq!((step(Which::Step(7)), step(Which::Step(70))), (Some(7), None));
        let found = chosen(&spans, Which::Step(7)).unwrap();
        assert_eq!((found.previous.unwrap().step, found.next.unwrap().name.step), (6, 8));
        assert_eq!(phases(&marks), [PhaseSpan { phase: Phase::Forward, times_ns: (11, 20) }]);
    }

    #[test]
    fn ends_alone_are_steps_and_windows_are_where_no_step_is() {
        let ends = marks(&[(5, MarkKind::StepEnd(0)), (9, MarkKind::StepEnd(1))]);
        let ends: Vec<_> = spans(&ends).iter().map(|span| (span.begin_ns, span.end_ns)).collect();
        assert_eq!(ends, [(0, Some(5)), (6, Some(9))]);
        let windows = marks(&[(5, MarkKind::WindowEnd(3)), (9, MarkKind::WindowEnd(4))]);
        let windows = spans(&windows);
        assert_eq!((windows[1].kind, windows[1].name.step, windows[1].begin_ns), ("window", 4, 6));
        assert_eq!(chosen(&[], Which::At(4)), None);
    }
}
