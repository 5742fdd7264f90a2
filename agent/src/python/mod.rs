//! Decodes raw bytes of a CPython process: line tables of code objects, type names of autograd nodes.
//!
//! Pure and off the hot path: the hook stores an instruction's offset and a pointer; this module turns them into a line
//! and a name.
//! Refuses: to call into Python, and to trust any byte of its input.

pub mod lines;
pub mod names;

#[cfg(test)]
mod lines_tests;
