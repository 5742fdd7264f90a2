//! Deaths of code objects: what makes the address of an instruction name a line for good.
//!
//! Guarantees: after a code object that was on a recorded stack has died, no key from before it is made again, so code
//! that comes to lie at its address is met as new. What is asked of a death is one look at a bit.
//!
//! The interpreter reports deaths through `PyCode_AddWatcher` (3.12 and later), which the Python side asks for.
//! Sub-interpreters would have to be watched one by one; torch does not run in them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bits for code objects by address: 8 KiB. A training has a few thousand on its stacks; two that share a bit cost one
/// look-up of every stack when the wrong one dies.
const BITS: usize = 1 << 16;

static SEEN: [AtomicU64; BITS / 64] = [const { AtomicU64::new(0) }; BITS / 64];

fn place(code: usize) -> (&'static AtomicU64, u64) {
    // Fibonacci hashing: code objects are aligned to 16 bytes, the upper bits of the product are mixed.
    let bit = ((code as u64).wrapping_mul(super::GOLDEN) >> 48) as usize & (BITS - 1);
    (&SEEN[bit / 64], 1 << (bit % 64))
}

/// Its death counts from here on. Called before a stack with it is remembered.
pub(super) fn watch(code: usize) {
    let (word, bit) = place(code);
    // Relaxed: the code object is alive on the calling thread's stack; whoever destroys it comes later through the
    // interpreter's lock.
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A code object dies, its address is free afterwards. Any thread, with the interpreter's lock.
pub fn died(code: usize) {
    let (word, bit) = place(code);
    // Relaxed: see `watch` and `first_key`.
    if word.load(Ordering::Relaxed) & bit != 0 {
        super::GATE.deaths.fetch_add(1, Ordering::Relaxed);
    }
}
