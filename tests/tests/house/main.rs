//! The rules of the repository: which crate may import which, the length of files, the content of documents. It needs
//! no server.

mod arrows;
mod circles;
mod documented;
mod shape;
mod words;
