//! The oldest live blocks of some stacks: the sample whose holders are searched.
//!
//! A line with several statements also makes memory that is made only once, such as an optimizer's state. These blocks are
//! the oldest, and their holder does not grow, so the sample leaves them out: stacks whose live blocks all come from one
//! step, and a first step with far more bytes than any later one. It also leaves out blocks of the two latest steps, such
//! as gradients, which may not stay.
//!
//! Guarantees: memory is bounded. Every block is visited, so this is for queries and not for every event.

use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::RangeInclusive;

use memctl_model::StackId;

use super::BlockMap;
use super::slab::Use;
use crate::growth::FIRST_LEVEL_FACTOR;

/// The minimum number of steps with live blocks from which blocks of some steps are left out.
const STEPS_MIN: usize = 8;

/// The epoch and the step of a block's birth.
type Born = (u32, u64);

/// A live block; older blocks sort first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LiveBlock {
    /// Epoch of its birth.
    pub birth_epoch: u32,
    /// Step of its birth.
    pub birth_step: u64,
    /// Device address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
}

/// Live blocks of some stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveSample {
    /// Number of live blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The oldest of them without what was made once, oldest first.
    pub oldest: Vec<LiveBlock>,
}

impl LiveSample {
    /// Adds the sample of another map and keeps the oldest `most` of both.
    pub fn add(&mut self, other: Self, most: usize) {
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.oldest.extend(other.oldest);
        self.oldest.sort_unstable();
        self.oldest.truncate(most);
    }
}

impl BlockMap {
    /// Allocated blocks of these stacks (sorted): their count and bytes, and the `most` oldest without what was made once.
    #[must_use]
    pub fn oldest(&self, stacks: &[StackId], most: usize) -> LiveSample {
        let is_of_stacks = |stack: StackId| stacks.binary_search(&stack).is_ok();
        let of_stacks = || self.slab.iter().filter(|block| block.usage == Use::Allocated && is_of_stacks(block.stack));
        let mut by_birth: BTreeMap<Born, u64> = BTreeMap::new();
        let mut by_stack: HashMap<StackId, (Born, bool)> = HashMap::new();
        let mut sample = LiveSample::default();
        for block in of_stacks() {
            sample.blocks += 1;
            sample.bytes = sample.bytes.saturating_add(block.size);
            let born = (block.birth_epoch, block.birth_step);
            let bytes = by_birth.entry(born).or_default();
            *bytes = bytes.saturating_add(block.size);
            let (first, recurs) = by_stack.entry(block.stack).or_insert((born, false));
            *recurs |= *first != born;
        }
        let stayed = stayed(&by_birth);
        let any_recurs = by_birth.len() >= STEPS_MIN && by_stack.values().any(|(_, recurs)| *recurs);
        let may_grow = |stack: StackId| !any_recurs || by_stack.get(&stack).is_some_and(|(_, recurs)| *recurs);
        let mut oldest = BinaryHeap::new();
        let is_of_sample = |born: Born, stack| stayed.contains(&born) && may_grow(stack);
        for block in of_stacks().filter(|block| is_of_sample((block.birth_epoch, block.birth_step), block.stack)) {
            let (birth_epoch, birth_step) = (block.birth_epoch, block.birth_step);
            oldest.push(LiveBlock { birth_epoch, birth_step, addr: block.addr, size: block.size });
            if oldest.len() > most {
                oldest.pop();
            }
        }
        sample.oldest = oldest.into_sorted_vec();
        sample
    }
}

/// The steps whose blocks stayed: without the first one if its blocks have far more bytes than those of any later step, and
/// without the two latest ones. `by_birth` are live bytes by epoch and step; of few steps all count.
fn stayed(by_birth: &BTreeMap<Born, u64>) -> RangeInclusive<Born> {
    let steps: Vec<(Born, u64)> = by_birth.iter().map(|(step, bytes)| (*step, *bytes)).collect();
    if steps.len() < STEPS_MIN {
        return (0, 0)..=(u32::MAX, u64::MAX);
    }
    let (first, later) = (steps[0], &steps[1..steps.len() - 2]);
    let largest = later.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let is_once = first.1 > largest.saturating_mul(FIRST_LEVEL_FACTOR);
    let begin = if is_once { later[0].0 } else { first.0 };
    begin..=later[later.len() - 1].0
}

#[cfg(test)]
mod tests {
    use memctl_model::{Action, AllocatorSettings, Event};

    use super::*;
    use crate::Birth;

    fn map(first: u64) -> BlockMap {
        let mut map = BlockMap::new(&AllocatorSettings::default());
        for step in 0..8_u64 {
            // The youngest block has the lowest address.
            let addr = (1 << 30) - (first + step) * 4_096;
            let stack = StackId(1 + (step % 2) as u32);
            let event = Event { action: Action::Alloc, addr, size: 512, stack, ..Event::default() };
            map.apply(&event, Birth { epoch: 0, step: first + step, phase: None });
        }
        map
    }

    fn steps(sample: &LiveSample) -> Vec<u64> {
        sample.oldest.iter().map(|block| block.birth_step).collect()
    }

    #[test]
    fn the_oldest_of_the_stacks_that_were_asked_for_are_named() {
        let mut map = map(0);
        let freed = Event { action: Action::FreeRequested, addr: (1 << 30) - 4_096, size: 512, ..Event::default() };
        map.apply(&freed, Birth::default());
        let sample = map.oldest(&[StackId(2), StackId(9)], 2);
        assert_eq!((sample.blocks, sample.bytes, steps(&sample)), (3, 1_536, vec![3, 5]));
        assert_eq!(map.oldest(&[StackId(9)], 2), LiveSample::default());
        assert_eq!(steps(&map.oldest(&[StackId(1), StackId(2)], 9)), [0, 2, 3, 4, 5, 6, 7], "of few steps all count");
    }

    #[test]
    fn what_the_first_step_made_once_and_the_latest_steps_made_is_left_out() {
        let bytes = |first: u64, steps: u64| -> BTreeMap<(u32, u64), u64> {
            (0..steps).map(|step| ((0, step), if step == 0 { first } else { 512 })).collect()
        };
        assert_eq!(stayed(&bytes(4 * 512, 8)), (0, 0)..=(0, 5), "the first is not more than four times a later one");
        assert_eq!(stayed(&bytes(5 * 512, 8)), (0, 1)..=(0, 5));
        assert!(stayed(&bytes(5 * 512, 7)).contains(&(0, 0)), "too few steps");
    }

    #[test]
    fn a_stack_that_only_one_step_used_is_left_out() {
        let mut map = map(0);
        // As an optimizer's state: younger than the first block, and no larger.
        let once = Event { action: Action::Alloc, addr: 1 << 32, size: 512, stack: StackId(3), ..Event::default() };
        map.apply(&once, Birth { epoch: 0, step: 1, phase: None });
        let sample = map.oldest(&[StackId(1), StackId(2), StackId(3)], 9);
        assert_eq!((sample.blocks, steps(&sample)), (9, vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(map.oldest(&[StackId(3)], 9).oldest.len(), 1, "nothing else is live");
    }

    #[test]
    fn of_two_devices_the_oldest_of_both_stay() {
        let stacks = [StackId(1)];
        let mut sample = map(100).oldest(&stacks, 3);
        sample.add(map(1).oldest(&stacks, 3), 4);
        assert_eq!((sample.blocks, sample.bytes, steps(&sample)), (8, 4_096, vec![1, 3, 5, 100]));
    }
}
