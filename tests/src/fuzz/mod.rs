//! Fuzz targets, one function each, run by the test `fuzz` on every commit and by libFuzzer for longer.
//!
//! Guarantees: a target takes any bytes. It panics where memctl breaks a promise; otherwise it describes the outcome in
//! a few words, by which the driver recognises new behaviour.
//! Refuses inputs above [`INPUT_BYTES_MAX`]; the test bounds what a target may allocate.

mod driver;
mod places;
mod ports;
mod targets;

pub use driver::{Crash, corpus, drive, mutations};

/// The longest generated input.
pub const INPUT_BYTES_MAX: usize = 16 << 10;

/// An entry point for external bytes.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, also that of its folder in `tests/fuzz/corpus`.
    pub name: &'static str,
    /// Tries an input and describes the outcome.
    pub run: fn(&[u8]) -> String,
    /// Inputs of a test run: a few seconds in an unoptimised build.
    pub inputs: u64,
}

/// All of them.
pub const TARGETS: [Target; 11] = [
    Target { name: "chunk", run: targets::chunk, inputs: 200_000 },
    Target { name: "condition", run: targets::condition, inputs: 200_000 },
    Target { name: "config", run: places::config, inputs: 20_000 },
    Target { name: "http", run: ports::http, inputs: 3_000 },
    Target { name: "http2", run: ports::http2, inputs: 3_000 },
    Target { name: "item", run: targets::item, inputs: 200_000 },
    Target { name: "note", run: places::note, inputs: 100_000 },
    Target { name: "region", run: places::region, inputs: 2_000 },
    Target { name: "rules", run: targets::rules, inputs: 20_000 },
    Target { name: "snapshot", run: targets::snapshot, inputs: 100_000 },
    Target { name: "spool", run: places::spool, inputs: 2_000 },
];

/// The target with a name.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn target(name: &str) -> Target {
    TARGETS.into_iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no fuzz target {name}"))
}
