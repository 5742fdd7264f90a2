//! Where events come from: a recording that is played ([`recording`]), or a trainer that calls [`crate::Recorder`].

pub mod recording;
pub mod snapshot;
