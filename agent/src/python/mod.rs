//! What raw bytes of a CPython process mean: line tables of code objects, type names of autograd nodes.
//!
//! Pure and off the hot path: the hook stores an instruction's offset and a pointer, this turns them into a line and a name.
//! Refuses: to call into Python, and to trust a byte of what it is given.

pub mod lines;
pub mod names;

#[cfg(test)]
mod lines_tests;
