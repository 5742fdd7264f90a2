//! Finds the rings in which the collector links all objects that it tracks.
//!
//! The heads of the rings are next to each other in the interpreter. A newly created object leads to the youngest ring,
//! and the other heads are at known distances.
//! Guarantees: rings are read and never changed.
//! Refuses: interpreters whose rings have another layout.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::rules::NoCollector;

/// Bytes before an object with the collector's links to the next and to the previous object.
pub(super) const HEAD_BYTES: usize = 16;
/// Bits of these words that are not part of the address.
const FLAGS: usize = 3;
/// Distances of heads from that of the youngest objects.
const GENERATIONS: [usize; 3] = [0, 24, 48];
/// Offset of a pointer to the youngest head, in versions that have one (`POINTER_AT`). Offset of the head of the
/// objects that `gc.freeze` set aside, in versions with that pointer and in versions without it (`FROZEN_AT`).
const POINTER_AT: usize = 72;
const FROZEN_AT: [usize; 2] = [80, 72];

/// The next object in a ring.
pub(super) fn next(at: usize) -> usize {
    // SAFETY: a member of a ring, which the interpreter keeps whole while its lock is held.
    unsafe { (at as *const usize).read() & !FLAGS }
}

/// The previous object in a ring.
pub(super) fn before(at: usize) -> usize {
    // SAFETY: a member of a ring, which the interpreter keeps whole while its lock is held.
    unsafe { ((at + 8) as *const usize).read() & !FLAGS }
}

/// The heads of the collector's rings; empty if the layout is not that of rings.
pub(super) fn heads(py: Python<'_>) -> Vec<usize> {
    let _still = NoCollector::new();
    // This is the newest object of all, because it was just created and tracked. The head of the youngest ring follows
    // it.
    let list = PyList::empty(py);
    let own = list.as_ptr() as usize - HEAD_BYTES;
    // SAFETY: a live object.
    if unsafe { ffi::PyObject_GC_IsTracked(list.as_ptr()) } == 0 {
        return Vec::new();
    }
    let youngest = next(own);
    let has_pointer = is_readable(youngest, POINTER_AT + 8) && {
        // SAFETY: within memory that was checked to be readable.
        unsafe { ((youngest + POINTER_AT) as *const usize).read() == youngest }
    };
    if before(youngest) != own || !is_readable(youngest, FROZEN_AT[0] + HEAD_BYTES) {
        return Vec::new();
    }
    let frozen = FROZEN_AT[usize::from(!has_pointer)];
    let found: Vec<usize> = GENERATIONS.into_iter().chain([frozen]).map(|distance| youngest + distance).collect();
    let are_rings = found.iter().all(|head| {
        let (after, last) = (next(*head), before(*head));
        is_readable(after, HEAD_BYTES) && is_readable(last, HEAD_BYTES) && before(after) == *head && next(last) == *head
    });
    if are_rings { found } else { Vec::new() }
}

/// Whether this process can read memory at an address, which may come from a structure of an unknown version.
fn is_readable(address: usize, bytes: usize) -> bool {
    if address == 0 || !address.is_multiple_of(8) {
        return false;
    }
    let mut copy = [0_u8; 128];
    let here = libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: bytes.min(copy.len()) };
    let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.min(copy.len()) };
    // SAFETY: copies into `copy`, at most its size; an unmapped address is an error and not a crash.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    usize::try_from(read).is_ok_and(|read| read == bytes.min(copy.len()))
}
