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
//! // One event for the allocation, and two for its free (requested, completed).
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
//! For WebAssembly only the batch stage is compiled, which packs recordings.
//!
//! The trainer waits for nothing except [`Agent::stop`]. The agent does not depend on a database.

// The batch stage has parts that only live sessions use.
#![cfg_attr(target_family = "wasm", allow(dead_code))]

#[cfg(not(target_family = "wasm"))]
mod agent;
mod batch;
#[cfg(not(target_family = "wasm"))]
mod clock;
#[cfg(not(target_family = "wasm"))]
pub mod credentials;
#[cfg(feature = "cuda")]
#[cfg(not(target_family = "wasm"))]
pub mod cuda;
#[cfg(not(target_family = "wasm"))]
pub mod data_dirs;
#[cfg(not(target_family = "wasm"))]
mod holders;
#[cfg(not(target_family = "wasm"))]
mod hook;
#[cfg(not(target_family = "wasm"))]
pub mod host;
#[cfg(not(target_family = "wasm"))]
pub mod identity;
#[cfg(not(target_family = "wasm"))]
pub mod launch_id;
#[cfg(not(target_family = "wasm"))]
mod layout;
#[cfg(not(target_family = "wasm"))]
mod ledger;
#[cfg(not(target_family = "wasm"))]
mod link;
#[cfg(not(target_family = "wasm"))]
pub mod live;
#[cfg(not(target_family = "wasm"))]
mod own_identity;
#[cfg(not(target_family = "wasm"))]
pub mod private_files;
#[cfg(not(target_family = "wasm"))]
mod python;
#[cfg(not(target_family = "wasm"))]
pub mod reach;
#[cfg(not(target_family = "wasm"))]
mod recorder;
#[cfg(not(target_family = "wasm"))]
mod region;
#[cfg(not(target_family = "wasm"))]
mod ring;
#[cfg(test)]
#[cfg(not(target_family = "wasm"))]
mod ring_tests;
#[cfg(not(target_family = "wasm"))]
pub mod sample;
#[cfg(not(target_family = "wasm"))]
mod secret;
#[cfg(not(target_family = "wasm"))]
pub mod service;
#[cfg(not(target_family = "wasm"))]
pub mod settings;
pub mod source_paths;
#[cfg(not(target_family = "wasm"))]
mod sync;
#[cfg(not(target_family = "wasm"))]
mod uplink;
#[cfg(target_family = "wasm")]
mod uplink {
    pub mod outgoing;
}

#[cfg(not(target_family = "wasm"))]
pub use agent::{Agent, AgentConfig, Breaker, Outcome, Patience, SpoolConfig, StartError};
#[cfg(not(target_family = "wasm"))]
pub use clock::now_ns;
#[cfg(not(target_family = "wasm"))]
pub use ledger::Counts;
#[cfg(not(target_family = "wasm"))]
pub use memctl_model::Backoff;
#[cfg(not(target_family = "wasm"))]
pub use reach::DaemonAddress;
#[cfg(not(target_family = "wasm"))]
pub use recorder::{Recorder, Stopped};
#[cfg(not(target_family = "wasm"))]
pub use ring::EVENTS as RING_EVENTS;
#[cfg(not(target_family = "wasm"))]
pub use secret::SessionSecret;
#[cfg(not(target_family = "wasm"))]
pub use uplink::Daemon;

/// Single stages, for the benchmarks and tests of memctl itself. This is not a stable interface.
#[doc(hidden)]
pub mod internals {
    pub use crate::batch::cut::cut;
    pub use crate::batch::{BatchConfig, Batcher};
    #[cfg(not(target_family = "wasm"))]
    pub use crate::clock::{Ticks, ticks};
    pub use crate::uplink::outgoing::Outgoing;

    /// The code in the allocator's callback.
    #[cfg(not(target_family = "wasm"))]
    pub mod hook {
        pub use crate::hook::frames::Version;
        pub use crate::hook::{Hook, RawEvent, RawNode, Shim, install, on_event};
    }

    /// The trainer's side of the launcher's socket.
    #[cfg(not(target_family = "wasm"))]
    pub mod link {
        pub use crate::link::greet;
    }

    /// The memory that trainer and launcher share.
    #[cfg(not(target_family = "wasm"))]
    pub mod region {
        pub use crate::region::{Region, dictionary, holders, messages, notes};
    }

    /// Undelivered items on disk.
    #[cfg(not(target_family = "wasm"))]
    pub mod spool {
        pub use crate::uplink::spool::{Place, Spool};
    }

    /// The ring of a device.
    #[cfg(not(target_family = "wasm"))]
    pub mod ring {
        pub use crate::ring::{Position, Producer, Record, ring};
    }
}
