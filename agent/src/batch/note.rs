//! What reaches the worker beside the rings.
//!
//! Guarantees: a note that belongs among a ring's records says where the ring stood.

use memctl_model::{Frame, Keyframe, Mark, Sample};

use crate::ring::Position;

/// See the module.
#[derive(Debug)]
pub enum Note {
    /// A mark, with where each ring stood when it was made; without positions it tells of the last boundary.
    Mark(Mark, Box<[Position]>),
    /// Gradients were given back, with where each ring stood.
    Settled(Box<[Position]>),
    /// The next stack of the dictionary.
    Stack(Box<[Frame]>),
    /// A measurement.
    Sample(Sample),
    /// The state of a device, with where its ring stood when it was read.
    Keyframe(Box<Keyframe>, Position),
    /// What the trainer says to an ask for holders, as JSON.
    Holders(u64, Vec<u8>),
}
