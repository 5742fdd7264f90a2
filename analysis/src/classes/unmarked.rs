//! Tests of recordings without marks, built request by request, and of stacks with frames of C++.

use std::collections::HashMap;

use memctl_model::{Frame, Phase, Stack, StackId};

use super::{Class, Classifier, MemoryRequest, OPEN, Stay};

const FORWARD: u32 = 1;
/// Autograd's thread, with frames of C++ only.
const BACKWARD: u32 = 2;
/// Two lines of the user's own optimizer.
const FIRST: u32 = 3;
const SECOND: u32 = 4;
const BATCH: u32 = 5;
const WORKSPACE: u32 = 6;
const WEIGHTS: u32 = 7;
/// A class that inherits from torch's optimizers, between frames of C++.
const INHERITED: u32 = 8;
const RECOMPUTED: u32 = 9;
const CUSTOM: u32 = 10;
const MODULE: u32 = 11;
/// torch's own optimizer makes its states.
const INIT_GROUP: u32 = 12;
/// No stack.
const NONE: u32 = 0;

const MIB: u64 = 1 << 20;
/// Sizes of a model's parameters; two are alike.
const SIZES: [u64; 5] = [8 * MIB, 3 * MIB, 3 * MIB, 5 * MIB, 700];

fn resolve(id: StackId) -> Stack {
    let torch = "/env/lib/python3.11/site-packages/torch";
    let engine = ("torch::autograd::Engine::thread_main(x)", "Engine.cpp".to_owned());
    let malloc = ("c10::cuda::CUDACachingAllocator::malloc(x)", "CUDACachingAllocator.cpp".to_owned());
    let eval = ("_PyEval_EvalFrameDefault", "??".to_owned());
    let own = |function: &'static str| (function, "/home/u/train.py".to_owned());
    let of_torch = |function: &'static str, file: &str| (function, format!("{torch}/{file}"));
    let call = of_torch("_call_impl", "nn/modules/module.py");
    let line = id.0;
    let frames = match id.0 {
        FORWARD => vec![malloc, eval.clone(), ("forward", "/home/u/model.py".to_owned()), call, eval, own("<module>")],
        BACKWARD => vec![malloc, engine, ("execute_native_thread_routine", "thread48.o".to_owned())],
        FIRST | SECOND => vec![malloc, eval.clone(), own("update"), eval, own("<module>")],
        BATCH | WEIGHTS => vec![own("make"), own("<module>")],
        WORKSPACE => vec![("at::cuda::getNewWorkspace()", String::new()), own("forward"), own("<module>")],
        INHERITED => vec![eval.clone(), own("step"), eval, of_torch("wrapper", "optim/optimizer.py"), own("<module>")],
        RECOMPUTED => {
            vec![("forward", "/home/u/model.py".to_owned()), call, of_torch("unpack_hook", "utils/checkpoint.py")]
        }
        CUSTOM => vec![own("backward"), of_torch("apply", "autograd/function.py")],
        INIT_GROUP => {
            vec![of_torch("_init_group", "optim/adam.py"), of_torch("step", "optim/adam.py"), own("<module>")]
        }
        MODULE => vec![of_torch("__init__", "nn/modules/linear.py"), own("<module>")],
        _ => Vec::new(),
    };
    let frame = |(function, file): (&str, String)| Frame { function: function.into(), file: file.into(), line };
    Stack { frames: frames.into_iter().map(frame).collect() }
}

/// A recording that is built request by request.
#[derive(Default)]
struct Recording {
    asked: Vec<MemoryRequest>,
    now: u64,
}

impl Recording {
    fn found(&mut self, bytes: u64) -> usize {
        self.asked.push(MemoryRequest {
            stack: StackId(NONE),
            bytes,
            phase: None,
            born: None,
            ended: OPEN,
            stay: None,
        });
        self.asked.len() - 1
    }

    fn make(&mut self, stack: u32, bytes: u64) -> usize {
        self.now += 1;
        let born = Some(self.now);
        self.asked.push(MemoryRequest { stack: StackId(stack), bytes, phase: None, born, ended: OPEN, stay: None });
        self.asked.len() - 1
    }

    fn each(&mut self, stack: u32, sizes: impl IntoIterator<Item = u64>) -> Vec<usize> {
        sizes.into_iter().map(|bytes| self.make(stack, bytes)).collect()
    }

    fn free(&mut self, blocks: impl IntoIterator<Item = usize>) {
        for at in blocks {
            self.now += 1;
            self.asked[at].ended = self.now;
        }
    }

    /// Makes a forward pass and its backward pass. Returns the gradients and the blocks that were kept for them.
    fn pass(&mut self, gradients: impl IntoIterator<Item = u64>) -> (Vec<usize>, Vec<usize>) {
        let kept = self.each(FORWARD, [9 * MIB, 9 * MIB]);
        let mut made = Vec::new();
        for bytes in gradients {
            let passing = self.make(BACKWARD, 8 * MIB);
            made.push(self.make(BACKWARD, bytes));
            self.free([passing]);
        }
        self.free(kept.iter().copied());
        let last = self.make(BACKWARD, 512);
        self.free([last]);
        (made, kept)
    }

    fn classes(&self) -> Vec<Class> {
        Classifier::new(&resolve).requests(&self.asked)
    }

    #[track_caller]
    fn all_are(&self, blocks: &[usize], class: Class) {
        let classes = self.classes();
        let found: HashMap<usize, Class> = blocks.iter().map(|&at| (at, classes[at])).collect();
        assert!(found.values().all(|&found| found == class), "{class:?} expected, found {found:?}");
    }
}

/// A model from before the recording, and one step of it by a hand-written optimizer with two moments.
fn one_step(precision: u64) -> (Recording, [Vec<usize>; 4]) {
    let mut recording = Recording::default();
    let weights: Vec<usize> = SIZES.iter().map(|&bytes| recording.found(bytes)).collect();
    let (gradients, _) = recording.pass(SIZES);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for bytes in SIZES {
        first.push(recording.make(FIRST, bytes * precision));
        second.push(recording.make(SECOND, bytes * precision));
        let passing = recording.make(FIRST, bytes);
        recording.free([passing]);
    }
    (recording, [weights, gradients, first, second])
}

#[test]
fn one_step_of_an_optimizer_by_hand_tells_everything() {
    let (mut recording, [weights, gradients, first, second]) = one_step(1);
    let batch = recording.make(BATCH, 3 * MIB);
    recording.all_are(&weights, Class::Parameters);
    recording.all_are(&gradients, Class::Gradients);
    recording.all_are(&[first, second].concat(), Class::OptimizerState);
    recording.all_are(&[batch], Class::Unknown);
    let passing = recording.asked.iter().enumerate().filter(|(_, one)| one.stack.0 == FIRST && one.ended != OPEN);
    recording.all_are(&passing.map(|(at, _)| at).collect::<Vec<_>>(), Class::Temporaries);
    let kept: Vec<usize> = (0..recording.asked.len()).filter(|&at| recording.asked[at].stack.0 == FORWARD).collect();
    recording.all_are(&kept, Class::Activations);
}

#[test]
fn copies_of_the_weights_beside_an_optimizer_are_no_states() {
    for is_seen in [false, true] {
        let mut recording = Recording::default();
        for bytes in SIZES {
            recording.found(bytes);
        }
        recording.pass(SIZES);
        let states = recording.each(if is_seen { INHERITED } else { SECOND }, SIZES);
        let copies = recording.each(FIRST, SIZES);
        recording.all_are(&states, Class::OptimizerState);
        recording.all_are(&copies, if is_seen { Class::Unknown } else { Class::OptimizerState });
    }
}

#[test]
fn what_a_backward_pass_does_not_leave_behind_is_no_gradient() {
    let (recording, _) = one_step(1);
    let passing = |(_, one): &(usize, &MemoryRequest)| one.stack.0 == BACKWARD && one.ended != OPEN;
    let passing: Vec<usize> = recording.asked.iter().enumerate().filter(passing).map(|(at, _)| at).collect();
    // Some of them have a parameter's size.
    assert!(passing.len() > SIZES.len());
    recording.all_are(&passing, Class::Temporaries);
}

#[test]
fn moments_in_single_precision_of_parameters_in_half_are_states() {
    let (recording, [weights, gradients, first, second]) = one_step(2);
    recording.all_are(&weights, Class::Parameters);
    recording.all_are(&gradients, Class::Gradients);
    recording.all_are(&[first, second].concat(), Class::OptimizerState);
}

#[test]
fn a_state_that_is_made_again_at_each_step_is_one() {
    let (mut recording, [_, gradients, first, second]) = one_step(1);
    recording.free(gradients);
    let (gradients, _) = recording.pass(SIZES);
    let mut later = Vec::new();
    for (at, bytes) in SIZES.into_iter().enumerate() {
        later.push(recording.make(FIRST, bytes));
        recording.free([first[at]]);
    }
    recording.all_are(&[first, second, later].concat(), Class::OptimizerState);
    recording.all_are(&gradients, Class::Gradients);
}

#[test]
fn frozen_weights_are_parameters_and_whole_sets_that_were_there_are_states() {
    let mut recording = Recording::default();
    let frozen = [recording.found(64 * MIB), recording.found(31 * MIB), recording.found(3 * MIB)];
    let weights: Vec<usize> = SIZES.iter().map(|&bytes| recording.found(bytes)).collect();
    recording.pass(SIZES);
    recording.all_are(&[frozen.to_vec(), weights].concat(), Class::Parameters);

    let mut recording = Recording::default();
    let states: Vec<usize> = SIZES.iter().chain(&SIZES).map(|&bytes| recording.found(bytes)).collect();
    let weights: Vec<usize> = SIZES.iter().map(|&bytes| recording.found(bytes)).collect();
    let frozen = recording.found(64 * MIB);
    recording.pass(SIZES);
    recording.all_are(&weights, Class::Parameters);
    recording.all_are(&[frozen], Class::Parameters);
    recording.all_are(&states, Class::OptimizerState);
}

#[test]
fn gradients_of_the_step_before_go_before_new_ones_are_made() {
    let mut recording = Recording::default();
    let weights: Vec<usize> = SIZES.iter().map(|&bytes| recording.found(bytes)).collect();
    let earlier: Vec<usize> = SIZES.iter().map(|&bytes| recording.found(bytes)).collect();
    recording.free(earlier.iter().copied());
    recording.pass(SIZES);
    recording.all_are(&weights, Class::Parameters);
    recording.all_are(&earlier, Class::Gradients);
}

#[test]
fn what_was_there_is_a_models_where_a_model_is_called() {
    let mut recording = Recording::default();
    let there = [recording.found(4 * MIB), recording.found(6 * MIB)];
    recording.all_are(&there, Class::Unknown);
    recording.make(FORWARD, MIB);
    recording.all_are(&there, Class::Parameters);
}

#[test]
fn weights_that_the_program_makes_itself_come_before_any_backward_pass() {
    let mut recording = Recording::default();
    let weights = recording.each(WEIGHTS, SIZES);
    let moments = recording.each(FIRST, SIZES);
    let batch = recording.make(BATCH, 11 * MIB);
    let (gradients, _) = recording.pass(SIZES);
    recording.free(gradients.iter().copied());
    recording.pass(SIZES);
    recording.all_are(&weights, Class::Parameters);
    recording.all_are(&moments, Class::OptimizerState);
    recording.all_are(&gradients, Class::Gradients);
    recording.all_are(&[batch], Class::Unknown);
}

#[test]
fn what_goes_when_the_program_ends_was_kept() {
    let (mut recording, [weights, gradients, ..]) = one_step(1);
    recording.free(weights.iter().copied());
    recording.all_are(&weights, Class::Parameters);
    recording.all_are(&gradients, Class::Gradients);
}

#[test]
fn what_a_backward_pass_gives_back_was_kept_for_it() {
    let mut recording = Recording::default();
    let loss = recording.make(BATCH, 2 * MIB);
    let batch = recording.make(BATCH, 2 * MIB);
    let begin = recording.make(BACKWARD, MIB);
    recording.free([loss]);
    let end = recording.make(BACKWARD, MIB);
    recording.free([begin, end, batch]);
    let later = recording.make(BATCH, MIB);
    recording.free([later]);
    recording.all_are(&[loss], Class::Activations);
    recording.all_are(&[batch, later], Class::Temporaries);
}

#[test]
fn a_thread_without_python_is_autograds_where_others_have_stacks() {
    let mut recording = Recording::default();
    let weights: Vec<usize> = SIZES.iter().map(|&bytes| recording.found(bytes)).collect();
    let kept = recording.make(FORWARD, MIB);
    let gradients = recording.each(NONE, SIZES);
    // Nothing is classified yet: a block that is still live may have its stack from the recording's end, although no
    // request has one.
    recording.all_are(&gradients, Class::Unknown);
    recording.free([kept]);
    let other = recording.make(BATCH, MIB);
    recording.free([other]);
    recording.all_are(&weights, Class::Parameters);
    recording.all_are(&gradients, Class::Gradients);
}

#[test]
fn one_workspace_a_thread_is_one_and_frames_of_cpp_decide() {
    const SIZE: u64 = 33_554_432;
    let mut recording = Recording::default();
    let there = recording.found(SIZE);
    let first = recording.make(FORWARD, SIZE);
    let second = recording.make(FORWARD, SIZE);
    let of_autograd = recording.make(BACKWARD, SIZE);
    recording.all_are(&[there, first, of_autograd], Class::Workspace);
    recording.all_are(&[second], Class::Activations);
    let named = recording.make(WORKSPACE, 77);
    recording.all_are(&[named], Class::Workspace);
    recording.all_are(&[first, second], Class::Activations);
    let gradient = recording.make(BACKWARD, SIZE);
    recording.all_are(&[there], Class::Parameters);
    recording.all_are(&[of_autograd, gradient], Class::Gradients);
}

#[test]
fn frames_of_cpp_between_those_of_python_say_nothing_of_the_optimizer() {
    let mut recording = Recording::default();
    let state = recording.make(INHERITED, 4 * MIB);
    let passing = recording.make(INHERITED, 4 * MIB);
    recording.free([passing]);
    recording.all_are(&[state], Class::OptimizerState);
    recording.all_are(&[passing], Class::Temporaries);
}

#[test]
fn what_the_next_step_gives_back_is_no_state_of_the_optimizer() {
    let mut recording = Recording::default();
    let [kept, handed] = [recording.make(INHERITED, 4 * MIB), recording.make(INHERITED, 4 * MIB)];
    recording.asked[kept].stay = Some(Stay::Kept);
    recording.asked[handed].stay = Some(Stay::UntilNextStep);
    recording.all_are(&[kept], Class::OptimizerState);
    recording.all_are(&[handed], Class::Temporaries);
}

/// Adam with `foreach`: `_init_group` makes the states, and each step makes temporaries of the same sizes.
#[test]
fn temporaries_of_a_step_that_fails_are_no_states() {
    let of_step = |recording: &mut Recording, blocks: &[usize], stay| {
        for &at in blocks {
            (recording.asked[at].stay, recording.asked[at].phase) = (Some(stay), Some(Phase::Optimizer));
        }
    };
    // The states have a stack of their own, or the one of the temporaries.
    for line in [INIT_GROUP, INHERITED] {
        let mut recording = Recording::default();
        recording.each(WEIGHTS, SIZES);
        recording.pass(SIZES);
        let states = [recording.each(line, SIZES), recording.each(line, SIZES)].concat();
        let freed = recording.each(INHERITED, SIZES);
        recording.free(freed.iter().copied());
        recording.pass(SIZES);
        // The request for the last of them fails.
        let failed = recording.each(INHERITED, SIZES[..4].iter().copied());
        of_step(&mut recording, &states, Stay::Kept);
        of_step(&mut recording, &[&*freed, &*failed].concat(), Stay::Within);
        recording.all_are(&states, Class::OptimizerState);
        recording.all_are(&[&*freed, &*failed].concat(), Class::Temporaries);
    }
    // The first step fails.
    let mut recording = Recording::default();
    recording.each(WEIGHTS, SIZES);
    recording.pass(SIZES);
    let states = [recording.each(INIT_GROUP, SIZES), recording.each(INIT_GROUP, SIZES)].concat();
    let failed = recording.each(INHERITED, SIZES[..4].iter().copied());
    of_step(&mut recording, &[&*states, &*failed].concat(), Stay::Within);
    recording.all_are(&states, Class::OptimizerState);
    recording.all_are(&failed, Class::Temporaries);
}

#[test]
fn what_python_runs_in_autograds_thread_is_backward_unless_a_checkpoint_calls_forward() {
    let mut recording = Recording::default();
    recording.each(MODULE, SIZES);
    let begin = recording.make(BACKWARD, MIB);
    let again = recording.make(RECOMPUTED, 6 * MIB);
    let gradients = recording.each(CUSTOM, SIZES);
    recording.free([again]);
    let end = recording.make(BACKWARD, MIB);
    recording.free([begin, end]);
    recording.all_are(&[again], Class::Activations);
    recording.all_are(&gradients, Class::Gradients);
}

#[test]
fn a_phase_that_is_marked_decides_over_sets() {
    let (mut recording, [_, gradients, first, _]) = one_step(1);
    let marked: Vec<usize> = first;
    for &at in &marked {
        recording.asked[at].phase = Some(Phase::Optimizer);
    }
    recording.all_are(&marked, Class::OptimizerState);
    recording.all_are(&gradients, Class::Gradients);
}
