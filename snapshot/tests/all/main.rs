//! The reader and the writer of memory snapshots, in one program: every file tests what its name says.

mod hostile;
mod marks;
mod memory;
mod owners;
mod pickle;
mod read;
mod unmarked;
mod written;
