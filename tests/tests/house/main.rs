//! The house itself: who imports whom, how long a file is, what the documents name. It needs no server.

mod arrows;
mod circles;
mod documented;
mod shape;
