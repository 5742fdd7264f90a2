//! Deaths of code objects: with them, the address of an instruction identifies a line for good.
//!
//! Guarantees: after a code object that was on a recorded stack has died, no earlier key is produced again, so code
//! that is later placed at its address counts as new. A death costs one test of a bit.
//!
//! The interpreter reports deaths through `PyCode_AddWatcher` (3.12 and later), which the Python side asks for.
//! Sub-interpreters would have to be watched one by one; torch does not run in them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bits for code objects by address: 8 KiB. A training has a few thousand on its stacks; when two share a bit, the
/// death of an unseen one costs one look-up of every stack.
const BITS: usize = 1 << 16;

static SEEN: [AtomicU64; BITS / 64] = [const { AtomicU64::new(0) }; BITS / 64];

fn place(code: usize) -> (&'static AtomicU64, u64) {
    // Fibonacci hashing: code objects are aligned to 16 bytes, and the upper bits of the product are mixed.
    let bit = ((code as u64).wrapping_mul(super::GOLDEN) >> 48) as usize & (BITS - 1);
    (&SEEN[bit / 64], 1 << (bit % 64))
}

/// Watches for its death. Called before a stack that contains it is remembered.
pub(super) fn watch(code: usize) {
    let (word, bit) = place(code);
    // Relaxed: the code object is alive on the calling thread's stack; the thread that destroys it later is ordered
    // after this by the interpreter's lock.
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A code object dies; its address is free afterwards. Called from any thread, with the interpreter's lock.
pub fn died(code: usize) {
    let (word, bit) = place(code);
    // Relaxed: see `watch` and `first_key`.
    if word.load(Ordering::Relaxed) & bit != 0 {
        super::GATE.deaths.fetch_add(1, Ordering::Relaxed);
    }
}
