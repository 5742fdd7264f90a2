//! The bytes of the wire, in one program: every file tests what its name says.

mod chunk;
mod chunk_hostile;
mod generated;
mod streams;
