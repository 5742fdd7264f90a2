//! Tracks deaths of code objects, so that the address of an instruction always identifies one line.
//!
//! Guarantees: after a code object that was on a recorded stack has died, all stacks get new keys (`first_key`). Code
//! that is later placed at its address therefore counts as new. A death costs one test of a bit.
//!
//! The interpreter reports deaths through `PyCode_AddWatcher` (3.12 and later), which the Python side calls.
//! Sub-interpreters would have to be watched one by one, but torch does not run in them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of bits for code objects, by address (8 KiB). A training has a few thousand code objects on its stacks. When
/// two share a bit and only one was on a stack, the death of the other one changes the keys too. Then every stack is
/// looked up once more than necessary.
const BITS: usize = 1 << 16;

static SEEN: [AtomicU64; BITS / 64] = [const { AtomicU64::new(0) }; BITS / 64];

fn place(code: usize) -> (&'static AtomicU64, u64) {
    // Fibonacci hashing: code objects are aligned to 16 bytes, so only the upper bits of the product are well mixed.
    let bit = ((code as u64).wrapping_mul(super::GOLDEN) >> 48) as usize & (BITS - 1);
    (&SEEN[bit / 64], 1 << (bit % 64))
}

/// Watches for the death of a code object. Must be called before a stack with it is remembered.
pub(super) fn watch(code: usize) {
    let (word, bit) = place(code);
    // Relaxed: the code object is alive on the calling thread's stack. The interpreter's lock orders its later
    // destruction after this.
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Records that a code object dies, after which its address may be reused. Any thread with the interpreter's lock may
/// call this.
pub fn died(code: usize) {
    let (word, bit) = place(code);
    // Relaxed: see `watch` and `first_key`.
    if word.load(Ordering::Relaxed) & bit != 0 {
        super::GATE.deaths.fetch_add(1, Ordering::Relaxed);
    }
}
