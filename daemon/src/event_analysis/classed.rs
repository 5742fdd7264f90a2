//! Finds the class of each block of a device by replaying the events around a moment. The ledger, the anatomy of a
//! peak, failed requests, classes over time and the page use it.
//!
//! Guarantees: one replay that begins at a keyframe. It covers at most [`BEFORE`] events before the moment (plus those
//! back to the keyframe) and [`AFTER`] events after it. A shorter recording is replayed completely.
//!
//! Events after a failed request are not used, because the program ends there and frees everything.

use std::collections::HashMap;

use memctl_analysis::Birth;
use memctl_analysis::classes::{Class, Classifier, MemoryRequest, OPEN, Stay, allocated};
use memctl_analysis::lifetimes::{BlockLife, Lives};
use memctl_analysis::oom::demand::{FailedBefore, StepEnd, Stretch};
use memctl_model::{Action, BlockState, DeviceIndex, Keyframe, KeyframeReason, Stack, StackId};
use memctl_proto::StackDictionary;

use crate::job_data::error::ReadError;
use crate::job_data::mark_cursor::{MarkCursor, Passed};
use crate::job_data::replay::{Go, Replay};
use crate::store::{ChunkRow, SessionRow, Store};

/// Events that are replayed before the moment.
pub(crate) const BEFORE: u64 = 1 << 18;
/// Events that are replayed after the moment. They determine which blocks stay allocated.
const AFTER: u64 = 1 << 17;

/// The end of the stretch that is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Includes events after the moment.
    Later,
    /// Ends at the moment.
    Then,
}

/// Blocks of a stretch with their classes.
pub(crate) struct Classed {
    blocks: Vec<BlockLife>,
    classes: Vec<Class>,
    /// Whether each block is live at a step's end, as far as recorded.
    stays: Vec<bool>,
    by_address: HashMap<u64, Vec<usize>>,
    step_ends: Vec<StepEnd>,
    failed: Vec<FailedBefore>,
}

impl Classed {
    /// Replays the stretch around the moment after `at` events.
    pub async fn around(
        store: &dyn Store,
        session: &SessionRow,
        device: u8,
        chunks: &[ChunkRow],
        (at, until): (u64, Until),
        stacks: &StackDictionary,
    ) -> Result<Self, ReadError> {
        let stored_from = chunks.first().map_or(0, |chunk| chunk.index.first_event);
        let stored_to = chunks.last().map_or(0, |chunk| chunk.index.first_event + chunk.index.count);
        let from = at.saturating_sub(BEFORE).max(stored_from);
        let to = match until {
            Until::Later => at.saturating_add(AFTER).min(stored_to),
            Until::Then => at,
        };
        let mut replay = Replay::before(store, session, device, &[], from).await?;
        let begin = replay.at_event();
        let near =
            |chunk: &&ChunkRow| chunk.index.first_event + chunk.index.count > begin && chunk.index.first_event < to;
        let times_ns = chunks
            .iter()
            .filter(near)
            .fold((u64::MAX, 0), |(from, to), chunk| (chunk.index.first_ns.min(from), chunk.index.last_ns.max(to)));
        let cursor = MarkCursor::between(store, session.key, times_ns).await?;
        let state = replay.map().keyframe(DeviceIndex(device), begin, times_ns.0, KeyframeReason::Periodic);
        let (steps, step_ends, failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut watch = Watch { lives: Lives::new(&state), steps, step_ends, failed, cursor };
        let ran = replay
            .run(to, |number, event, map| {
                let mut birth = Birth::default();
                watch.advance(number, event.time_ns);
                watch.cursor.refine(event, &mut birth);
                watch.pass(number);
                if event.action == Action::Oom {
                    watch.failed.push(FailedBefore { event: number, stack: event.stack, bytes: event.size });
                }
                watch.lives.event(number, event, map.block_bytes(event.addr), birth);
                Go::On
            })
            .await;
        // If events after the moment have expired, the result covers the events before them.
        match ran {
            Err(ReadError::Expired { .. }) if replay.at_event() >= at => {}
            other => other?,
        }
        if to == stored_to {
            watch.cursor.advance(u64::MAX, |_| ());
            watch.pass(to.saturating_add(1));
        }
        let resolve = |stack: StackId| -> Stack { stacks.stack(stack) };
        Ok(watch.classed(&resolve))
    }

    /// The stretch before a request that failed after `at` events.
    pub fn stretch(&self, at: u64, in_step: bool) -> Stretch<'_> {
        let Self { blocks, classes, step_ends, failed, .. } = self;
        Stretch { blocks, classes, step_ends, failed, at, in_step }
    }

    /// The class of the block at an address after `at` events.
    pub fn class_at(&self, address: u64, at: u64) -> Option<Class> {
        let there = |&&index: &&usize| {
            let block = &self.blocks[index];
            block.from <= at && at < block.to
        };
        let index = self.by_address.get(&address)?.iter().rev().find(there)?;
        self.classes.get(*index).copied()
    }

    /// The allocated blocks of a state with their classes.
    pub fn of<'k>(&self, keyframe: &'k Keyframe) -> Vec<(Class, &'k BlockState)> {
        let class = |block: &BlockState| self.class_at(block.addr, keyframe.at_event).unwrap_or(Class::Unknown);
        allocated(keyframe).map(|block| (class(block), block)).collect()
    }

    /// Allocated bytes of each class, in the order of [`Class::ALL`], after each of these numbers of events. `moments`
    /// must ascend.
    pub fn at_each(&self, moments: &[u64]) -> Vec<Vec<u64>> {
        let number = |class: Class| Class::ALL.iter().position(|known| *known == class).unwrap_or_default();
        let lives = self.blocks.iter().zip(&self.classes).filter(|(block, _)| block.from < block.freed);
        let changes = lives.flat_map(|(block, &class)| {
            let (class, bytes) = (number(class), block.bytes);
            let come = Change { at: block.from, comes: true, class, bytes };
            [come, Change { at: block.freed, comes: false, ..come }]
        });
        let mut changes: Vec<Change> = changes.collect();
        changes.sort_unstable_by_key(|change| (change.at, !change.comes));
        let (mut sums, mut changes) = (vec![0_u64; Class::ALL.len()], changes.into_iter().peekable());
        let mut at = |moment: u64| {
            while let Some(Change { comes, class, bytes, .. }) = changes.next_if(|change| change.at <= moment) {
                let sum = &mut sums[class];
                *sum = if comes { sum.saturating_add(bytes) } else { sum.saturating_sub(bytes) };
            }
            sums.clone()
        };
        moments.iter().map(|&moment| at(moment)).collect()
    }

    /// By stack, the class that most bytes of the blocks that stay belong to.
    pub fn by_stack(&self) -> HashMap<StackId, Class> {
        let staying = self.stays.iter().zip(self.blocks.iter().zip(&self.classes));
        largest(staying.filter(|(stays, _)| **stays).map(|(_, (block, &class))| (block.stack, class, block.bytes)))
    }

    /// By stack, the class of the blocks that are live after `at` events; `None` if no class has nearly all of their
    /// bytes.
    pub fn by_stack_at(&self, at: u64) -> HashMap<StackId, Option<Class>> {
        let live = self.blocks.iter().zip(&self.classes).filter(|(block, _)| block.from <= at && at < block.to);
        let sums = sums(live.map(|(block, &class)| (block.stack, class, block.bytes)));
        let nearly_all = |by_class: &HashMap<Class, u64>| {
            let all = by_class.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
            let (class, bytes) = by_class.iter().max_by_key(|(class, bytes)| (**bytes, **class))?;
            (*bytes as f64 >= NEARLY_ALL * all as f64).then_some(*class)
        };
        sums.iter().map(|(stack, by_class)| (*stack, nearly_all(by_class))).collect()
    }
}

/// A block that is allocated or freed.
#[derive(Clone, Copy)]
struct Change {
    /// The number of the event at which this happens.
    at: u64,
    comes: bool,
    /// The index of the class in [`Class::ALL`].
    class: usize,
    bytes: u64,
}

/// Share of a stack's bytes that one class must have to count as the class of the stack.
const NEARLY_ALL: f64 = 0.9;

type ByStack = HashMap<StackId, HashMap<Class, u64>>;

fn sums(of: impl Iterator<Item = (StackId, Class, u64)>) -> ByStack {
    let mut sums = ByStack::new();
    for (stack, class, bytes) in of {
        let sum = sums.entry(stack).or_default().entry(class).or_default();
        *sum = sum.saturating_add(bytes);
    }
    sums
}

/// By stack, the class with most of its bytes.
fn largest(of: impl Iterator<Item = (StackId, Class, u64)>) -> HashMap<StackId, Class> {
    let most = |by_class: HashMap<Class, u64>| by_class.into_iter().map(|(class, sum)| (sum, class)).max();
    sums(of).into_iter().filter_map(|(stack, by_class)| Some((stack, most(by_class)?.1))).collect()
}

/// The data that a replay of the stretch collects.
struct Watch {
    lives: Lives,
    /// Pairs of an event number and a step. From that event on, the step is current, or it is the next one to begin.
    steps: Vec<(u64, u64)>,
    step_ends: Vec<StepEnd>,
    failed: Vec<FailedBefore>,
    cursor: MarkCursor,
}

impl Watch {
    /// Moves the cursor to the position before the event with this number, and notes the steps that ended.
    fn advance(&mut self, number: u64, time_ns: u64) {
        let mut ended = false;
        self.cursor.advance(time_ns, |passed| ended |= passed == Passed::StepEnd);
        // Several steps without an event between them are one.
        if let Some(step) = self.cursor.last_step().filter(|_| ended) {
            let step = if self.cursor.step().is_some() { step.saturating_sub(1) } else { step };
            self.step_ends.push(StepEnd { event: number.saturating_sub(1), step });
        }
    }

    fn pass(&mut self, number: u64) {
        let now = self.cursor.step().or(self.cursor.last_step().map(|step| step.saturating_add(1)));
        if let Some(step) = now.filter(|&step| self.steps.last().is_none_or(|&(_, last)| last < step)) {
            self.steps.push((number, step));
        }
    }

    fn classed(self, resolve: &dyn Fn(StackId) -> Stack) -> Classed {
        let Self { lives, steps, step_ends, failed, .. } = self;
        let asked: Vec<MemoryRequest> =
            lives.blocks.iter().map(|block| MemoryRequest::of_life(block, &steps)).collect();
        let classes = Classifier::new(resolve).requests(&asked);
        let stays = asked.iter().map(|one| one.ended == OPEN || one.stay != Some(Stay::Within)).collect();
        let mut by_address: HashMap<u64, Vec<usize>> = HashMap::new();
        for (at, block) in lives.blocks.iter().enumerate() {
            by_address.entry(block.addr).or_default().push(at);
        }
        Classed { blocks: lives.blocks, classes, stays, by_address, step_ends, failed }
    }
}
