//! Decodes raw bytes of a CPython process: line tables of code objects, and type names of autograd nodes.
//!
//! This module is pure and not on the hot path. The hook stores the offset of an instruction and a pointer, and this
//! module converts them to a line and a name.
//! Refuses: to call into Python, and to trust any byte of its input.

pub mod lines;
pub mod names;

#[cfg(test)]
mod lines_tests;
