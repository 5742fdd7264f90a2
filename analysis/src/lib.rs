//! Analyses of an event stream: the allocator's state, its peaks, its sites and its holes.
//!
//! Guarantees: all items are pure functions and state machines over the types of `memctl-model`. They do no I/O, read
//! no clock and use no randomness. No input makes them panic. Byte counts have the meaning that
//! `torch.cuda.memory_stats()` gives them and are equal to it byte for byte.

#![forbid(unsafe_code)]

pub mod block_map;
pub mod boundaries;
pub mod churn;
pub mod classes;
pub mod coverage;
pub mod deaths;
pub mod display_threshold;
pub mod floor;
pub mod fragmentation;
pub mod growth;
pub mod holders;
pub mod initial_state;
pub mod judge;
pub mod ledger;
pub mod lifetimes;
pub mod modules;
pub mod need;
pub mod oom;
pub mod outliers;
pub mod outline;
pub mod proof_limits;
pub mod rules;
pub mod statistics;
pub mod steady;
pub mod step_blocks;
pub mod timeline;
pub mod unexplained_growth;
pub mod wording;

pub use block_map::{Anomalies, Birth, BlockMap, FreeBlock, LiveBlock, LiveSample, SegmentUse};
pub use initial_state::{InitialState, initial_state};
pub use rules::PlacementRules;
