//! Live memory at a device's peak: by class, by module, and by class, module and site together.
//!
//! Guarantees: the classes sum to the allocated bytes; omitted parts are counted, with their bytes. A block that was
//! not allocated in a module's forward has no module.

use serde::{Deserialize, Serialize};

use crate::ledger::ClassShare;
use crate::{Completeness, Frame, Job};

/// Live memory at a device's peak, divided.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Anatomy {
    /// See [`SCHEMA`](crate::SCHEMA).
    pub schema: u32,
    /// The job.
    pub job: Job,
    /// What the answer rests on.
    pub completeness: Completeness,
    /// The rank.
    pub rank: u32,
    /// The process, by its name within the job.
    pub process: String,
    /// Device index in the process.
    pub device: u32,
    /// The moment.
    pub at: String,
    /// Epoch of the moment.
    pub epoch: u32,
    /// Step of the moment.
    pub step: u64,
    /// Whether the figures are exact.
    pub exact: bool,
    /// Handed out by the allocator.
    pub allocated_bytes: u64,
    /// Allocated bytes by class; empty classes are omitted.
    pub classes: Vec<ClassShare>,
    /// By module, most first.
    pub modules: Vec<Held>,
    /// By class, module and site, most first.
    pub parts: Vec<Part>,
    /// Modules that had no room in the answer.
    pub modules_left_out: u64,
    /// Parts that had no room in the answer.
    pub parts_left_out: u64,
    /// Their bytes.
    pub left_out_bytes: u64,
}

/// Memory that was allocated in one module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "ModuleMemory"))]
pub struct Held {
    /// Its class, or the line that calls it; null for what was allocated in none.
    pub module: Option<String>,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
}

/// Memory that was allocated for one purpose, in one module, at one site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Part {
    /// Its class.
    pub class: &'static str,
    /// The module's class, or the line that calls it; null for what was allocated in none.
    pub module: Option<String>,
    /// The innermost frame of the user's own code; null when no stack was recorded.
    pub site: Option<Frame>,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
}
