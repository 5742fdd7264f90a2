//! Epochs, steps, phases, regions and windows of a process as slices that nest, from its marks.
//!
//! Guarantees: on each lane, slices nest, and edges are in the order of time. A slice that crosses another one is on the
//! next lane, so nothing is shortened. A slice without a begin begins where the previous one of its kind ended; a slice
//! without an end lasts to the end of the part. Memory is in proportion to the marks.

use std::cmp::Reverse;

use memctl_answers::format::text::safe;
use memctl_model::{Mark, MarkKind, Phase};

use crate::export::window::Window;

/// What happens on a lane at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edge {
    /// A slice of this name begins.
    Begin(String),
    /// The innermost open slice ends.
    End,
}

/// A stretch of time. The order of the kinds is that of nesting, for slices with the same times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Epoch,
    Window,
    Train,
    Eval,
    Step,
    Part,
    Region,
}

#[derive(Clone, Debug)]
struct Slice {
    begin: u64,
    end: u64,
    kind: Kind,
    name: String,
}

struct Open {
    begin: u64,
    kind: Kind,
    name: String,
}

/// The edges of each lane: (time in ns, edge). `events_ns` are the times of the first and of the last event.
#[must_use]
pub fn lanes(marks: &[Mark], window: Window, events_ns: (u64, u64)) -> Vec<Vec<(u64, Edge)>> {
    let mut slices = slices(marks, events_ns);
    slices.retain(|slice| slice.end >= window.first_ns && slice.begin <= window.last_ns);
    for slice in &mut slices {
        slice.begin = slice.begin.max(window.first_ns);
        slice.end = slice.end.min(window.last_ns);
    }
    slices.sort_by_key(|slice| (slice.begin, Reverse(slice.end), slice.kind));
    let mut lanes: Vec<Lane> = Vec::new();
    for slice in slices {
        let free = lanes.iter_mut().find_map(|lane| lane.has_room(&slice).then_some(lane));
        match free {
            Some(lane) => lane.begin(slice),
            None => {
                let mut lane = Lane::default();
                lane.begin(slice);
                lanes.push(lane);
            }
        }
    }
    lanes.into_iter().map(Lane::finish).collect()
}

#[derive(Default)]
struct Lane {
    edges: Vec<(u64, Edge)>,
    /// The ends of the open slices, the innermost last.
    ends: Vec<u64>,
}

impl Lane {
    /// Ends what has ended before a slice; returns whether the slice lies within what is still open.
    fn has_room(&mut self, slice: &Slice) -> bool {
        while let Some(end) = self.ends.pop_if(|end| *end <= slice.begin) {
            self.edges.push((end, Edge::End));
        }
        self.ends.last().is_none_or(|&end| slice.end <= end)
    }

    fn begin(&mut self, slice: Slice) {
        self.edges.push((slice.begin, Edge::Begin(slice.name)));
        self.ends.push(slice.end);
    }

    fn finish(mut self) -> Vec<(u64, Edge)> {
        while let Some(end) = self.ends.pop() {
            self.edges.push((end, Edge::End));
        }
        self.edges
    }
}

fn slices(marks: &[Mark], (first_ns, last_ns): (u64, u64)) -> Vec<Slice> {
    let mut marks: Vec<&Mark> = marks.iter().collect();
    marks.sort_by_key(|mark| mark.time_ns);
    let first_ns = marks.first().map_or(first_ns, |mark| mark.time_ns.min(first_ns));
    let mut found =
        SliceBuilder { slices: Vec::new(), open: Vec::new(), epoch_edge: first_ns, step_end: 0, window_end: first_ns };
    for mark in marks {
        found.mark(mark);
    }
    let last_ns = found.slices.iter().map(|slice| slice.end).max().unwrap_or(0).max(last_ns);
    for Open { begin, kind, name } in std::mem::take(&mut found.open) {
        found.slices.push(Slice { begin, end: begin.max(last_ns), kind, name });
    }
    found.slices
}

struct SliceBuilder {
    slices: Vec<Slice>,
    open: Vec<Open>,
    /// The last begin or end of an epoch.
    epoch_edge: u64,
    step_end: u64,
    window_end: u64,
}

impl SliceBuilder {
    fn mark(&mut self, Mark { time_ns, kind }: &Mark) {
        let at = *time_ns;
        match kind {
            MarkKind::EpochBegin(epoch) => {
                self.close(at, |open| open.kind == Kind::Epoch);
                self.begin(at, Kind::Epoch, format!("epoch {epoch}"));
                self.epoch_edge = at;
            }
            MarkKind::EpochEnd(epoch) => {
                let name = format!("epoch {epoch}");
                self.end(at, Kind::Epoch, name, self.epoch_edge);
                self.epoch_edge = at;
            }
            MarkKind::StepBegin(step) => {
                self.close(at, |open| open.kind == Kind::Step);
                self.begin(at, Kind::Step, format!("step {step}"));
            }
            MarkKind::StepEnd(step) => {
                let name = format!("step {step}");
                self.end(at, Kind::Step, name, self.step_end.max(self.epoch_edge));
                self.step_end = at;
            }
            MarkKind::PhaseBegin(phase) => {
                // As in `Phases`: a training ends an evaluation, and a part ends the part before it.
                let kind = kind_of(*phase);
                self.close(at, |open| open.kind == kind || (kind == Kind::Train && open.kind == Kind::Eval));
                self.begin(at, kind, phase.name().to_owned());
            }
            // Without a begin it has already ended, because another part followed it.
            MarkKind::PhaseEnd(phase) => {
                self.close(at, |open| open.kind == kind_of(*phase) && open.name == phase.name());
            }
            MarkKind::RegionBegin(name) => self.begin(at, Kind::Region, safe(name).into_owned()),
            MarkKind::RegionEnd(name) => {
                let name = safe(name);
                let last = self.open.iter().rposition(|open| open.kind == Kind::Region && open.name == name);
                if let Some(place) = last {
                    let open = self.open.remove(place);
                    self.keep(open, at);
                }
            }
            MarkKind::WindowEnd(window) => {
                let open = Open { begin: self.window_end, kind: Kind::Window, name: format!("window {window}") };
                self.keep(open, at);
                self.window_end = at;
            }
            MarkKind::Note(_) => {}
        }
    }

    fn begin(&mut self, begin: u64, kind: Kind, name: String) {
        self.open.push(Open { begin, kind, name });
    }

    /// Ends what is open of a kind, or a slice without a begin.
    fn end(&mut self, at: u64, kind: Kind, name: String, begin: u64) {
        if self.open.iter().any(|open| open.kind == kind) {
            self.close(at, |open| open.kind == kind);
        } else {
            self.keep(Open { begin: begin.min(at), kind, name }, at);
        }
    }

    fn close(&mut self, at: u64, is_it: impl Fn(&Open) -> bool) {
        let (closed, open) = std::mem::take(&mut self.open).into_iter().partition(is_it);
        self.open = open;
        let closed: Vec<Open> = closed;
        closed.into_iter().for_each(|open| self.keep(open, at));
    }

    fn keep(&mut self, Open { begin, kind, name }: Open, end: u64) {
        self.slices.push(Slice { begin, end, kind, name });
    }
}

fn kind_of(phase: Phase) -> Kind {
    match phase {
        Phase::Train => Kind::Train,
        Phase::Eval => Kind::Eval,
        Phase::Forward | Phase::Backward | Phase::Optimizer => Kind::Part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MarkKind::{EpochBegin, EpochEnd, PhaseBegin, PhaseEnd, RegionBegin, RegionEnd, StepBegin, StepEnd};

    const ALL: Window = Window { first_ns: 0, last_ns: u64::MAX };

    /// The lanes in short: `1(epoch 0 2(step 0 5) 9)`.
    fn shown(marks: &[(u64, MarkKind)], window: Window) -> Vec<String> {
        let marks: Vec<Mark> =
            marks.iter().map(|(time_ns, kind)| Mark { time_ns: *time_ns, kind: kind.clone() }).collect();
        let edge = |(at, edge): &(u64, Edge)| match edge {
            Edge::Begin(name) => format!("{at}({name}"),
            Edge::End => format!("{at})"),
        };
        let lanes = lanes(&marks, window, (5, 100));
        lanes.iter().map(|lane| lane.iter().map(edge).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn slices_nest() {
        let marks = [
            (1, EpochBegin(0)),
            (1, StepBegin(0)),
            (2, PhaseBegin(Phase::Forward)),
            (3, PhaseBegin(Phase::Backward)),
            (4, PhaseEnd(Phase::Forward)),
            (5, StepEnd(0)),
            (5, StepBegin(1)),
            (9, StepEnd(1)),
            (9, EpochEnd(0)),
            (9, PhaseEnd(Phase::Backward)),
        ];
        assert_eq!(shown(&marks, ALL), ["1(epoch 0 1(step 0 2(forward 3) 5) 5(step 1 9) 9)", "3(backward 9)"]);
    }

    #[test]
    fn a_recording_with_ends_alone_has_slices() {
        let marks = [(10, StepEnd(0)), (20, StepEnd(1)), (22, EpochEnd(0)), (30, StepEnd(2)), (31, EpochEnd(1))];
        assert_eq!(shown(&marks, ALL), ["5(epoch 0 5(step 0 10) 10(step 1 20) 22) 22(epoch 1 22(step 2 30) 31)"]);
    }

    #[test]
    fn an_open_slice_lasts_to_the_end_and_a_part_is_cut() {
        let marks = [
            (10, EpochBegin(0)),
            (20, RegionBegin("load".into())),
            (30, RegionEnd("load".into())),
            (40, RegionBegin("x".into())),
        ];
        assert_eq!(shown(&marks, ALL), ["10(epoch 0 20(load 30) 40(x 100) 100)"]);
        assert_eq!(shown(&marks, Window { first_ns: 25, last_ns: 35 }), ["25(epoch 0 25(load 30) 35)"]);
    }
}
