//! The agent runs in (or next to) a training process and streams its memory events to the daemon.
//!
//! An event goes from its source into a ring, through the batch stage into an item, and over the uplink to the daemon.
//! The daemon acknowledges it once it is durable. `produced = stored + dropped + in flight` at every moment
//! ([`Counts`]).
//!
//! # A trainer written in Rust
//!
//! A trainer starts an [`Agent`], takes one [`Recorder`] for each device, marks its steps and epochs, and stops:
//!
//! ```
//! use std::time::Duration;
//!
//! use memctl_agent::{Agent, AgentConfig, Daemon, now_ns};
//! use memctl_model::{DeviceIndex, DeviceInfo, Frame, SessionId, SessionInfo};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let session = SessionInfo {
//!     world_size: Some(1),
//!     pid: Some(std::process::id()),
//!     devices: vec![DeviceInfo { total_bytes: Some(80 << 30), ..DeviceInfo::default() }],
//!     labels: vec![("team".into(), "vision".into())],
//!     ..SessionInfo::live(SessionId(*b"16 random bytes."), "mnist", now_ns())
//! };
//! // No daemon has to listen there yet: the agent retries, and counts what it cannot deliver.
//! let daemon = Daemon::Address("http://127.0.0.1:9".into());
//! let agent = Agent::start(AgentConfig::new(session, daemon))?;
//! let mut recorder = agent.recorder(DeviceIndex(0)).ok_or("taken already")?;
//! assert!(agent.recorder(DeviceIndex(0)).is_none(), "one recorder a device");
//!
//! let site = agent.stack(&[Frame { function: "forward".into(), file: "train.rs".into(), line: 20 }]);
//! agent.step_begin(0);
//! assert!(recorder.alloc(0x7f00_0000_0000, 4 << 20, 0, site), "the ring has room");
//! recorder.free(0x7f00_0000_0000, 4 << 20, 0);
//! agent.step_end(0);
//!
//! let outcome = agent.stop(None, Duration::from_millis(50));
//! // An allocation, and both halves of its free.
//! assert_eq!(outcome.counts.produced, 3);
//! assert!(!outcome.delivered && outcome.counts.dropped == 3, "no daemon listened: {outcome:?}");
//! # Ok(())
//! # }
//! ```
//!
//! `examples/trainer.rs` is a complete trainer. With the feature `cuda`, the module `cuda` records what a program
//! allocates through cudarc.
//!
//! # Other processes
//!
//! [`live`] records inside a process that is written in another language; the Python package calls it. [`host`]
//! receives what such processes record. [`sample`] measures devices and processes from outside. [`identity`] identifies
//! a process. [`data_dirs`] and [`reach`] determine where its data goes and how. [`settings`] reads its allocator's
//! settings.
//!
//! Refuses: to make the trainer wait for anything except [`Agent::stop`], and to depend on a database.

mod agent;
mod batch;
mod clock;
pub mod credentials;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod data_dirs;
mod holders;
mod hook;
pub mod host;
pub mod identity;
pub mod launch_id;
mod layout;
mod ledger;
mod link;
pub mod live;
mod own_identity;
pub mod private_files;
mod python;
pub mod reach;
mod recorder;
mod region;
mod ring;
#[cfg(test)]
mod ring_tests;
pub mod sample;
mod secret;
pub mod service;
pub mod settings;
pub mod source_paths;
mod sync;
mod uplink;

pub use agent::{Agent, AgentConfig, Breaker, Outcome, Patience, SpoolConfig, StartError};
pub use clock::now_ns;
pub use ledger::Counts;
pub use memctl_model::Backoff;
pub use reach::DaemonAddress;
pub use recorder::{Recorder, Stopped};
pub use ring::EVENTS as RING_EVENTS;
pub use secret::SessionSecret;
pub use uplink::Daemon;

/// Single stages, for the benchmarks and tests of memctl itself. This is not a stable interface.
#[doc(hidden)]
pub mod internals {
    pub use crate::batch::{BatchConfig, Batcher};
    pub use crate::clock::{Ticks, ticks};

    /// The code in the allocator's callback.
    pub mod hook {
        pub use crate::hook::frames::Version;
        pub use crate::hook::{Hook, RawEvent, RawNode, Shim, install, on_event};
    }

    /// The trainer's side of the launcher's socket.
    pub mod link {
        pub use crate::link::greet;
    }

    /// The memory that trainer and launcher share.
    pub mod region {
        pub use crate::region::{Region, dictionary, holders, messages, notes};
    }

    /// Undelivered items on disk.
    pub mod spool {
        pub use crate::uplink::spool::{Place, Spool};
    }

    /// The ring of a device.
    pub mod ring {
        pub use crate::ring::{Position, Producer, Record, ring};
    }
}
