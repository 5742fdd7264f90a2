//! Tests on stretches of blocks like those of training loops whose evaluation or error handling keeps memory.

use super::*;
use crate::Birth;
use crate::lifetimes::OPEN;

const MIB: u64 = 1 << 20;

/// A recording that is written block by block.
#[derive(Default)]
struct Recording {
    blocks: Vec<BlockLife>,
    classes: Vec<Class>,
    ends: Vec<StepEnd>,
    failed: Vec<FailedBefore>,
    now: u64,
    phase: Option<Phase>,
}

impl Recording {
    fn alloc(&mut self, line: u32, bytes: u64, class: Class) -> usize {
        self.now += 1;
        let birth = Birth { epoch: 0, step: self.ends.len() as u64, phase: self.phase };
        self.blocks.push(BlockLife {
            addr: self.now << 30,
            bytes,
            requested_bytes: bytes,
            stack: StackId(line),
            birth,
            from: self.now,
            freed: OPEN,
            to: OPEN,
        });
        self.classes.push(class);
        self.blocks.len() - 1
    }

    fn free(&mut self, blocks: impl IntoIterator<Item = usize>) {
        for block in blocks {
            self.now += 1;
            (self.blocks[block].freed, self.blocks[block].to) = (self.now, self.now);
        }
    }

    /// A forward pass of four layers on a batch: the graph's blocks.
    fn forward(&mut self, bytes: u64) -> Vec<usize> {
        let layers = [12, 13, 13, 13].into_iter().map(|line| self.alloc(line, bytes, Class::Activations));
        layers.collect()
    }

    fn fail(&mut self, line: u32, bytes: u64) {
        self.now += 1;
        self.failed.push(FailedBefore { event: self.now, stack: StackId(line), bytes });
    }

    fn end_step(&mut self) {
        let step = self.ends.len() as u64;
        self.ends.push(StepEnd { event: self.now, step });
    }

    /// A training with 40 MiB of parameters and `steps` steps, each with 4 MiB of activations.
    fn training(steps: usize) -> Self {
        let mut recording = Self::default();
        recording.alloc(7, 40 * MIB, Class::Parameters);
        for _ in 0..steps {
            let graph = recording.forward(MIB);
            recording.free(graph);
            recording.end_step();
        }
        recording
    }

    fn compare(&self, (line, bytes): (u32, u64), in_step: bool) -> Demand {
        let Self { blocks, classes, ends, failed, now, .. } = self;
        let stretch = Stretch { blocks, classes, step_ends: ends, failed, at: *now, in_step };
        compare(&stretch, FailedRequest { bytes, stack: &stack(StackId(line)) }, &stack)
    }
}

fn stack(id: StackId) -> Stack {
    let function = if id.0 >= 10 { "Mlp.forward" } else { "collect" };
    Stack { frames: vec![Frame { function: function.into(), file: "/home/me/model.py".into(), line: id.0 }] }
}

fn lines(accumulated: &Accumulation) -> Vec<(u32, u64, u64, Option<u64>)> {
    let of = |line: &Line| (line.site.as_ref().map_or(0, |site| site.line), line.bytes, line.blocks, line.each_bytes);
    accumulated.lines.iter().map(of).collect()
}

#[test]
fn graphs_of_an_evaluation_accumulate() {
    let mut recording = Recording::training(10);
    recording.phase = Some(Phase::Eval);
    for _ in 0..50 {
        recording.forward(MIB);
        recording.alloc(9, MIB / 16, Class::Activations);
    }
    let demand = recording.compare((12, MIB), false);
    let found = demand.accumulated.unwrap();
    assert_eq!(lines(&found)[..2], [(13, 150 * MIB, 150, Some(MIB)), (12, 50 * MIB, 50, Some(MIB))]);
    assert_eq!((found.since, found.in_evaluation), (Since::StepEnd(9), true));
    assert_eq!(found.lines[0].earlier_blocks, 3);
    assert_eq!((found.bytes, found.blocks), (50 * (4 * MIB + MIB / 16), 250));
    assert_eq!(found.saved_bytes, found.bytes);
    // The need of an earlier step does not count.
    assert_eq!(found.beyond_bytes, found.bytes - 4 * MIB);
    assert_eq!((demand.requests, demand.asked_before), (Some(Requests::Alike), true));
}

#[test]
fn outputs_without_a_graph_are_not_saved_for_a_backward_pass() {
    let mut recording = Recording::training(10);
    recording.phase = Some(Phase::Eval);
    for _ in 0..100 {
        let graph = recording.forward(MIB);
        recording.alloc(14, MIB, Class::Activations);
        recording.free(graph);
    }
    let found = recording.compare((12, MIB), false).accumulated.unwrap();
    assert_eq!((lines(&found), found.saved_bytes), (vec![(14, 100 * MIB, 100, Some(MIB))], 0));
}

#[test]
fn an_evaluation_like_the_earlier_ones_accumulates_nothing() {
    let mut recording = Recording::training(10);
    for _ in 0..3 {
        recording.phase = Some(Phase::Eval);
        let graphs: Vec<usize> = (0..40).flat_map(|_| recording.forward(MIB)).collect();
        recording.free(graphs);
        recording.phase = None;
        recording.end_step();
    }
    recording.phase = Some(Phase::Eval);
    for _ in 0..40 {
        recording.forward(MIB);
    }
    assert_eq!(recording.compare((12, MIB), false).accumulated, None);
}

#[test]
fn one_long_sequence_is_larger_and_accumulates_nothing() {
    let mut recording = Recording::training(10);
    recording.forward(64 * MIB);
    let demand = recording.compare((13, 64 * MIB), true);
    assert_eq!((demand.accumulated, demand.requests, demand.asked_before), (None, Some(Requests::Larger), false));
}

#[test]
fn one_large_request_of_a_new_line_is_not_like_the_earlier_ones() {
    let demand = Recording::training(10).compare((99, 1024 * MIB), true);
    assert_eq!((demand.accumulated, demand.requests, demand.asked_before), (None, Some(Requests::OfNewLines), false));
}

#[test]
fn the_first_step_of_a_deep_model_accumulates_nothing() {
    let mut recording = Recording::default();
    for _ in 0..100 {
        recording.forward(MIB);
    }
    assert_eq!(recording.compare((13, MIB), true), Demand::default());
    // The deep model is usual after its first steps.
    let mut recording = Recording::default();
    for _ in 0..5 {
        let graph: Vec<usize> = (0..100).flat_map(|_| recording.forward(MIB)).collect();
        recording.free(graph);
        recording.end_step();
    }
    for _ in 0..100 {
        recording.forward(MIB);
    }
    assert_eq!(recording.compare((13, MIB), true).accumulated, None);
}

#[test]
fn an_evaluation_before_every_step_accumulates_as_well() {
    let mut recording = Recording::default();
    recording.alloc(7, 40 * MIB, Class::Parameters);
    recording.phase = Some(Phase::Eval);
    for _ in 0..50 {
        recording.forward(MIB);
    }
    let found = recording.compare((13, MIB), false).accumulated.unwrap();
    assert_eq!((found.since, found.beyond_bytes, found.blocks), (Since::Evaluation, 200 * MIB, 200));
}

#[test]
fn blocks_of_failed_steps_that_an_exception_keeps_accumulate() {
    let mut recording = Recording::training(10);
    for _ in 0..5 {
        // The step that fails leaves its input and its activations.
        recording.alloc(8, 16 * MIB, Class::Temporaries);
        recording.forward(8 * MIB);
        recording.end_step();
        for _ in 0..9 {
            let graph = recording.forward(MIB);
            recording.free(graph);
            recording.end_step();
        }
    }
    let demand = recording.compare((8, 16 * MIB), true);
    let found = demand.accumulated.unwrap();
    assert_eq!((found.since, found.bytes, found.blocks), (Since::Steps(10), 240 * MIB, 25));
    assert!(demand.asked_before, "an earlier step had the same input");
    // Gradients and optimizer states that a later step makes belong to the model.
    let mut recording = Recording::training(10);
    recording.alloc(8, 400 * MIB, Class::OptimizerState);
    recording.end_step();
    assert_eq!(recording.compare((8, 16 * MIB), true).accumulated, None);
}

#[test]
fn a_little_memory_is_no_reason() {
    let mut recording = Recording::training(10);
    for _ in 0..20 {
        recording.alloc(9, MIB / 2, Class::Temporaries);
    }
    assert_eq!(recording.compare((12, MIB), false).accumulated, None);
}

#[test]
fn a_request_that_failed_in_an_earlier_step_is_not_of_a_new_line() {
    let mut recording = Recording::training(3);
    assert_eq!(recording.compare((39, 600 * MIB), false).requests, Some(Requests::OfNewLines));
    recording.fail(39, 600 * MIB);
    let same_step = recording.compare((39, 600 * MIB), false);
    assert_eq!((same_step.requests, same_step.failed_before), (Some(Requests::OfNewLines), false));
    recording.end_step();
    let again = recording.compare((39, 600 * MIB), false);
    assert_eq!((again.requests, again.asked_before, again.failed_before), (Some(Requests::Alike), true, true));
    assert!(!recording.compare((38, 600 * MIB), false).failed_before, "another line");
    assert!(!recording.compare((39, 900 * MIB), false).failed_before, "a larger request");
}
