//! Tests of the wire's bytes, in one program: each file tests what its name states.

mod chunk;
mod chunk_hostile;
mod generated;
mod streams;
