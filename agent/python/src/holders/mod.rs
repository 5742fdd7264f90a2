//! Requests for holders, and the parts of the search that would be too slow in Python or could be interrupted there.
//!
//! - [`walk`] walks from the program's roots down to tensors, in slices.
//! - [`heap`] walks over all objects of the collector, in slices.
//! - [`frames`] reads the variables of a running function.
//! - [`rules`] decides which objects are tensors, and which are never entered.
//! - [`visit`] reads one object's references with the interpreter's own traversal.
//!
//! Guarantees: no function waits, and a request is returned once. Between two calls nothing here refers to any of the
//! program's objects. Within one call, neither the program's code nor the collector runs, and the interpreter's lock is
//! kept. Objects that a live object refers to are therefore alive until the call returns.
//! Refuses: to parse the answer. The host of the session does that.

mod frames;
mod heap;
mod rings;
mod rules;
mod visit;
mod walk;

use std::time::Duration;

use memctl_agent::live::{self, HolderSearchRequest};
use pyo3::prelude::*;

pub use frames::frame_values;
pub use heap::Heap;
pub use walk::Walk;

/// A request's id, addresses and bytes of blocks, and the budget in milliseconds.
type Ask = (u64, Vec<(u64, u64)>, u32);

/// The request for holders, if there is one.
#[pyfunction]
pub fn holders_asked() -> Option<Ask> {
    let HolderSearchRequest { ask, blocks, budget_ms } = live::current()?.holders_asked()?;
    Some((ask, blocks, budget_ms))
}

/// Answers a request. Returns whether there was room for the answer.
#[pyfunction]
pub fn holders_answer(ask: u64, answer_json: &str) -> bool {
    live::current().is_some_and(|live| live.holders_answer(ask, answer_json))
}

/// The values with which a thread sleeps until there is a request: the number of the system call `futex`, and the
/// address of the word that is 0 meanwhile. `None` if requests are forbidden.
#[pyfunction]
pub fn holders_word() -> Option<(i64, usize)> {
    Some((libc::SYS_futex, live::current()?.holders_word()?))
}

/// The end of a slice, `slice_us` microseconds from now.
fn until(slice_us: u64) -> std::time::Instant {
    std::time::Instant::now() + Duration::from_micros(slice_us.min(1_000_000))
}
