//! What reaches the worker apart from the rings.
//!
//! Guarantees: a note that belongs among a ring's records carries the ring's position.

use memctl_model::{Frame, Keyframe, Mark, Sample};

use crate::ring::Position;

/// See the module.
#[derive(Debug)]
pub enum Note {
    /// A mark, with each ring's position when it was made; without positions it refers to the last boundary.
    Mark(Mark, Box<[Position]>),
    /// Gradients were freed, with each ring's position.
    Settled(Box<[Position]>),
    /// The next stack of the dictionary.
    Stack(Box<[Frame]>),
    /// A measurement.
    Sample(Sample),
    /// The state of a device, with its ring's position when it was read.
    Keyframe(Box<Keyframe>, Position),
    /// The trainer's answer to a request for holders, as JSON.
    Holders(u64, Vec<u8>),
}
