//! The marks of a recording: those of its annotations, and found ones where annotations are missing.
//!
//! Guarantees: annotations have precedence, separately for each kind of mark; annotated steps may be combined with
//! found epochs. Found marks are reported as found. There is always an epoch. There are steps, except
//! in two cases: only epochs are annotated and no steps were found, or the recording was divided into windows.

use memctl_analysis::boundaries::{self, Boundaries, Span, Stacks};
use memctl_model::{Boundary, Event, Mark, MarkKind, Phase};

use super::DeviceRecording;
use super::containers::Annotation;
use super::marks::{self, AnnotatedMarks};
use super::merge::{Moment, merge};

/// Boundaries of a recording that do not come from annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundBoundaries {
    /// How they were found: `the loop at train.py:31`; `None` if none were found.
    pub by: Option<String>,
    /// Steps that were found.
    pub steps: u64,
    /// Epochs that were found.
    pub epochs: u64,
    /// Windows into which the recording was divided.
    pub windows: u64,
}

impl FoundBoundaries {
    /// The kinds of boundaries that were found.
    #[must_use]
    pub fn boundaries(&self) -> Vec<Boundary> {
        let kinds =
            [(Boundary::StepEnd, self.steps), (Boundary::EpochEnd, self.epochs), (Boundary::WindowEnd, self.windows)];
        kinds.into_iter().filter(|&(_, found)| found > 0).map(|(kind, _)| kind).collect()
    }
}

/// The events of a recording.
pub(crate) struct Events<'a> {
    pub devices: &'a [DeviceRecording],
    /// Times of the first and the last event.
    pub times: Option<(u64, u64)>,
    pub stacks: Stacks<'a>,
}

impl Events<'_> {
    fn in_order(&self) -> impl Iterator<Item = Event> + '_ {
        let devices = self.devices.iter().map(|device| (device.device, device.events.iter())).collect();
        merge(Vec::new(), devices).filter_map(|moment| match moment {
            Moment::Event(_, event) => Some(event),
            Moment::Mark(_) => None,
        })
    }
}

/// All marks of a recording, including `notes`, and which of them were found.
pub(crate) fn marks(
    annotations: Vec<Annotation>,
    notes: Vec<Mark>,
    events: &Events<'_>,
) -> (Vec<Mark>, FoundBoundaries) {
    let times = annotations.iter().map(|annotation| annotation.time_ns);
    let Some(start_ns) = times.clone().chain(events.times.map(|(first, _)| first)).min() else {
        return (Vec::new(), FoundBoundaries::default());
    };
    let end_ns = times.chain(events.times.map(|(_, last)| last)).max().unwrap_or(start_ns);
    let given = marks::given(annotations, start_ns, events.times.map(|(first, _)| first));
    let needed = events.times.is_some() && !(given.steps && given.epochs);
    let boundaries = if needed { boundaries::find(events.stacks, || events.in_order()) } else { Boundaries::default() };
    let (marks, found) = join(given, boundaries, Span { begin_ns: start_ns, end_ns }, events.times);
    (if notes.is_empty() { marks } else { in_order([marks, notes]) }, found)
}

/// Combines annotated marks with found boundaries for the kinds that are not annotated.
fn join(
    given: AnnotatedMarks,
    found: Boundaries,
    all: Span,
    events: Option<(u64, u64)>,
) -> (Vec<Mark>, FoundBoundaries) {
    let Boundaries { by, steps, epochs, phases, windows } = found;
    let steps = if given.steps { Vec::new() } else { steps };
    let mut epochs = if given.epochs { Vec::new() } else { epochs };
    let windows = if given.steps || given.epochs { Vec::new() } else { windows };
    let phases = if given.steps || given.epochs || given.phases { Vec::new() } else { phases };
    outside_steps(&mut epochs, &given.marks);
    let mut counts = FoundBoundaries {
        by: None,
        steps: steps.len() as u64,
        epochs: epochs.len() as u64,
        windows: windows.len() as u64,
    };
    if !counts.boundaries().is_empty() {
        counts.by = by;
    }
    let mut around = Vec::new();
    if !given.epochs && epochs.is_empty() {
        around.push(Mark { time_ns: all.begin_ns, kind: MarkKind::EpochBegin(0) });
        around.push(Mark { time_ns: all.end_ns, kind: MarkKind::EpochEnd(0) });
    }
    let mut steps = ranges((0..).zip(steps), MarkKind::StepBegin, MarkKind::StepEnd);
    if !given.steps && !given.epochs && steps.is_empty() && windows.is_empty() {
        // Nothing shows a loop, so all events are one step.
        let (first_ns, last_ns) = events.unwrap_or((all.begin_ns, all.end_ns));
        steps.push(Mark { time_ns: first_ns, kind: MarkKind::StepBegin(0) });
        steps.push(Mark { time_ns: last_ns, kind: MarkKind::StepEnd(0) });
    }
    let epochs = ranges((0..).zip(epochs), MarkKind::EpochBegin, MarkKind::EpochEnd);
    let phases = phases.into_iter().map(|(span, phase)| (phase, span));
    let phases = ranges(phases, |phase: Phase| MarkKind::PhaseBegin(phase), MarkKind::PhaseEnd);
    let ends = (0..).zip(windows).map(|(n, end_ns)| Mark { time_ns: end_ns, kind: MarkKind::WindowEnd(n) });
    let sorted = in_order([around, epochs, steps, ends.collect(), given.marks, phases]);
    (sorted, counts)
}

/// Begins and ends of consecutive ranges.
fn ranges<N: Copy>(
    spans: impl Iterator<Item = (N, Span)>,
    begin: impl Fn(N) -> MarkKind,
    end: impl Fn(N) -> MarkKind,
) -> Vec<Mark> {
    let marks = |(n, span): (N, Span)| {
        [Mark { time_ns: span.begin_ns, kind: begin(n) }, Mark { time_ns: span.end_ns, kind: end(n) }]
    };
    spans.flat_map(marks).collect()
}

/// Moves found epoch boundaries out of annotated steps, because a step belongs to one epoch.
fn outside_steps(epochs: &mut [Span], given: &[Mark]) {
    let mut steps: Vec<Span> = Vec::new();
    for mark in given {
        match mark.kind {
            MarkKind::StepBegin(_) => steps.push(Span { begin_ns: mark.time_ns, end_ns: mark.time_ns }),
            MarkKind::StepEnd(_) => steps.last_mut().into_iter().for_each(|step| step.end_ns = mark.time_ns),
            _ => {}
        }
    }
    let step_at = |ns: u64| {
        let before = steps.partition_point(|step| step.begin_ns <= ns);
        before.checked_sub(1).and_then(|at| steps.get(at)).filter(|step| ns < step.end_ns)
    };
    for epoch in epochs {
        epoch.begin_ns = step_at(epoch.begin_ns).map_or(epoch.begin_ns, |step| step.begin_ns);
        epoch.end_ns = step_at(epoch.end_ns).map_or(epoch.end_ns, |step| step.end_ns);
    }
}

/// Merges sorted lists of marks. At equal times, ends come before begins.
fn in_order<const N: usize>(lists: [Vec<Mark>; N]) -> Vec<Mark> {
    let mut marks = Vec::with_capacity(lists.iter().map(Vec::len).sum());
    let mut heads = lists.map(|list| list.into_iter().peekable());
    loop {
        let first = heads.iter_mut().enumerate().filter_map(|(at, head)| {
            let mark = head.peek()?;
            Some((mark.time_ns, rank(&mark.kind), at))
        });
        let Some((_, _, at)) = first.min() else { return marks };
        marks.extend(heads[at].next());
    }
}

fn rank(kind: &MarkKind) -> u8 {
    match kind {
        MarkKind::RegionEnd(_) | MarkKind::PhaseEnd(_) => 0,
        MarkKind::StepEnd(_) => 1,
        MarkKind::WindowEnd(_) => 2,
        MarkKind::EpochEnd(_) => 3,
        MarkKind::EpochBegin(_) => 4,
        MarkKind::StepBegin(_) => 5,
        MarkKind::PhaseBegin(_) | MarkKind::RegionBegin(_) | MarkKind::Note(_) => 6,
    }
}
