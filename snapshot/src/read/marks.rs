//! Marks from the annotations of a snapshot: epochs, steps, phases and regions.
//!
//! Guarantees: marks are sorted by time; marks with equal times keep the file's order. Every end has a begin: a range
//! that began before the recording begins with it. [`super::unmarked`] finds boundaries that annotations do not mark.

use std::collections::HashMap;

use memctl_model::{Event, Mark, MarkKind, Phase};

use super::containers::Annotation;

/// Whether a mark comes before an event. At equal times a begin does and an end does not.
///
/// Snapshots have microseconds, so equal times are common. An event in the microsecond in which a range began or ended
/// belongs to that range.
#[must_use]
pub fn mark_precedes(mark: &Mark, event: &Event) -> bool {
    match mark.kind {
        MarkKind::EpochEnd(_)
        | MarkKind::StepEnd(_)
        | MarkKind::PhaseEnd(_)
        | MarkKind::RegionEnd(_)
        | MarkKind::WindowEnd(_) => mark.time_ns < event.time_ns,
        MarkKind::EpochBegin(_)
        | MarkKind::StepBegin(_)
        | MarkKind::PhaseBegin(_)
        | MarkKind::RegionBegin(_)
        | MarkKind::Note(_) => mark.time_ns <= event.time_ns,
    }
}

/// The annotations that mark steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steps {
    /// `step#N`.
    Named,
    /// `ProfilerStep#N`, as torch.profiler writes them.
    Profiler,
    /// Every end of an optimizer's step ends a step.
    Optimizer,
    /// No annotation marks steps.
    Untold,
}

/// The meaning of an annotation's name.
enum Meaning {
    Epoch(u32),
    Step(u64),
    Phase(Phase),
    Region,
}

fn numbered<N: std::str::FromStr>(name: &str, prefix: &str) -> Option<N> {
    name.strip_prefix(prefix)?.parse().ok()
}

fn is_optimizer_step(name: &str) -> bool {
    name.starts_with("Optimizer.step#")
}

impl Steps {
    fn of(annotations: &[Annotation]) -> Self {
        let any = |test: fn(&str) -> bool| annotations.iter().any(|annotation| test(&annotation.name));
        if any(|name| numbered::<u64>(name, "step#").is_some()) {
            Self::Named
        } else if any(|name| numbered::<u64>(name, "ProfilerStep#").is_some()) {
            Self::Profiler
        } else if annotations.iter().any(|annotation| !annotation.begins && is_optimizer_step(&annotation.name)) {
            Self::Optimizer
        } else {
            Self::Untold
        }
    }

    fn meaning(self, name: &str) -> Meaning {
        let step = match self {
            Self::Named => numbered(name, "step#"),
            Self::Profiler => numbered(name, "ProfilerStep#"),
            Self::Optimizer | Self::Untold => None,
        };
        if let Some(step) = step {
            return Meaning::Step(step);
        }
        if let Some(epoch) = numbered(name, "epoch#") {
            return Meaning::Epoch(epoch);
        }
        match name {
            "train" => Meaning::Phase(Phase::Train),
            "validate" | "validation" | "evaluation" => Meaning::Phase(Phase::Eval),
            "forward" | "DistributedDataParallel.forward" => Meaning::Phase(Phase::Forward),
            "backward" => Meaning::Phase(Phase::Backward),
            _ if name.starts_with("eval") => Meaning::Phase(Phase::Eval),
            "optimizer" => Meaning::Phase(Phase::Optimizer),
            _ if is_optimizer_step(name) => Meaning::Phase(Phase::Optimizer),
            _ => Meaning::Region,
        }
    }
}

fn mark_kind(meaning: Meaning, name: &str, begins: bool) -> MarkKind {
    match (meaning, begins) {
        (Meaning::Epoch(n), true) => MarkKind::EpochBegin(n),
        (Meaning::Epoch(n), false) => MarkKind::EpochEnd(n),
        (Meaning::Step(n), true) => MarkKind::StepBegin(n),
        (Meaning::Step(n), false) => MarkKind::StepEnd(n),
        (Meaning::Phase(phase), true) => MarkKind::PhaseBegin(phase),
        (Meaning::Phase(phase), false) => MarkKind::PhaseEnd(phase),
        (Meaning::Region, true) => MarkKind::RegionBegin(name.to_owned()),
        (Meaning::Region, false) => MarkKind::RegionEnd(name.to_owned()),
    }
}

/// The marks that the annotations of a recording give.
pub(crate) struct AnnotatedMarks {
    /// Marks, sorted by time; every end has a begin.
    pub marks: Vec<Mark>,
    pub epochs: bool,
    pub steps: bool,
    pub phases: bool,
}

/// The marks that annotations give. `start_ns` is the time of the first annotation or of the first event. Marks before
/// `first_event_ns`, the time of the first event, are left out: the events of their steps were overwritten, so memory would
/// seem flat there.
pub(crate) fn given(mut annotations: Vec<Annotation>, start_ns: u64, first_event_ns: Option<u64>) -> AnnotatedMarks {
    annotations.sort_by_key(|annotation| annotation.time_ns);
    let steps = Steps::of(&annotations);
    let mut marks = translate(annotations, steps, start_ns);
    complete(&mut marks, start_ns);
    if let Some(first_ns) = first_event_ns {
        begin_at(&mut marks, first_ns);
    }
    let any = |test: fn(&MarkKind) -> bool| marks.iter().any(|mark| test(&mark.kind));
    let epochs = any(|kind| matches!(kind, MarkKind::EpochBegin(_)));
    let phases = any(|kind| matches!(kind, MarkKind::PhaseBegin(_)));
    AnnotatedMarks { epochs, phases, steps: steps != Steps::Untold, marks }
}

/// Translates annotations into marks. If only the optimizer marks steps, each step ends with the optimizer's step. It
/// begins with the end of the previous step or with the begin of its epoch.
fn translate(annotations: Vec<Annotation>, steps: Steps, start_ns: u64) -> Vec<Mark> {
    let mut marks: Vec<Mark> = Vec::with_capacity(annotations.len());
    let mut step = 0;
    let (mut step_at, mut step_ns) = (0, start_ns);
    for Annotation { time_ns, name, begins } in annotations {
        let kind = mark_kind(steps.meaning(&name), &name, begins);
        let begins_epoch = matches!(kind, MarkKind::EpochBegin(_));
        let ends_step = steps == Steps::Optimizer && !begins && is_optimizer_step(&name);
        marks.push(Mark { time_ns, kind });
        if ends_step {
            marks.insert(step_at, Mark { time_ns: step_ns, kind: MarkKind::StepBegin(step) });
            marks.push(Mark { time_ns, kind: MarkKind::StepEnd(step) });
            step += 1;
        }
        if ends_step || begins_epoch {
            (step_at, step_ns) = (marks.len(), time_ns);
        }
    }
    marks
}

/// Adds a begin at the recording's start for every end without one, because the range was under way.
fn complete(marks: &mut Vec<Mark>, start_ns: u64) {
    let mut open: HashMap<MarkKind, u64> = HashMap::new();
    let mut missing = Vec::new();
    for mark in marks.iter() {
        let Some(begin) = begin_of(&mark.kind) else {
            *open.entry(mark.kind.clone()).or_default() += 1;
            continue;
        };
        match open.get_mut(&begin) {
            Some(count) if *count > 0 => *count -= 1,
            _ => missing.push(Mark { time_ns: start_ns, kind: begin }),
        }
    }
    // Outer ranges come first. Among equal ones, the range that ended last began first.
    missing.reverse();
    missing.sort_by_key(|mark| match mark.kind {
        MarkKind::EpochBegin(_) => 0,
        MarkKind::StepBegin(_) => 1,
        MarkKind::PhaseBegin(_) => 2,
        _ => 3,
    });
    marks.splice(0..0, missing);
}

/// Leaves out the epochs, steps and phases that ended before a time.
fn begin_at(marks: &mut Vec<Mark>, begin_ns: u64) {
    let is_judged =
        |kind: &MarkKind| matches!(kind, MarkKind::EpochBegin(_) | MarkKind::StepBegin(_) | MarkKind::PhaseBegin(_));
    let before = marks.partition_point(|mark| mark.time_ns < begin_ns);
    let (mut open, mut has_ended) = (Vec::new(), vec![false; before]);
    for (at, mark) in marks[..before].iter().enumerate() {
        match begin_of(&mark.kind).filter(is_judged) {
            Some(begin) => {
                if let Some(place) = open.iter().rposition(|&begun: &usize| marks[begun].kind == begin) {
                    has_ended[open.remove(place)] = true;
                    has_ended[at] = true;
                }
            }
            None if is_judged(&mark.kind) => open.push(at),
            None => {}
        }
    }
    let mut has_ended = has_ended.into_iter();
    marks.retain(|_| !has_ended.next().unwrap_or(false));
}

/// The begin that an end needs; `None` for a mark that is not an end.
fn begin_of(end: &MarkKind) -> Option<MarkKind> {
    match end {
        MarkKind::EpochEnd(n) => Some(MarkKind::EpochBegin(*n)),
        MarkKind::StepEnd(n) => Some(MarkKind::StepBegin(*n)),
        MarkKind::PhaseEnd(phase) => Some(MarkKind::PhaseBegin(*phase)),
        MarkKind::RegionEnd(name) => Some(MarkKind::RegionBegin(name.clone())),
        MarkKind::EpochBegin(_)
        | MarkKind::StepBegin(_)
        | MarkKind::PhaseBegin(_)
        | MarkKind::RegionBegin(_)
        | MarkKind::WindowEnd(_)
        | MarkKind::Note(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_whose_events_were_overwritten_are_left_out() {
        let annotation = |time_ns, name: &str, begins| Annotation { time_ns, name: name.into(), begins };
        let step = |n: u64| {
            [
                annotation(10 * n, "Optimizer.step#SGD.step", true),
                annotation(10 * n + 5, "Optimizer.step#SGD.step", false),
            ]
        };
        let mut annotations: Vec<Annotation> = vec![annotation(0, "epoch#0", true)];
        annotations.extend((1..=6).flat_map(step));
        let of = |first_event_ns| {
            let given = given(annotations.clone(), 0, first_event_ns);
            let steps = given.marks.iter().filter_map(|mark| match mark.kind {
                MarkKind::StepEnd(step) => Some((step, mark.time_ns)),
                _ => None,
            });
            (steps.collect::<Vec<_>>(), given.marks[0].clone())
        };
        assert_eq!(of(None).0.len(), 6);
        let (steps, first) = of(Some(38));
        assert_eq!(steps, [(3, 45), (4, 55), (5, 65)], "the steps keep their numbers");
        assert_eq!(first, Mark { time_ns: 0, kind: MarkKind::EpochBegin(0) });
    }
}
