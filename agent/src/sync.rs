//! The types of a ring's memory: the standard library's atomics, and a cell that separates reads from writes.
//!
//! Only this file names these types. The test `ring_loom` compiles the ring's sources a second time and replaces the
//! types with loom's. This needs no feature of the crate, so all tests are built with one set of features.

pub use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

/// A cell without access checks. The ring's protocol makes accesses safe.
#[repr(transparent)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// Reads through a pointer.
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Writes through a pointer.
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Cells that are all zero. Untouched cells take no memory.
///
/// # Safety
/// A `T` of zeros is valid.
pub unsafe fn zeroed<T>(count: usize) -> Box<[UnsafeCell<T>]> {
    // SAFETY: the cell is transparent, and the caller guarantees that zeros are valid.
    unsafe { Box::new_zeroed_slice(count).assume_init() }
}
