//! Tables of fixed size for the hook. One maps a stack's key to its id without a lock. The other maps a code object to
//! its id under the latch.
//!
//! Guarantees: no allocation after construction. A lookup touches one or two cache lines.
//! Refuses: to grow, and to forget (except for the recent keys). A stack without room gets no id and is counted.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of slots for stacks (1 MiB). A big model with gradient accumulation, evaluation and checkpoints has a few
/// thousand stacks.
const STACK_SLOTS: usize = 1 << 16;
/// Maximum number of stacks. In a table that is more than three quarters full, searches get long.
const STACKS_MAX: u32 = (STACK_SLOTS / 4 * 3) as u32;
/// Number of slots for code objects (384 KiB).
const CODE_SLOTS: usize = 1 << 14;
const CODES_MAX: u32 = (CODE_SLOTS / 4 * 3) as u32;

/// Number of slots for recent keys (128 KiB). A step touches as many cache lines as it has stacks: 150 for GPT-2 small,
/// 1,500 for the largest seen. Three in a thousand of these find both of their slots taken.
const NEAR_SLOTS: usize = 1 << 14;

/// Recent keys, close together in memory. A third key replaces the key in its own slot of the pair.
pub struct Near {
    /// Words with the upper 48 bits of the key and an id of 16 bits; 0 when empty. The lower bits of the key select the
    /// slot.
    slots: Box<[AtomicU64]>,
}

// An id must fit beside the key in one word.
const _: () = assert!(STACK_SLOTS <= 1 << 16);

impl Default for Near {
    fn default() -> Self {
        Self { slots: (0..NEAR_SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Near {
    /// The two slots of a key, which are on one cache line.
    #[inline(always)]
    fn pair(&self, key: u64) -> (&AtomicU64, &AtomicU64) {
        let at = key as usize & (NEAR_SLOTS - 1);
        (&self.slots[at], &self.slots[at ^ 1])
    }

    /// The id that was stored with a key, unless it was replaced. Keys that agree in 61 bits count as the same.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u32> {
        let (first, second) = self.pair(key);
        // Relaxed: key and id are in one word, and no other memory depends on the id.
        let found = first.load(Ordering::Relaxed);
        if (found ^ key) >> 16 == 0 && found != 0 {
            return Some(found as u32 & 0xffff);
        }
        let found = second.load(Ordering::Relaxed);
        ((found ^ key) >> 16 == 0 && found != 0).then_some(found as u32 & 0xffff)
    }

    /// Remembers a key's id. An id of 0 (no stack) is not remembered.
    pub fn put(&self, key: u64, id: u32) {
        if id == 0 || id > 0xffff {
            return;
        }
        let (first, second) = self.pair(key);
        // Relaxed: as above. When two threads store at once, one entry is lost.
        let is_for = |slot: &AtomicU64| {
            let found = slot.load(Ordering::Relaxed);
            found == 0 || (found ^ key) >> 16 == 0
        };
        let slot = if !is_for(first) && is_for(second) { second } else { first };
        slot.store(key & !0xffff | u64::from(id), Ordering::Relaxed);
    }
}

struct Slot {
    /// The key; 0 when the slot is empty.
    key: AtomicU64,
    id: AtomicU32,
}

/// Stacks by key.
pub struct Stacks {
    slots: Box<[Slot]>,
    count: AtomicU32,
}

impl Default for Stacks {
    fn default() -> Self {
        let slots = (0..STACK_SLOTS).map(|_| Slot { key: AtomicU64::new(0), id: AtomicU32::new(0) }).collect();
        Self { slots, count: AtomicU32::new(0) }
    }
}

/// Maps a key to one that is not 0, which marks an empty slot.
#[inline]
fn proper(key: u64) -> u64 {
    key.max(1)
}

impl Stacks {
    /// The id of a key, if it is known.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u32> {
        let key = proper(key);
        let mut at = (key >> 32) as usize;
        // At most three quarters are taken, so an empty slot ends the search.
        loop {
            let slot = &self.slots[at & (STACK_SLOTS - 1)];
            // Acquire: a thread that sees the key sees its id.
            match slot.key.load(Ordering::Acquire) {
                found if found == key => return Some(slot.id.load(Ordering::Relaxed)),
                0 => return None,
                _ => at += 1,
            }
        }
    }

    /// Whether there is room for one more.
    pub fn has_room(&self) -> bool {
        // Relaxed: written and read only under the latch.
        self.count.load(Ordering::Relaxed) < STACKS_MAX
    }

    /// Adds a new key. The caller holds the latch and has checked `has_room`.
    pub fn insert(&self, key: u64, id: u32) {
        let key = proper(key);
        let mut at = (key >> 32) as usize;
        // Relaxed: written only under the latch.
        while self.slots[at & (STACK_SLOTS - 1)].key.load(Ordering::Relaxed) != 0 {
            at += 1;
        }
        let slot = &self.slots[at & (STACK_SLOTS - 1)];
        slot.id.store(id, Ordering::Relaxed);
        // Release: see `get`.
        slot.key.store(key, Ordering::Release);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of known stacks.
    pub fn count(&self) -> u32 {
        // Relaxed: a statistic.
        self.count.load(Ordering::Relaxed)
    }
}

/// Code objects by address and identity.
pub struct Codes {
    slots: Box<[(usize, u64, u32)]>,
    count: u32,
}

impl Default for Codes {
    fn default() -> Self {
        Self { slots: vec![(0, 0, 0); CODE_SLOTS].into(), count: 0 }
    }
}

impl Codes {
    fn place(&self, code: usize, identity: u64) -> usize {
        // Fibonacci hashing: code objects are aligned to 16 bytes, so only the upper bits of the product are well
        // mixed.
        let hash = ((code as u64) ^ identity.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut at = (hash >> 48) as usize & (CODE_SLOTS - 1);
        loop {
            let (known, other, _) = self.slots[at];
            if known == 0 || (known == code && other == identity) {
                return at;
            }
            at = (at + 1) & (CODE_SLOTS - 1);
        }
    }

    /// The id of a code object. For a new one, `define` is called, which returns whether there was room for it.
    pub fn id(&mut self, code: usize, identity: u64, define: impl FnOnce() -> bool) -> Option<u32> {
        // Code 0 marks an empty slot.
        if code == 0 {
            return None;
        }
        let at = self.place(code, identity);
        let (known, other, id) = self.slots[at];
        if known == code && other == identity {
            return Some(id);
        }
        if self.count >= CODES_MAX || !define() {
            return None;
        }
        let id = self.count;
        self.slots[at] = (code, identity, id);
        self.count += 1;
        Some(id)
    }
}
