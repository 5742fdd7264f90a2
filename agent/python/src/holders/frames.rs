//! Reads the variables of a running function, in this thread or another one. All are read at once, so that the function
//! cannot continue meanwhile.
//!
//! A thread without the interpreter's lock is between two instructions or inside a C function, so the slots of its
//! frames hold their values. The Python side has tested on one of its own frames which words of a frame are slots.
//! Guarantees: an address is read only if this process has memory there, and a word becomes an object only if it is a
//! slot.

use pyo3::ffi::PyObject;
use pyo3::prelude::*;

/// Maximum number of slots of a frame that are read.
const SLOTS_MAX: usize = 500;
/// Offset in a frame object, from 3.11 on, of the pointer to its slots.
const POINTER_AT: usize = 24;

/// The values in the first slots of a frame; `None` for an empty slot. With `is_indirect`, the frame object points to
/// the slots instead of containing them.
#[pyfunction]
pub fn frame_values(
    frame: &Bound<'_, PyAny>,
    first_slot: usize,
    count: usize,
    is_indirect: bool,
) -> Vec<Option<Py<PyAny>>> {
    let object = frame.as_ptr() as usize;
    let base = if is_indirect {
        // SAFETY: a frame object of a version with this word. The Python side has found its own variables in this way.
        unsafe { ((object + POINTER_AT) as *const usize).read() }
    } else {
        object
    };
    if base == 0 || first_slot == 0 {
        return Vec::new();
    }
    let slots = (0..count.min(SLOTS_MAX)).map(|at| {
        // SAFETY: a slot of a live frame, which holds its frame object or is held by it. The interpreter's lock is
        // kept, so the slot is empty or refers to an object.
        unsafe {
            let word = ((base + 8 * (first_slot + at)) as *const *mut PyObject).read();
            // (From 3.14 on, words may be tagged. Those versions have a view of their variables and are not read here.)
            if word.is_null() { None } else { Some(Bound::from_borrowed_ptr(frame.py(), word).unbind()) }
        }
    });
    slots.collect()
}
