//! Asks for what holds some blocks, and the parts of the search that Python would be too slow for, or could not do in one go.
//!
//! - [`walk`]: from the program's roots down to tensors, in slices. [`heap`]: over all objects of the collector, in slices.
//!   [`frames`]: the variables of a running function. [`rules`]: which objects are tensors, and which are never entered.
//!   [`visit`]: one object's references, by the interpreter's own traversal.
//!
//! Guarantees: neither function waits, and an ask is given once. Between two calls nothing refers to any of the program's
//! objects; within one call none of the program's code runs, the collector does not, and the interpreter's lock is kept, so
//! what an object refers to is alive until the call returns.
//! Refuses: to read the answer; the host of the session does.

mod frames;
mod heap;
mod rules;
mod visit;
mod walk;

use std::time::Duration;

use memctl_agent::live::{self, Asked};
use pyo3::prelude::*;

pub use frames::frame_values;
pub use heap::Heap;
pub use walk::Walk;

/// An ask's number, addresses and bytes of blocks, and the budget in milliseconds.
type Ask = (u64, Vec<(u64, u64)>, u32);

/// What is asked, if something is.
#[pyfunction]
pub fn holders_asked() -> Option<Ask> {
    let Asked { ask, blocks, budget_ms } = live::current()?.holders_asked()?;
    Some((ask, blocks, budget_ms))
}

/// Answers an ask; whether there was room for the answer.
#[pyfunction]
pub fn holders_answer(ask: u64, answer_json: &str) -> bool {
    live::current().is_some_and(|live| live.holders_answer(ask, answer_json))
}

/// How a thread sleeps until something is asked: the number of the system call `futex`, and the address of the word that is 0
/// meanwhile. None where nothing may be asked.
#[pyfunction]
pub fn holders_word() -> Option<(i64, usize)> {
    Some((libc::SYS_futex, live::current()?.holders_word()?))
}

/// The bounds of a slice: microseconds from now.
fn until(slice_us: u64) -> std::time::Instant {
    std::time::Instant::now() + Duration::from_micros(slice_us.min(1_000_000))
}
