//! A script with activation checkpointing. Blocks that a module keeps for the backward pass are freed as soon as the
//! module's forward no longer uses them. A second forward makes them again when the backward pass first needs them.
//!
//! A module's call is a range of requests. The blocks of these that the backward pass frees are those that the module
//! keeps. With checkpointing, each of them is freed after its last use ([`Uses`]). The call's result stays, because it
//! is the next module's input. Blocks that the backward pass does not free stay as well. Blocks that outlive the
//! backward pass (cuBLAS's workspace) already exist and are not made again.
//!
//! The second forward comes before the backward pass frees the first of the kept blocks. Like PyTorch's
//! (`use_reentrant=False`), it ends with the last request that is needed. Its blocks are live as long as the blocks
//! that they replace would have been. If the module's last operation saves its own result (a relu), the second forward
//! makes the result, too, after the next module's backward pass has released the first one. If a failed request ended
//! the step, the blocks that its calls hold at that request are treated in the same way (`cut`).
//!
//! Guarantees: requests of other calls keep their order, bytes and lifetimes. Calls that keep nothing are unchanged.
//! It is not known which block is a call's result if the last operation whose blocks stay makes several. The largest
//! is taken.
//!
//! (Over 400 lines: a third are tests, and a plan has no use without the edit that carries it out.)

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::cut::Cut;
use super::script::{Act, Life, Script};
use super::uses::Uses;
use crate::names::BlockName;

/// A script with checkpointed calls, and the cost of repeating them.
#[derive(Clone, Debug)]
pub struct Checkpointed {
    /// The requests, including the second forward passes.
    pub script: Script,
    /// Number of checkpointed calls: those that kept something.
    pub calls: usize,
    /// Bytes of repeated requests, including repetitions after the end of the recording.
    pub repeated_bytes: u64,
    /// Bytes of all requests of forward passes.
    pub forward_bytes: u64,
}

/// The pass of a request, as far as checkpointing distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// In a module's forward, or around it.
    Forward,
    /// In the backward pass.
    Backward,
    /// Elsewhere: in the optimizer or while the model is made.
    Other,
}

/// The changes to one call.
struct Plan {
    /// The steps of the call that are repeated.
    repeated: Range<u32>,
    /// The requests among them that are not repeated.
    once: HashSet<usize>,
    /// The step before which the second forward comes; `None` if the recording ends earlier.
    again: Option<u32>,
    /// The requests whose blocks are freed early, and the step before which each is freed.
    kept: HashMap<usize, u32>,
    /// The request of the result, if it is made again.
    result: Option<usize>,
}

/// Facts about requests in addition to their bytes.
pub struct CheckpointFacts<P, L, S, O, F> {
    /// The pass of each request.
    pub pass: P,
    /// Whether another holder keeps the block until the forward pass ends: autocast keeps its copies of weights.
    pub lingers: L,
    /// Whether the operation that made the block saves it as its own result for its backward pass.
    pub saves_itself: S,
    /// Whether the block is made once and held from then on, like cuBLAS's workspace. No backward pass frees it.
    pub once: O,
    /// The frames of the request, outermost first. Equal numbers mean the same line.
    pub lines: F,
}

impl Script {
    /// The script with checkpointed calls. `calls` are ranges of requests, in order and disjoint.
    #[must_use]
    pub fn checkpointed<'f, P, L, S, O, F>(
        &self,
        calls: &[Range<usize>],
        known: CheckpointFacts<P, L, S, O, F>,
    ) -> Checkpointed
    where
        P: Fn(usize) -> Pass,
        L: Fn(usize) -> bool,
        S: Fn(usize) -> bool,
        O: Fn(usize) -> bool,
        F: Fn(usize) -> &'f [u64],
    {
        let lives = self.lives();
        let passes: Vec<Pass> = (0..self.requests()).map(&known.pass).collect();
        let frees = self.frees_of_forward(&lives, &passes);
        let passes_of = Passes::of(&passes);
        let failed = self.failed();
        let plan = |call: &Range<usize>| {
            let backward = passes_of.backward_of(call, &lives);
            let cut = Cut::of(call, &backward, (self, &failed), &lives, &passes);
            let until = cut.map_or(backward.end, |cut| cut.at.min(backward.end));
            self.plan(call, (backward.start..until, cut), &lives, &frees, &known)
        };
        let plans: Vec<Plan> = calls.iter().filter_map(plan).collect();
        let of_pass = (0..self.requests()).filter(|&request| passes[request] == Pass::Forward);
        let forward_bytes = of_pass.fold(0_u64, |sum, request| sum.saturating_add(self.bytes(request)));
        let mut edit = Edit::new(self, &lives);
        edit.all(&plans, &lives);
        let Edit { made, mut repeated_bytes, .. } = edit;
        for plan in plans.iter().filter(|plan| plan.again.is_none()) {
            repeated_bytes = repeated_bytes.saturating_add(self.repeated_bytes(plan, &lives));
        }
        Checkpointed { script: made, calls: plans.len(), repeated_bytes, forward_bytes }
    }

    /// Bytes that the second forward of a call requests.
    fn repeated_bytes(&self, plan: &Plan, lives: &[Life]) -> u64 {
        let begin = lives.partition_point(|life| life.born < plan.repeated.start);
        let end = lives.partition_point(|life| life.born < plan.repeated.end);
        let asked = (begin..end).filter(|request| !plan.once.contains(request));
        asked.fold(0, |sum, request| sum.saturating_add(self.bytes(request)))
    }

    /// The steps that free blocks of forward passes, in order.
    fn frees_of_forward(&self, lives: &[Life], passes: &[Pass]) -> Vec<u32> {
        let of_forward =
            lives.iter().zip(passes).filter(|(life, pass)| **pass == Pass::Forward && life.ended != u32::MAX);
        let mut frees: Vec<u32> = of_forward.map(|(life, _)| life.ended).collect();
        frees.sort_unstable();
        frees
    }

    /// The changes to a call. `backward` are the steps of its backward pass, `cut` is where that was cut short. `None`
    /// if the call keeps nothing for a backward pass.
    fn plan<'f, P, L, S, O, F>(
        &self,
        call: &Range<usize>,
        (backward, cut): (Range<u32>, Option<Cut>),
        lives: &[Life],
        frees: &[u32],
        known: &CheckpointFacts<P, L, S, O, F>,
    ) -> Option<Plan>
    where
        L: Fn(usize) -> bool,
        S: Fn(usize) -> bool,
        O: Fn(usize) -> bool,
        F: Fn(usize) -> &'f [u64],
    {
        let last = call.end.checked_sub(1).filter(|&last| last >= call.start && last < lives.len())?;
        let ends = self.end_of(lives[last].born, lives).min(cut.map_or(u32::MAX, |cut| cut.at));
        let result = self.result(call.clone().filter(|&request| lives[request].outlasts(ends)))?;
        let is_freed = |request: usize| backward.contains(&lives[request].ended);
        let is_held = |request: usize| cut.is_some_and(|cut| cut.holds(lives[request])) && !(known.once)(request);
        let goes = |request: usize| request != result && (is_freed(request) || is_held(request));
        let uses = Uses { call: call.clone(), lives, lines: &known.lines, goes }.last();
        let gone = |request: usize| match (known.lingers)(request) {
            true => backward.start,
            false => self.end_of(lives[uses[request - call.start]].born, lives),
        };
        let kept = call.clone().filter(|&request| goes(request)).map(|request| (request, gone(request)));
        // A block that is in use until the request fails is not freed before it.
        let kept: HashMap<usize, u32> = kept.filter(|&(_, gone)| cut.is_none_or(|cut| gone <= cut.at)).collect();
        let needed = *kept.keys().max()?;
        let freed = kept.keys().filter(|&&request| is_freed(request)).map(|&request| lives[request].ended).min();
        let first_freed = freed.or(cut.filter(|cut| cut.is_reached).map(|cut| cut.at));
        let is_saved = (known.saves_itself)(result) && is_freed(result);
        let remade = Some(result).filter(|&result| is_saved && first_freed.is_some_and(|at| lives[result].ended <= at));
        let again = first_freed.map(|first| {
            let again = self.again(first, remade.map(|result| lives[result].ended), frees, lives);
            again.max(backward.start).min(first)
        });
        let repeated =
            lives[call.start].born..self.end_of(lives[remade.map_or(needed, |result| result.max(needed))].born, lives);
        // The first call of cuBLAS allocates its workspace; later calls reuse it.
        let outlives = |request: &usize| {
            lives[*request].ended >= backward.end && *request != result && !kept.contains_key(request)
        };
        Some(Plan { repeated, once: call.clone().filter(outlives).collect(), again, kept, result: remade })
    }

    /// The step before which the second forward comes. It depends on the first free of the kept blocks, or on the free
    /// of the result if the result is made again.
    fn again(&self, first_freed: u32, result_freed: Option<u32>, frees: &[u32], lives: &[Life]) -> u32 {
        // The operation's backward pass has already requested its own gradient when the result is freed.
        if let Some(freed) = result_freed {
            let before = lives.partition_point(|life| life.born < freed);
            return before.checked_sub(1).map_or(0, |request| lives[request].born);
        }
        // The second forward comes after the last free by the backward pass of the following module.
        let before = frees.partition_point(|&free| free < first_freed);
        before.checked_sub(1).map_or(0, |at| self.end_of(frees[at], lives))
    }

    /// The step of the next request after a step. Frees directly after a step belong to it.
    fn end_of(&self, step: u32, lives: &[Life]) -> u32 {
        let behind = lives.partition_point(|life| life.born <= step);
        lives.get(behind).map_or(u32::try_from(self.acts.len()).unwrap_or(u32::MAX), |life| life.born)
    }

    /// The largest block that the last operation made. Consecutive requests with the same stack count as one
    /// operation.
    fn result(&self, staying: impl DoubleEndedIterator<Item = usize>) -> Option<usize> {
        let mut behind = staying.rev();
        let last = behind.next()?;
        let (mut largest, mut before) = (last, last);
        for request in behind {
            if request + 1 != before || self.wanted[request].key != self.wanted[last].key {
                break;
            }
            before = request;
            // If several are equally large, the last is taken.
            if self.bytes(request) > self.bytes(largest) {
                largest = request;
            }
        }
        Some(largest)
    }
}

/// For each request: the first request of a backward pass and the first of another pass, at or after it. It is the
/// number of requests if there is none.
struct Passes {
    backward: Vec<u32>,
    other: Vec<u32>,
}

impl Passes {
    /// The steps of the backward pass that follows a call: from its first request to the next request of another pass.
    fn backward_of(&self, call: &Range<usize>, lives: &[Life]) -> Range<u32> {
        let born =
            |request: Option<&u32>| request.and_then(|&request| lives.get(request as usize)).map(|life| life.born);
        let first = self.backward.get(call.end);
        let other = first.and_then(|&first| self.other.get(first as usize));
        born(first).unwrap_or(u32::MAX)..born(other).unwrap_or(u32::MAX)
    }

    fn of(passes: &[Pass]) -> Self {
        let none = u32::try_from(passes.len()).unwrap_or(u32::MAX);
        let next = |is: fn(Pass) -> bool| {
            let mut found = vec![none; passes.len()];
            let mut last = none;
            for (at, &pass) in passes.iter().enumerate().rev() {
                if is(pass) {
                    last = u32::try_from(at).unwrap_or(u32::MAX);
                }
                found[at] = last;
            }
            found
        };
        Self { backward: next(|pass| pass == Pass::Backward), other: next(|pass| pass != Pass::Backward) }
    }
}

/// A script while it is rewritten.
struct Edit<'a> {
    of: &'a Script,
    made: Script,
    /// The request of each step that requests memory.
    requests: HashMap<u32, usize>,
    /// The blocks that replace those that were freed early.
    instead: HashMap<BlockName, BlockName>,
    next_block: BlockName,
    repeated_bytes: u64,
}

impl<'a> Edit<'a> {
    fn new(of: &'a Script, lives: &[Life]) -> Self {
        let requests = (0..).zip(lives).map(|(request, life): (usize, &Life)| (life.born, request)).collect();
        let (initial_count, began_with_bytes, hints) = (of.initial_count, of.began_with_bytes, Arc::clone(&of.hints));
        let made = Script { initial_count, began_with_bytes, hints, ..Script::default() };
        Self { of, made, requests, instead: HashMap::new(), next_block: of.unused_name(), repeated_bytes: 0 }
    }

    fn all(&mut self, plans: &[Plan], lives: &[Life]) {
        let mut gone: Vec<(u32, u32)> =
            plans.iter().flat_map(|plan| &plan.kept).map(|(&request, &at)| (at, lives[request].born)).collect();
        gone.sort_unstable();
        // If several calls are repeated at the same step, the later call comes first, because the backward pass runs
        // in reverse.
        let mut again: Vec<&Plan> = plans.iter().filter(|plan| plan.again.is_some()).collect();
        again.sort_by_key(|plan| (plan.again, std::cmp::Reverse(plan.repeated.start)));
        let (mut gone, mut again) = (gone.into_iter().peekable(), again.into_iter().peekable());
        for at in 0..=u32::try_from(self.of.acts.len()).unwrap_or(u32::MAX) {
            while let Some((_, born)) = gone.next_if(|&(before, _)| before == at) {
                if let Act::Alloc { block, .. } = self.of.acts[born as usize] {
                    self.free(block);
                }
            }
            while let Some(plan) = again.next_if(|plan| plan.again == Some(at)) {
                self.repeat(plan);
            }
            let Some(&act) = self.of.acts.get(at as usize) else { break };
            self.copy(at, act);
        }
    }

    fn copy(&mut self, at: u32, act: Act) {
        let act = match act {
            Act::Alloc { block, .. } => {
                if let Some(&request) = self.requests.get(&at) {
                    self.made.wanted.push(self.of.wanted[request]);
                }
                self.instead.remove(&block);
                act
            }
            Act::FreeRequested(block) => Act::FreeRequested(self.instead.get(&block).copied().unwrap_or(block)),
            Act::FreeCompleted(block) => Act::FreeCompleted(self.instead.remove(&block).unwrap_or(block)),
            Act::EmptyCache | Act::PoolReleased(_) => act,
        };
        self.made.acts.push(act);
    }

    fn free(&mut self, block: BlockName) {
        self.made.acts.extend([Act::FreeRequested(block), Act::FreeCompleted(block)]);
    }

    /// Adds the second forward of a call.
    fn repeat(&mut self, plan: &Plan) {
        let mut living: HashMap<BlockName, BlockName> = HashMap::new();
        // The first result has no other holder any more, so it is freed.
        for at in plan.repeated.clone() {
            if let (Some(request), Act::Alloc { block, .. }) = (self.requests.get(&at), self.of.acts[at as usize])
                && plan.result == Some(*request)
            {
                self.free(block);
            }
        }
        for at in plan.repeated.clone() {
            match self.of.acts[at as usize] {
                Act::Alloc { block, stream, pool } => {
                    let Some(&request) = self.requests.get(&at).filter(|it| !plan.once.contains(it)) else { continue };
                    let wanted = self.of.wanted[request];
                    self.repeated_bytes = self.repeated_bytes.saturating_add(wanted.bytes);
                    self.made.wanted.push(wanted);
                    self.made.acts.push(Act::Alloc { block: self.next_block, stream, pool });
                    let stays = plan.kept.contains_key(&request) || plan.result == Some(request);
                    let names = if stays { &mut self.instead } else { &mut living };
                    names.insert(block, self.next_block);
                    self.next_block += 1;
                }
                Act::FreeCompleted(block) => {
                    if let Some(block) = living.remove(&block) {
                        self.free(block);
                    }
                }
                Act::FreeRequested(_) | Act::EmptyCache | Act::PoolReleased(_) => {}
            }
        }
        // Blocks that only the first forward's end freed are freed here, in the order in which they were made.
        let mut rest: Vec<BlockName> = living.into_values().collect();
        rest.sort_unstable();
        rest.into_iter().for_each(|block| self.free(block));
    }
}

#[cfg(test)]
mod tests {
    use memctl_model::PoolId;

    use super::*;
    use crate::allocator::Limit;
    use crate::fit::made::{MIB, alloc, free};
    use crate::request::{Request, Requested};
    use crate::settings::{Conf, Version};

    /// Four modules that keep 64 MiB each and return 8 MiB. The backward pass needs 8 MiB at a time.
    fn training() -> (Script, Vec<Range<usize>>) {
        let mut script = Script::new(&[]);
        for call in 0..4 {
            alloc(&mut script, 10 * call + 1, 64);
            alloc(&mut script, 10 * call + 2, 32);
            free(&mut script, 10 * call + 2);
            alloc(&mut script, 10 * call + 3, 8);
        }
        for call in (0..4).rev() {
            alloc(&mut script, 10 * call + 4, 8);
            free(&mut script, 10 * call + 1);
            free(&mut script, 10 * call + 3);
            free(&mut script, 10 * call + 4);
        }
        (script, (0..4).map(|call| 3 * call..3 * call + 3).collect())
    }

    fn of_pass(request: usize) -> Pass {
        if request < 12 { Pass::Forward } else { Pass::Backward }
    }

    type No = fn(usize) -> bool;
    type NoLines = fn(usize) -> &'static [u64];

    fn known<P, L>(pass: P, lingers: L) -> CheckpointFacts<P, L, No, No, NoLines> {
        CheckpointFacts { pass, lingers, saves_itself: |_| false, once: |_| false, lines: |_| &[] }
    }

    fn peak(script: &Script) -> u64 {
        let conf = Conf::parse("", Version::of(2, 11)).expect("default settings").0;
        script.outcome(&conf, Limit::None).counts.peak_requested_bytes / MIB
    }

    #[test]
    fn what_is_kept_goes_and_comes_back_one_call_at_a_time() {
        let (script, calls) = training();
        assert_eq!(peak(&script), 3 * (64 + 8) + 64 + 32, "in the last forward");
        let pass = of_pass;
        let edited = script.checkpointed(&calls, known(pass, |_| false));
        // The peak consists of the results of three calls, the block that the last call keeps, and its temporary.
        assert_eq!((edited.calls, peak(&edited.script)), (4, 3 * 8 + 64 + 32));
        assert_eq!((edited.repeated_bytes, edited.forward_bytes), (4 * 64 * MIB, 4 * (64 + 32 + 8) * MIB));
        let all: Vec<usize> = (0..edited.script.requests()).map(|request| edited.script.origin(request)).collect();
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 9, 12, 6, 13, 3, 14, 0, 15]);
        let conf = Conf::parse("", Version::of(2, 11)).expect("default settings").0;
        assert_eq!(edited.script.outcome(&conf, Limit::None).counts.allocated_bytes, 0, "everything is given back");
        // A block with another holder is freed at the end of the forward pass.
        let lingering = script.checkpointed(&calls, known(pass, |request| request == 0));
        assert_eq!(peak(&lingering.script), 3 * 8 + 64 + 32 + 64);
        // Only half of the calls are checkpointed.
        assert!(
            (peak(&edited.script) + 1..peak(&script))
                .contains(&peak(&script.checkpointed(&calls[..2], known(pass, |_| false)).script))
        );
    }

    #[test]
    fn each_block_goes_behind_its_last_use() {
        let (script, calls) = training();
        // The kept block is followed by a workspace, of the next line or of its own line, and then by the result.
        for (lines, until) in [([1, 2, 3], 2), ([1, 1, 2], 3)] {
            let lines: Vec<[u64; 1]> = (0..4).flat_map(|_| lines.map(|line| [line])).collect();
            let line = |request: usize| &lines[request][..];
            let known = CheckpointFacts {
                pass: of_pass,
                lingers: |_| false,
                saves_itself: |_| false,
                once: |_| false,
                lines: line,
            };
            let edited = script.checkpointed(&calls, known).script;
            let ended = edited.lives()[0].ended as usize;
            let is_request = |act: &&Act| matches!(act, Act::Alloc { .. });
            assert_eq!(edited.acts[..ended].iter().filter(is_request).count(), until, "{lines:?}");
        }
    }

    #[test]
    fn what_outlives_the_backward_pass_is_made_once() {
        // A product requests 32 MiB that stay live; a second call would find them. Then come the call's result and the
        // optimizer.
        let mut script = Script::new(&[]);
        let mut ask = |block: u32, mib: u64, freed: &[u32]| {
            alloc(&mut script, block, mib);
            freed.iter().for_each(|&block| free(&mut script, block));
        };
        ask(1, 32, &[]);
        ask(2, 64, &[]);
        ask(3, 8, &[]);
        ask(4, 8, &[2, 3, 4]);
        ask(5, 1, &[5]);
        let pass = |request: usize| [Pass::Forward, Pass::Forward, Pass::Forward, Pass::Backward, Pass::Other][request];
        let edited = script.checkpointed(&std::iter::once(0..3).collect::<Vec<_>>(), known(pass, |_| false));
        let all: Vec<usize> = (0..edited.script.requests()).map(|request| edited.script.origin(request)).collect();
        assert_eq!((all, edited.repeated_bytes), (vec![0, 1, 2, 1, 3, 4], 64 * MIB));
    }

    #[test]
    fn a_result_that_its_operation_saves_is_made_again() {
        // A call that keeps 64 MiB, needs 32 MiB temporarily and returns 8 MiB, which its last operation saves.
        let mut script = Script::new(&[]);
        let mut ask = |block: u32, mib: u64, freed: &[u32]| {
            alloc(&mut script, block, mib);
            freed.iter().for_each(|&block| free(&mut script, block));
        };
        ask(1, 64, &[]);
        ask(2, 32, &[]);
        ask(3, 8, &[2]);
        // It is followed by the gradient of its result, then by that of the operation; with the latter the result is
        // freed.
        ask(4, 8, &[]);
        ask(5, 8, &[3, 4]);
        ask(6, 16, &[1, 5, 6]);
        let pass = |request: usize| if request < 3 { Pass::Forward } else { Pass::Backward };
        let calls = std::iter::once(0..3).collect::<Vec<_>>();
        let saves = |result: usize| {
            let saves_itself = move |request| request == result;
            CheckpointFacts { pass, lingers: |_| false, saves_itself, once: |_| false, lines: |_| &[] as &[u64] }
        };
        let edited = script.checkpointed(&calls, saves(2)).script;
        let all: Vec<usize> = (0..edited.requests()).map(|request| edited.origin(request)).collect();
        assert_eq!(all, [0, 1, 2, 3, 0, 1, 2, 4, 5], "the second forward comes before the operation's own gradient");
        assert_eq!(peak(&edited), 8 + 64 + 32 + 8, "the gradient, and all that the call makes");
        let conf = Conf::parse("", Version::of(2, 11)).expect("default settings").0;
        assert_eq!(edited.outcome(&conf, Limit::None).counts.allocated_bytes, 0, "everything is given back");
        let other = script.checkpointed(&calls, saves(9)).script;
        let all: Vec<usize> = (0..other.requests()).map(|request| other.origin(request)).collect();
        assert_eq!(all, [0, 1, 2, 3, 4, 0, 5]);
    }

    #[test]
    fn the_result_is_what_the_last_operation_made() {
        let mut script = Script::new(&[]);
        let sizes = [(7, 12), (8, 1), (7, 3), (9, 5), (9, 1)];
        for (block, (stack, mib)) in (1..).zip(sizes) {
            let requested = Requested { bytes: mib * MIB, stream: 0, pool: PoolId::DEFAULT };
            script.push(&Request::Alloc { block, requested, hints: &[] }, stack).expect("few");
        }
        let result = |staying: &[usize]| script.result(staying.iter().copied());
        assert_eq!(result(&[0, 1, 2]), Some(2), "another request lies between it and the larger one of its line");
        assert_eq!(result(&[0, 2]), Some(2), "also where that one does not stay");
        assert_eq!(result(&[0, 2, 3, 4]), Some(3), "a norm gives its statistics, too");
        assert_eq!(result(&[]), None);
    }

    #[test]
    fn without_a_backward_pass_nothing_changes() {
        let (script, calls) = training();
        for pass in [Pass::Forward, Pass::Other] {
            let edited = script.checkpointed(&calls, known(|_| pass, |_| false));
            assert_eq!((edited.calls, edited.script.acts == script.acts), (0, true));
        }
        let none = script.checkpointed(&[], known(of_pass, |_| false));
        assert_eq!((none.calls, none.script.acts == script.acts, none.repeated_bytes), (0, true, 0));
        let odd = std::iter::once(7..7).chain(std::iter::once(90..95)).collect::<Vec<_>>();
        assert_eq!(script.checkpointed(&odd, known(|_| Pass::Backward, |_| false)).calls, 0);
    }
}
