//! Parts of the answer of `memctl fit`: the forecast memory of a training with changes, and its memory at the peak.
//!
//! Guarantees: every figure is a replay's, and its arithmetic is shown. Measures are not added up, because two measures
//! together do not save the sum.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::Frame;

/// The peak if the blocks of a site did not exist.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Without {
    /// The site, as it was asked for.
    pub site: String,
    /// The places that were taken for it.
    pub places: Vec<Frame>,
    /// Requests of the site.
    pub requests: u64,
    /// Highest allocated bytes without them.
    pub peak_allocated_bytes: u64,
    /// Highest reserved bytes without them.
    pub peak_reserved_bytes: u64,
    /// Of allocated bytes.
    pub saves_allocated_bytes: i64,
    /// Of reserved bytes.
    pub saves_reserved_bytes: i64,
}

/// The peak with activation checkpointing.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Checkpoint {
    /// The modules, as they were asked for.
    pub modules: String,
    /// Calls of them in the recording that keep something for the backward pass.
    pub calls: u64,
    /// Highest allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Highest reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Of allocated bytes.
    pub saves_allocated_bytes: i64,
    /// Of reserved bytes.
    pub saves_reserved_bytes: i64,
    /// The share of the forward passes that is repeated, by the bytes that they ask for, 0 to 1.
    pub repeated_share: f64,
}

/// Live memory at the moment with most allocated bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Peak {
    /// Allocated then.
    pub allocated_bytes: u64,
    /// Reserved at most.
    pub peak_reserved_bytes: u64,
    /// Among them, bytes of a request that failed when it was recorded.
    pub failed_bytes: u64,
    /// By class, most first.
    pub classes: Vec<Held>,
    /// By module, most first.
    pub modules: Vec<Held>,
    /// By site and class, most first.
    pub sites: Vec<Holder>,
    /// Modules that had no room in the answer, and their bytes.
    pub modules_left_out: LeftOut,
    /// Sites that had no room in the answer, and their bytes.
    pub sites_left_out: LeftOut,
}

/// Memory of a class or a module.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Held {
    /// The class or the module; null for blocks of no module.
    pub name: Option<String>,
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Blocks of one site with the same class.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "FitHolder"))]
pub struct Holder {
    /// Who allocated them; null when no stack was recorded, as in the backward pass of a snapshot.
    pub site: Option<Frame>,
    /// Their class.
    pub class: Cow<'static, str>,
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Omitted entries.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LeftOut {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Measures that bring a training below a number of bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Under {
    /// The number.
    pub limit_bytes: u64,
    /// Highest reserved bytes as recorded, replayed.
    pub peak_reserved_bytes: u64,
    /// By how much that is above the number; 0 where it is not.
    pub excess_bytes: u64,
    /// What must go, in this order.
    pub must_go: Vec<Gone>,
    /// Whether that is enough.
    pub is_enough: bool,
    /// What comes before every measure, where memory grows.
    pub first: Option<String>,
    /// What would save memory, those that are enough first.
    pub measures: Vec<Measure>,
}

/// Memory that is removed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Gone {
    /// What.
    #[serde(flatten)]
    pub holder: Holder,
    /// Highest reserved bytes without it and those before it.
    pub peak_reserved_bytes: u64,
}

/// One measure by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct Measure {
    /// `allocator_setting`, `checkpointing`, `smaller_size`, `optimizer_8_bit` or `optimizer_sharded`.
    pub kind: Cow<'static, str>,
    /// What to do.
    pub what: String,
    /// Highest reserved bytes with it.
    pub peak_reserved_bytes: u64,
    /// Of reserved bytes.
    pub saves_bytes: i64,
    /// Whether it is enough by itself.
    pub is_enough: bool,
    /// How the figure came about.
    pub arithmetic: String,
}
