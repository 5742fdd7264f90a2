//! Notes are the messages that reach the worker outside of the rings.
//!
//! Guarantees: a note that belongs at a point among a ring's records has the ring's position.

use memctl_model::{Frame, Keyframe, Mark, Sample};

use crate::ring::Position;

/// A note; see the module's documentation.
#[derive(Debug)]
pub enum Note {
    /// A mark, with each ring's position when it was made. A mark without positions refers to the last boundary.
    Mark(Mark, Box<[Position]>),
    /// Gradients were freed, with each ring's position.
    Settled(Box<[Position]>),
    /// The next stack of the dictionary.
    Stack(Box<[Frame]>),
    /// A measurement.
    Sample(Box<Sample>),
    /// The state of a device, with its ring's position when it was read.
    Keyframe(Box<Keyframe>, Position),
    /// The trainer's answer to a request for holders, as JSON.
    Holders(u64, Vec<u8>),
}
