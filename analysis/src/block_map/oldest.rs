//! The oldest live blocks of some stacks: the sample whose holders are searched.
//!
//! A line with several statements also makes memory that is made only once, such as an optimizer's state. These blocks are
//! the oldest, and their holder does not grow, so the sample leaves them out.
//!
//! Guarantees: memory is bounded. Every block is visited, so this is for queries and not for every event.

use std::collections::{BTreeMap, BinaryHeap};

use memctl_model::StackId;

use super::BlockMap;
use super::slab::Use;
use crate::growth::FIRST_LEVEL_FACTOR;

/// The first step's blocks are compared with those of later steps where so many later steps have some.
const LATER_STEPS_MIN: usize = 3;

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
        let mut by_birth: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        let mut sample = LiveSample::default();
        for block in of_stacks() {
            sample.blocks += 1;
            sample.bytes = sample.bytes.saturating_add(block.size);
            let born = by_birth.entry((block.birth_epoch, block.birth_step)).or_default();
            *born = born.saturating_add(block.size);
        }
        let once = made_once(&by_birth);
        let mut oldest = BinaryHeap::new();
        for block in of_stacks().filter(|block| once != Some((block.birth_epoch, block.birth_step))) {
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

/// The first step, if its blocks have far more bytes than those of any later step. `by_birth` are live bytes by epoch and step.
fn made_once(by_birth: &BTreeMap<(u32, u64), u64>) -> Option<(u32, u64)> {
    let mut steps = by_birth.iter();
    let (first, bytes) = steps.next()?;
    let largest = steps.clone().map(|(_, bytes)| *bytes).max()?;
    (steps.len() >= LATER_STEPS_MIN && *bytes > largest.saturating_mul(FIRST_LEVEL_FACTOR)).then_some(*first)
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
        assert_eq!(steps(&map.oldest(&[StackId(1), StackId(2)], 9)), [0, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn what_the_first_step_made_once_is_left_out() {
        let mut map = map(0);
        let state =
            |at: u64| Event { action: Action::Alloc, addr: at << 12, size: 512, stack: StackId(1), ..Event::default() };
        let begun = Birth { epoch: 0, step: 0, phase: None };
        // Four blocks of the first step are not more than four times those of a later one; five are.
        for (at, first) in [(1, 0), (2, 0), (3, 0), (4, 2)] {
            map.apply(&state(at), begun);
            let sample = map.oldest(&[StackId(1)], 9);
            assert_eq!((sample.blocks, sample.oldest[0].birth_step), (4 + at, first));
        }
        let few = [((0, 0), 4_096), ((0, 1), 512), ((0, 2), 512)];
        assert_eq!(made_once(&few.into()), None, "too few later steps");
    }

    #[test]
    fn of_two_devices_the_oldest_of_both_stay() {
        let stacks = [StackId(1)];
        let mut sample = map(100).oldest(&stacks, 3);
        sample.add(map(1).oldest(&stacks, 3), 4);
        assert_eq!((sample.blocks, sample.bytes, steps(&sample)), (8, 4_096, vec![1, 3, 5, 100]));
    }
}
