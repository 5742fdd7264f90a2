//! The levels of a chunk for the tiles of a timeline: every change as a step, and an outline made of runs of events.
//!
//! Guarantees: a timeline made from [`Steps`] equals one made from the events. A slot made from an [`Outline`] is
//! never too narrow; it is too wide by at most one run of [`RUN`] events at each of its ends. Both contain the levels
//! before their first event. Memory: steps need at most 24 bytes per event, an outline 56 bytes per [`RUN`] events.
//! Time that runs backwards is kept as it is; the timeline corrects it.

use memctl_model::{Levels, Rollup};

use crate::timeline::Timeline;

/// Events of one run of an outline.
pub const RUN: u32 = 256;

/// The levels after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    time_ns: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
}

/// The levels after every event that changed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    before: Levels,
    steps: Vec<Step>,
}

/// The extremes of a run of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first_ns: u64,
    last_ns: u64,
    allocated_min: u64,
    allocated_max: u64,
    allocated_last: u64,
    reserved_max: u64,
    reserved_last: u64,
}

/// Runs of events, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    before: Levels,
    runs: Vec<Run>,
}

/// Receives the levels after each event of a chunk and builds its steps and its outline.
#[derive(Clone, Debug)]
pub struct Sketch {
    steps: Steps,
    outline: Outline,
    /// Number of events in the last run.
    in_run: u32,
}

impl Sketch {
    /// Starts the sketch of a chunk; `before` are the levels before its first event.
    #[must_use]
    pub fn new(before: Levels) -> Self {
        Self { steps: Steps { before, steps: Vec::new() }, outline: Outline { before, runs: Vec::new() }, in_run: 0 }
    }

    /// Adds the levels after the next event.
    pub fn push(&mut self, time_ns: u64, levels: Levels) {
        let Levels { allocated_bytes, reserved_bytes, .. } = levels;
        let same = |step: &Step| step.allocated_bytes == allocated_bytes && step.reserved_bytes == reserved_bytes;
        if !self.steps.steps.last().is_some_and(same) {
            self.steps.steps.push(Step { time_ns, allocated_bytes, reserved_bytes });
        }
        match self.outline.runs.last_mut() {
            Some(run) if self.in_run < RUN => {
                run.last_ns = time_ns;
                run.allocated_min = run.allocated_min.min(allocated_bytes);
                run.allocated_max = run.allocated_max.max(allocated_bytes);
                run.allocated_last = allocated_bytes;
                run.reserved_max = run.reserved_max.max(reserved_bytes);
                run.reserved_last = reserved_bytes;
                self.in_run += 1;
            }
            _ => {
                self.outline.runs.push(Run {
                    first_ns: time_ns,
                    last_ns: time_ns,
                    allocated_min: allocated_bytes,
                    allocated_max: allocated_bytes,
                    allocated_last: allocated_bytes,
                    reserved_max: reserved_bytes,
                    reserved_last: reserved_bytes,
                });
                self.in_run = 1;
            }
        }
    }

    /// Returns the steps and the outline.
    #[must_use]
    pub fn finish(mut self) -> (Steps, Outline) {
        self.steps.steps.shrink_to_fit();
        self.outline.runs.shrink_to_fit();
        (self.steps, self.outline)
    }
}

impl Steps {
    /// The levels before its first event.
    #[must_use]
    pub fn before(&self) -> Levels {
        self.before
    }

    /// Adds the steps to a timeline that already contains everything before this chunk.
    pub fn tell(&self, timeline: &mut Timeline) {
        for &Step { time_ns, allocated_bytes, reserved_bytes } in &self.steps {
            timeline.push(time_ns, levels(allocated_bytes, reserved_bytes));
        }
    }

    /// Bytes that it occupies in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.steps.capacity() * size_of::<Step>()
    }
}

impl Outline {
    /// The levels before its first event.
    #[must_use]
    pub fn before(&self) -> Levels {
        self.before
    }

    /// Adds the outline to a timeline that already contains everything before this chunk.
    pub fn tell(&self, timeline: &mut Timeline) {
        for run in &self.runs {
            timeline.push_rollup(&run.rollup());
        }
    }

    /// Bytes that it occupies in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.runs.capacity() * size_of::<Run>()
    }
}

impl Run {
    fn rollup(&self) -> Rollup {
        let end = levels(self.allocated_last, self.reserved_last);
        let mut rollup = Rollup {
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            start: end,
            end,
            min: levels(self.allocated_min, self.reserved_last),
            max: levels(self.allocated_max, self.reserved_max),
            ..Rollup::default()
        };
        // A timeline ignores a rollup without events. The exact count is not used.
        rollup.counts[0] = u64::from(RUN);
        rollup
    }
}

const fn levels(allocated_bytes: u64, reserved_bytes: u64) -> Levels {
    Levels { allocated_bytes, active_bytes: allocated_bytes, reserved_bytes }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::timeline::Bucket;

    /// Events as times and levels. The input has the time since the previous event and the level after the event.
    fn timed(events: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut time = 1_000;
        let step = |&(later, bytes): &(u64, u64)| {
            time += later;
            (time, bytes)
        };
        events.iter().map(step).collect()
    }

    /// Lowest, highest and last level between two times, computed directly from the events; `None` if nothing is
    /// known.
    fn directly(events: &[(u64, u64)], start_ns: u64, end_ns: u64) -> Option<(u64, u64, u64)> {
        let entering = events.iter().rev().find(|(time, _)| *time < start_ns).map(|(_, bytes)| *bytes);
        let within = events.iter().filter(|(time, _)| (start_ns..end_ns).contains(time)).map(|(_, bytes)| *bytes);
        let all: Vec<u64> = entering.into_iter().chain(within).collect();
        Some((*all.iter().min()?, *all.iter().max()?, *all.last()?))
    }

    fn levels_of(bucket: &Bucket) -> (u64, u64, u64) {
        (bucket.min.allocated_bytes, bucket.max.allocated_bytes, bucket.last.allocated_bytes)
    }

    /// The events as chunks of `length`, sketched.
    fn sketched(events: &[(u64, u64)], length: usize) -> Vec<(Steps, Outline)> {
        let mut before = events[0].1;
        let chunk = |chunk: &[(u64, u64)]| {
            let mut sketch = Sketch::new(levels(before, 2 * before));
            for &(time, bytes) in chunk {
                sketch.push(time, levels(bytes, 2 * bytes));
                before = bytes;
            }
            sketch.finish()
        };
        events.chunks(length).map(chunk).collect()
    }

    proptest! {
        #[test]
        fn steps_are_the_events_and_an_outline_is_never_too_narrow(
            events in prop::collection::vec((0_u64..9, 0_u64..50), 1..900),
            length in 1_usize..700,
            slot in 1_u64..400,
            at in 0_u64..20,
        ) {
            let events = timed(&events);
            let (start, end) = (900 + at * 50, 900 + at * 50 + 16 * slot);
            let (mut exact, mut outlined) = (Timeline::new(start, end, 16), Timeline::new(start, end, 16));
            let chunks = sketched(&events, length);
            exact.push(0, chunks[0].0.before());
            outlined.push(0, chunks[0].1.before());
            for (steps, outline) in &chunks {
                steps.tell(&mut exact);
                outline.tell(&mut outlined);
            }
            let (exact, outlined) = (exact.finish(), outlined.finish());
            // The level before the first event is known: the first chunk starts with it.
            let mut known = events.clone();
            known.insert(0, (0, events[0].1));
            for bucket in &exact {
                prop_assert_eq!(Some(levels_of(bucket)), directly(&known, bucket.start_ns, bucket.end_ns));
                prop_assert_eq!(bucket.max.reserved_bytes, 2 * bucket.max.allocated_bytes);
            }
            prop_assert_eq!(exact.len(), outlined.len());
            for (exact, outlined) in exact.iter().zip(&outlined) {
                prop_assert!(outlined.min.allocated_bytes <= exact.min.allocated_bytes);
                prop_assert!(outlined.max.allocated_bytes >= exact.max.allocated_bytes);
                // The outline is not wider than the events of the slot plus one run at either end.
                let reach = |time: u64| known.partition_point(|(known, _)| *known < time);
                let (from, to) = (reach(exact.start_ns), reach(exact.end_ns));
                let near = &known[from.saturating_sub(RUN as usize + 1)..(to + RUN as usize).min(known.len())];
                let (low, high) = (near.iter().map(|(_, bytes)| *bytes).min(), near.iter().map(|(_, bytes)| *bytes).max());
                prop_assert!(Some(outlined.min.allocated_bytes) >= low && Some(outlined.max.allocated_bytes) <= high);
            }
        }
    }

    #[test]
    fn levels_that_stay_take_no_memory() {
        let mut sketch = Sketch::new(levels(5, 5));
        for time in 0..10_000 {
            sketch.push(time, levels(7, 9));
        }
        let (steps, outline) = sketch.finish();
        assert_eq!(steps.steps.len(), 1);
        assert_eq!(outline.runs.len(), 10_000_usize.div_ceil(RUN as usize));
        assert!(steps.bytes() < 200 && outline.bytes() <= 200 + outline.runs.len() * 56);
    }
}
