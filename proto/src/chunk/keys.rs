//! The dictionary of a chunk. Each distinct (stack, size, stream, pool) has a number, in order of first use.
//!
//! Guarantees: equal tuples have the same number, regardless of earlier lookups.
//! Refuses: a column that does not hold exactly the declared number of tuples.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use memctl_model::{Event, PoolId, StackId};

use super::columns::Column;
use super::varint::{Cursor, put};
use super::{Fault, Part};

/// PyTorch's allocator allocates multiples of this.
const GRANULE_BYTES: u64 = 512;

/// The properties of a request. They repeat in training: the same site requests the same size on the same stream.
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

/// An entry of the dictionary and values derived from it.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub(super) tuple: Tuple,
    /// Size rounded up to granules, at least one; wraps at 2^64.
    pub(super) len_bytes: u64,
    /// Stack of the latest `free_requested` of such a block. The next one is expected to have the same stack.
    pub(super) requested_stack: StackId,
    /// Stack of the latest `free_completed` that is not part of a pair.
    pub(super) completed_stack: StackId,
    /// The decoder's tables of times, see [`super::times`].
    pub(super) tables: [u32; 4],
}

impl Key {
    /// A key before its first use.
    pub(super) const fn new(tuple: Tuple) -> Self {
        let granules = tuple.size.div_ceil(GRANULE_BYTES);
        Self {
            tuple,
            len_bytes: if granules == 0 { GRANULE_BYTES } else { granules.wrapping_mul(GRANULE_BYTES) },
            requested_stack: StackId::NONE,
            completed_stack: StackId::NONE,
            tables: [0; 4],
        }
    }
}

/// Writes the column of tuples, one field after the other, because neighbouring values of a field are similar.
pub(super) fn write(keys: &[Key], out: &mut Vec<u8>) {
    let tuples = || keys.iter().map(|key| key.tuple);
    tuples().for_each(|tuple| put(out, tuple.stack.0.into()));
    tuples().for_each(|tuple| put(out, tuple.size));
    tuples().for_each(|tuple| put(out, tuple.stream));
    tuples().for_each(|tuple| put(out, tuple.pool.first.into()));
    tuples().for_each(|tuple| put(out, tuple.pool.second.into()));
}

/// Replaces `keys` with the content of the column of tuples. The caller has checked that `count` is at most the number
/// of events.
pub(super) fn read(column: &[u8], count: usize, keys: &mut Vec<Key>) -> Result<(), Fault> {
    let mut cursor = Cursor::new(column, Part::Column(Column::Tuples));
    let nothing = Tuple { stack: StackId::NONE, size: 0, stream: 0, pool: PoolId::DEFAULT };
    keys.clear();
    for _ in 0..count {
        keys.push(Key::new(Tuple { stack: StackId(cursor.u32()?), ..nothing }));
    }
    for key in &mut *keys {
        *key = Key::new(Tuple { size: cursor.u64()?, ..key.tuple });
    }
    for key in &mut *keys {
        key.tuple.stream = cursor.u64()?;
    }
    for key in &mut *keys {
        key.tuple.pool.first = cursor.u32()?;
    }
    for key in &mut *keys {
        key.tuple.pool.second = cursor.u32()?;
    }
    cursor.finished()
}

/// The encoder's side: finds a tuple's number.
pub(super) struct KeyIndex {
    pub(super) keys: Vec<Key>,
    /// Indices into `keys` plus one; 0 when empty. The number of slots is a power of two, and at most half are used.
    slots: Vec<u32>,
    /// An odd random factor, so that a sender cannot choose tuples that all collide. It is not part of the format.
    multiplier: u64,
}

/// Initial number of slots. Recordings have between 1 and 1,600 keys in a chunk.
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

    /// The number of a tuple, which is added if it is new.
    #[inline]
    pub(super) fn find_or_add(&mut self, tuple: Tuple) -> u32 {
        let slot = self.slot(&tuple);
        if let Some(number) = self.slots[slot].checked_sub(1) {
            return number;
        }
        self.keys.push(Key::new(tuple));
        self.slots[slot] = self.keys.len() as u32;
        if self.keys.len() * 2 > self.slots.len() {
            self.grow();
        }
        self.keys.len() as u32 - 1
    }

    /// The slot where the tuple is, or where it will be added.
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

    /// The hash of a tuple. It folds the high half of each product onto the low half, because sizes are multiples of
    /// powers of two and streams are pointers.
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
