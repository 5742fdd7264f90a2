//! What a ring's memory is made of: the standard library's atomics, and a cell that says who reads and who writes.
//!
//! The ring names them here alone, so that the test `ring_loom`, which compiles the ring's sources a second time, puts loom's
//! in their place. No feature of the crate changes with it: all tests are built with one set of features.

pub use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

/// A cell without bounds on who looks inside: the ring's protocol gives them.
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

/// Cells that are all zero. What is not touched takes no memory.
///
/// # Safety
/// A `T` of zeros is a value.
pub unsafe fn zeroed<T>(count: usize) -> Box<[UnsafeCell<T>]> {
    // SAFETY: the cell is transparent, and the caller says that zeros are a value.
    unsafe { Box::new_zeroed_slice(count).assume_init() }
}
