//! The variables of a function that runs, in this thread or another: read in one go, so that it cannot go on meanwhile.
//!
//! A thread that does not hold the interpreter's lock is between two instructions or inside of a C function; the slots of its
//! frames hold what they refer to. Which words of a frame its slots are, Python has found out on a frame of its own.
//! Guarantees: an address is read only where this process has memory, and a word becomes an object only where it is a slot.

use pyo3::ffi::PyObject;
use pyo3::prelude::*;

/// Slots of a frame that are read.
const SLOTS_MAX: usize = 500;
/// Where a frame object of 3.11 and later says where its slots are.
const POINTER_AT: usize = 24;

/// The values in the first slots of a frame; none where a slot is empty. `is_indirect`: the slots lie where the frame object
/// says, and not in itself.
#[pyfunction]
pub fn frame_values(
    frame: &Bound<'_, PyAny>,
    first_slot: usize,
    count: usize,
    is_indirect: bool,
) -> Vec<Option<Py<PyAny>>> {
    let object = frame.as_ptr() as usize;
    let base = if is_indirect {
        // SAFETY: a frame object of a version that has this word; Python has found its own variables that way.
        unsafe { ((object + POINTER_AT) as *const usize).read() }
    } else {
        object
    };
    if base == 0 || first_slot == 0 {
        return Vec::new();
    }
    let slots = (0..count.min(SLOTS_MAX)).map(|at| {
        // SAFETY: a slot of a frame that is there, as it holds its frame object or is held by it: the lock is kept, so it is
        // either empty or refers to an object.
        unsafe {
            let word = ((base + 8 * (first_slot + at)) as *const *mut PyObject).read();
            // (From 3.14 on words may be tagged; those versions have a view of their variables, and are not read here.)
            if word.is_null() { None } else { Some(Bound::from_borrowed_ptr(frame.py(), word).unbind()) }
        }
    });
    slots.collect()
}
