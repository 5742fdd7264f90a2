//! The position in the training loop during a replay: the epoch, step and phase of an event, from the stored marks.
//!
//! Guarantees: an end takes effect after the events of its own time, and a begin before them. This is the order in
//! which they were recorded.
//!
//! An unmarked phase is never inferred, with one exception. Allocations of a thread without Python frames, between a
//! forward pass and the optimizer, belong to the backward pass, because autograd's threads have no frames.

use std::collections::BTreeMap;
use std::sync::Arc;

use memctl_analysis::Birth;
use memctl_model::{Event, Mark, MarkKind, Phase};
use memctl_proto::item::Content;
use memctl_proto::v1::ItemKind;

use super::error::ReadError;
use super::stacks::open;
use crate::store::{Selection, SessionKey, Store};

/// The most items of marks that are read for one stretch. Each item has up to four thousand marks, and a stretch has a
/// million events.
const ITEMS_MAX: usize = 1024;

/// A position in a session's marks that moves forward with the events.
#[derive(Clone, Debug, Default)]
pub(crate) struct MarkCursor {
    marks: Arc<[Mark]>,
    next: usize,
    epoch: Option<u32>,
    /// The current step.
    step: Option<u64>,
    /// The current step, or the previous one if none is running. An allocation between two steps belongs to the first
    /// of them.
    last_step: Option<u64>,
    eval: bool,
    train: bool,
    part: Option<Phase>,
    /// Whether a forward pass has ended in this step and nothing has begun since.
    after_forward: bool,
}

/// The marks within this time before a process's end determine its step.
const LAST_NS: u64 = 60_000_000_000;

/// The position of a session in its loop at its end: epoch, step, and whether that step was running.
pub(crate) async fn at_the_end(
    store: &dyn Store,
    session: SessionKey,
    end_ns: u64,
) -> Result<(Option<u32>, Option<u64>, bool), ReadError> {
    let times_ns = (end_ns.saturating_sub(LAST_NS), u64::MAX);
    let mut cursor = MarkCursor::between(store, session, times_ns).await?;
    cursor.advance(u64::MAX, |_| ());
    Ok((cursor.epoch, cursor.step.or(cursor.last_step), cursor.step.is_some()))
}

/// The time at which the last step, epoch or window of a session ended, if that is within the last minute before its
/// end. Later measurements belong to its teardown.
pub(crate) async fn last_boundary_ns(
    store: &dyn Store,
    session: SessionKey,
    end_ns: u64,
) -> Result<Option<u64>, ReadError> {
    let times_ns = (end_ns.saturating_sub(LAST_NS), u64::MAX);
    let cursor = MarkCursor::between(store, session, times_ns).await?;
    let ends = cursor
        .marks
        .iter()
        .filter(|mark| matches!(mark.kind, MarkKind::StepEnd(_) | MarkKind::EpochEnd(_) | MarkKind::WindowEnd(_)));
    Ok(ends.map(|mark| mark.time_ns).max())
}

/// A step boundary that the cursor passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    StepBegin(u64),
    StepEnd,
}

impl MarkCursor {
    /// The marks of a session between two times.
    pub async fn between(store: &dyn Store, session: SessionKey, times_ns: (u64, u64)) -> Result<Self, ReadError> {
        let selection = Selection { times_ns: Some(times_ns), ..Selection::default() };
        let mut marks = Vec::new();
        for row in store.items(session, ItemKind::Marks, None, selection).await?.iter().take(ITEMS_MAX) {
            if let Content::Marks(found) = open(session, row)? {
                marks.extend(found);
            }
        }
        Ok(Self::of(marks))
    }

    /// The position at a moment, from the marks of the minute before it. If steps are longer, the marks of the hour
    /// before it are used.
    pub async fn at(store: &dyn Store, session: SessionKey, time_ns: u64) -> Result<Self, ReadError> {
        let mut cursor = Self::default();
        for back_ns in [LAST_NS, 60 * LAST_NS] {
            cursor = Self::between(store, session, (time_ns.saturating_sub(back_ns), time_ns)).await?;
            cursor.advance(time_ns, |_| ());
            if cursor.last_step.is_some() {
                break;
            }
        }
        Ok(cursor)
    }

    /// The marks of a session, in any order.
    pub fn of(mut marks: Vec<Mark>) -> Self {
        // Items are in sending order, and marks of several threads may be slightly out of order.
        marks.sort_by_key(|mark| mark.time_ns);
        let mut cursor = Self::default();
        cursor.enter(&marks);
        Self { marks: marks.into(), ..cursor }
    }

    /// Sets the position before the first of these marks. If the first mark of a kind is an end, it shows what was
    /// running. If it is a begin, it shows what was over.
    fn enter(&mut self, marks: &[Mark]) {
        let mut seen = [false; 6];
        for mark in marks {
            match mark.kind {
                MarkKind::EpochBegin(epoch) if self.epoch.is_none() => self.epoch = Some(epoch.saturating_sub(1)),
                MarkKind::EpochEnd(epoch) if self.epoch.is_none() => self.epoch = Some(epoch),
                MarkKind::StepBegin(step) if self.last_step.is_none() => self.last_step = Some(step.saturating_sub(1)),
                MarkKind::StepEnd(step) if self.last_step.is_none() => {
                    (self.step, self.last_step) = (Some(step), Some(step));
                }
                MarkKind::PhaseBegin(phase) => seen[phase as usize] = true,
                MarkKind::PhaseEnd(phase) if !std::mem::replace(&mut seen[phase as usize], true) => self.begin(phase),
                _ => {}
            }
        }
    }

    /// Begin and end of each step and epoch that has both among these marks.
    pub fn spans(&self) -> Vec<(u64, u64)> {
        let (mut steps, mut epochs) = (BTreeMap::new(), BTreeMap::new());
        let mut spans = Vec::new();
        for Mark { time_ns, kind, .. } in self.marks.iter() {
            let begun = match kind {
                MarkKind::StepBegin(step) => steps.insert(*step, *time_ns).and(None),
                MarkKind::EpochBegin(epoch) => epochs.insert(*epoch, *time_ns).and(None),
                MarkKind::StepEnd(step) => steps.remove(step),
                MarkKind::EpochEnd(epoch) => epochs.remove(epoch),
                _ => None,
            };
            spans.extend(begun.map(|begun_ns| (begun_ns, *time_ns)));
        }
        spans
    }

    /// The current epoch, if a mark gave it.
    pub fn epoch(&self) -> Option<u32> {
        self.epoch
    }

    /// The current step.
    pub fn step(&self) -> Option<u64> {
        self.step
    }

    /// The current step, or the previous one, if a mark gave it.
    pub fn last_step(&self) -> Option<u64> {
        self.last_step
    }

    /// Moves to the position before an event of this time. `passed` is called for every step boundary on the way.
    pub fn advance(&mut self, time_ns: u64, mut passed: impl FnMut(Passed)) {
        while let Some(mark) = self.marks.get(self.next).filter(|mark| precedes(mark, time_ns)) {
            match mark.kind {
                MarkKind::EpochBegin(epoch) => self.epoch = Some(epoch),
                MarkKind::StepBegin(step) => {
                    (self.step, self.last_step, self.after_forward) = (Some(step), Some(step), false);
                    passed(Passed::StepBegin(step));
                }
                MarkKind::StepEnd(step) => {
                    (self.step, self.last_step, self.after_forward) = (None, Some(step), false);
                    passed(Passed::StepEnd);
                }
                MarkKind::PhaseBegin(phase) => self.begin(phase),
                MarkKind::PhaseEnd(phase) => self.end(phase),
                MarkKind::EpochEnd(_)
                | MarkKind::RegionBegin(_)
                | MarkKind::RegionEnd(_)
                | MarkKind::WindowEnd(_)
                | MarkKind::Note(_) => {}
            }
            self.next += 1;
        }
    }

    fn begin(&mut self, phase: Phase) {
        match phase {
            Phase::Train => (self.train, self.eval) = (true, false),
            Phase::Eval => self.eval = true,
            Phase::Forward | Phase::Backward | Phase::Optimizer => {
                (self.part, self.after_forward) = (Some(phase), false)
            }
        }
    }

    fn end(&mut self, phase: Phase) {
        match phase {
            Phase::Train => self.train = false,
            Phase::Eval => self.eval = false,
            _ if self.part == Some(phase) => {
                self.part = None;
                self.after_forward = phase == Phase::Forward && self.step.is_some() && !self.eval;
            }
            _ => {}
        }
    }

    /// Sets the values that the marks know about the birth of this event's allocation. The rest of `birth` is
    /// unchanged.
    pub fn refine(&mut self, event: &Event, birth: &mut Birth) {
        self.advance(event.time_ns, |_| ());
        birth.epoch = self.epoch.unwrap_or(birth.epoch);
        birth.step = self.last_step.unwrap_or(birth.step);
        birth.phase = match self {
            Self { eval: true, .. } => Some(Phase::Eval),
            Self { part: Some(part), .. } => Some(*part),
            Self { after_forward: true, .. } if !event.stack.is_some() => Some(Phase::Backward),
            Self { train: true, .. } => Some(Phase::Train),
            _ => None,
        };
    }
}

fn precedes(mark: &Mark, time_ns: u64) -> bool {
    match mark.kind {
        MarkKind::EpochEnd(_) | MarkKind::StepEnd(_) | MarkKind::PhaseEnd(_) | MarkKind::RegionEnd(_) => {
            mark.time_ns < time_ns
        }
        _ => mark.time_ns <= time_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memctl_model::StackId;

    #[test]
    fn events_belong_to_the_phase_of_their_moment() {
        let marks = [
            (10, MarkKind::EpochBegin(2)),
            (10, MarkKind::StepBegin(7)),
            (11, MarkKind::PhaseBegin(Phase::Forward)),
            (20, MarkKind::PhaseEnd(Phase::Forward)),
            (30, MarkKind::PhaseBegin(Phase::Optimizer)),
            (40, MarkKind::PhaseEnd(Phase::Optimizer)),
            (40, MarkKind::StepEnd(7)),
            (50, MarkKind::PhaseBegin(Phase::Eval)),
        ];
        let mut cursor = MarkCursor::of(marks.map(|(time_ns, kind)| Mark { time_ns, kind }).to_vec());
        let mut born = |time_ns, stack| {
            let mut birth = Birth { epoch: 9, step: 99, phase: None };
            cursor.refine(&Event { time_ns, stack: StackId(stack), ..Event::default() }, &mut birth);
            (birth.epoch, birth.step, birth.phase)
        };
        assert_eq!(born(5, 1), (1, 6, None), "before what begins first");
        assert_eq!(born(11, 1), (2, 7, Some(Phase::Forward)));
        assert_eq!(born(20, 0), (2, 7, Some(Phase::Forward)), "an end is behind its own instant");
        assert_eq!(born(21, 0), (2, 7, Some(Phase::Backward)), "autograd's thread has no frames");
        assert_eq!(born(22, 1), (2, 7, None));
        assert_eq!(born(35, 1), (2, 7, Some(Phase::Optimizer)));
        assert_eq!(born(41, 0), (2, 7, None), "between steps");
        assert_eq!(born(60, 0), (2, 7, Some(Phase::Eval)));
    }

    #[test]
    fn what_ends_first_was_under_way() {
        let marks = [
            (10, MarkKind::PhaseEnd(Phase::Eval)),
            (20, MarkKind::StepEnd(4)),
            (20, MarkKind::EpochEnd(3)),
            (30, MarkKind::PhaseBegin(Phase::Forward)),
            (35, MarkKind::PhaseEnd(Phase::Forward)),
        ];
        let mut cursor = MarkCursor::of(marks.map(|(time_ns, kind)| Mark { time_ns, kind }).to_vec());
        assert_eq!(cursor.step(), Some(4));
        let mut birth = Birth { epoch: 9, step: 99, phase: None };
        cursor.refine(&Event { time_ns: 5, ..Event::default() }, &mut birth);
        assert_eq!((birth.epoch, birth.step, birth.phase), (3, 4, Some(Phase::Eval)));
        cursor.refine(&Event { time_ns: 25, stack: StackId(1), ..Event::default() }, &mut birth);
        assert_eq!((cursor.step(), birth.step, birth.phase), (None, 4, None));
        // Without marks, nothing is changed.
        let mut birth = Birth { epoch: 9, step: 99, phase: None };
        MarkCursor::of(Vec::new()).refine(&Event::default(), &mut birth);
        assert_eq!((birth.epoch, birth.step), (9, 99));
    }
}
