//! The rules of the repository: which crate imports which, how long a file is, what the documents name. It needs no
//! server.

mod arrows;
mod circles;
mod documented;
mod shape;
mod words;
