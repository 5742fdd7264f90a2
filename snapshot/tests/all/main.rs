//! Tests of the reader and the writer of memory snapshots, in one binary. Each file's name is its subject.

mod hostile;
mod marks;
mod memory;
mod owners;
mod pickle;
mod read;
mod unmarked;
mod written;
