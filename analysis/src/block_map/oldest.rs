//! The oldest live blocks of some stacks: the sample whose holders are searched.
//!
//! Guarantees: memory is bounded. Every block is visited, so this is for queries and not for every event.

use std::collections::BinaryHeap;

use memctl_model::StackId;

use super::BlockMap;
use super::slab::Use;

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
    /// The oldest of them, oldest first.
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
    /// Allocated blocks of these stacks (sorted): their count and bytes, and the `most` oldest.
    #[must_use]
    pub fn oldest(&self, stacks: &[StackId], most: usize) -> LiveSample {
        let (mut sample, mut oldest) = (LiveSample::default(), BinaryHeap::new());
        for block in self.slab.iter().filter(|block| block.usage == Use::Allocated) {
            if stacks.binary_search(&block.stack).is_err() {
                continue;
            }
            sample.blocks += 1;
            sample.bytes = sample.bytes.saturating_add(block.size);
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
    fn of_two_devices_the_oldest_of_both_stay() {
        let stacks = [StackId(1)];
        let mut sample = map(100).oldest(&stacks, 3);
        sample.add(map(1).oldest(&stacks, 3), 4);
        assert_eq!((sample.blocks, sample.bytes, steps(&sample)), (8, 4_096, vec![1, 3, 5, 100]));
    }
}
