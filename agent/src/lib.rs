//! The agent: what sits in (or beside) a training process and streams its memory events to the daemon.
//!
//! An event goes from its source (a trainer that calls [`Recorder`], an allocator that calls the [`hook`], or a recording that
//! is played) into a [`ring`], through the [`batch`] stage into an item, and over
//! the [`uplink`] to the daemon, which acknowledges it once it is durable.
//! `produced = stored + dropped + in flight` at every moment ([`ledger`]).
//!
//! For a trainer written in Rust: [`Agent::start`], [`Agent::recorder`], marks, [`Agent::stop`];
//! `examples/trainer.rs` shows it.
//!
//! Refuses: to make the trainer wait for anything but [`Agent::stop`], and to know a database.

pub mod agent;
pub mod batch;
pub mod clock;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod hook;
pub mod host;
pub mod identity;
pub mod ledger;
pub mod link;
pub mod live;
pub mod place;
pub mod python;
pub mod recorder;
pub mod region;
pub mod ring;
pub mod sample;
pub mod settings;
pub mod uplink;

pub use agent::{Agent, AgentConfig, Breaker, Outcome, Patience, SpoolConfig, StartError};
pub use ledger::Counts;
pub use recorder::{Recorder, Stopped};
pub use uplink::Daemon;
