//! The dictionary of a chunk: each distinct (stack, size, stream, pool) has a number, in order of first use.
//!
//! Guarantees: both sides add a key at the same event, so that its derived fields agree.
//! Refuses nothing; a chunk has at most as many keys as events.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use memctl_model::{Event, PoolId, StackId};

use super::blocks::{Blocks, NO_ARENA, granules};

/// What training repeats: the same site asks for the same size on the same stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tuple {
    pub(super) stack: StackId,
    pub(super) size: u64,
    pub(super) stream: u64,
    pub(super) pool: PoolId,
}

impl Tuple {
    #[inline]
    pub(super) const fn of(event: &Event) -> Self {
        Self { stack: event.stack, size: event.size, stream: event.stream, pool: event.pool }
    }
}

/// An entry of the dictionary and what follows from it.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub(super) tuple: Tuple,
    /// Rounded length in granules; only meaningful with an arena.
    pub(super) len: u32,
    /// Arena that serves it, [`NO_ARENA`] when not modelled.
    pub(super) arena: u8,
    /// Stack of the latest `free_requested` of such a block: what the next one will have.
    pub(super) requested_stack: StackId,
    /// Stack of the latest lone `free_completed`.
    pub(super) completed_stack: StackId,
}

impl Key {
    /// A key at its first use.
    pub(super) fn new(tuple: Tuple, blocks: &mut Blocks) -> Self {
        let len = granules(tuple.size);
        Self {
            tuple,
            len: len.unwrap_or(1),
            arena: len.map_or(NO_ARENA, |len| blocks.arena_for_request(tuple.stream, tuple.pool, len)),
            requested_stack: StackId::NONE,
            completed_stack: StackId::NONE,
        }
    }

    /// Whether the block model follows blocks of this key.
    #[inline]
    pub(super) const fn is_modelled(&self) -> bool {
        self.arena != NO_ARENA
    }
}

/// The encoder's side: finds a tuple's number.
pub(super) struct KeyIndex {
    pub(super) keys: Vec<Key>,
    /// Indexes into `keys` plus one, 0 = empty; a power of two, at most half full.
    slots: Vec<u32>,
    /// Odd and random, so that nobody can send tuples that all collide. Not part of the format.
    multiplier: u64,
}

/// Slots to begin with: recordings have between 1 and 1,600 keys in a chunk.
const SLOTS_MIN: usize = 1 << 12;

impl KeyIndex {
    pub(super) fn new() -> Self {
        let multiplier = RandomState::new().build_hasher().finish() | 1;
        Self { keys: Vec::new(), slots: vec![0; SLOTS_MIN], multiplier }
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.slots.fill(0);
    }

    /// The number of a tuple, and whether it is new.
    #[inline]
    pub(super) fn find_or_add(&mut self, tuple: Tuple, blocks: &mut Blocks) -> (u32, bool) {
        let slot = self.slot(&tuple);
        if let Some(number) = self.slots[slot].checked_sub(1) {
            return (number, false);
        }
        self.keys.push(Key::new(tuple, blocks));
        self.slots[slot] = self.keys.len() as u32;
        if self.keys.len() * 2 > self.slots.len() {
            self.grow();
        }
        (self.keys.len() as u32 - 1, true)
    }

    /// The slot where the tuple is or belongs.
    #[inline]
    fn slot(&self, tuple: &Tuple) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.spread(tuple) as usize & mask;
        loop {
            match self.slots[slot] {
                0 => return slot,
                entry if self.keys[entry as usize - 1].tuple == *tuple => return slot,
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// Folds the high half of each product onto the low one: sizes are multiples of powers of two, streams are pointers.
    #[inline]
    fn spread(&self, tuple: &Tuple) -> u64 {
        let fold = |value: u64| {
            let product = u128::from(value ^ self.multiplier) * u128::from(self.multiplier);
            product as u64 ^ (product >> 64) as u64
        };
        let pool = u64::from(tuple.pool.first) << 32 | u64::from(tuple.pool.second);
        fold(fold(tuple.size ^ u64::from(tuple.stack.0) << 40) ^ tuple.stream.rotate_left(17) ^ pool.rotate_left(31))
    }

    #[cold]
    fn grow(&mut self) {
        let slots = self.slots.len() * 2;
        self.slots.clear();
        self.slots.resize(slots, 0);
        for number in 0..self.keys.len() {
            let slot = self.slot(&self.keys[number].tuple);
            self.slots[slot] = number as u32 + 1;
        }
    }
}
